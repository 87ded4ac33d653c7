"""The example agent with a stopwatch: `python benchmarks/stopwatch.py [PROMPT]`, run by `benchmarks.agents`.

It does what `examples/agent.py` does, and says besides:

    listed NANOSECONDS      on the monotonic clock, which all processes of a machine share: its tools were there
    took MICROSECONDS ...   how long each call took, at the end
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

# The repository, of which sandboxes show this file and the example.
sys.path[0] = str(Path(__file__).parent.parent)

from examples import agent  # noqa: E402  # it is found by the line above


class TimedServer(agent.McpServer):
    """The example's MCP server, timed."""

    def __init__(self, command: list[str]) -> None:
        super().__init__(command)
        self._took: list[int] = []

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        print("took", *self._took, flush=True)
        super().__exit__(kind, value, traceback)

    def tools(self) -> list[str]:
        """Returns the names of the tools, and says when they were there."""
        names = super().tools()
        print("listed", time.monotonic_ns(), flush=True)
        return names

    def call(self, tool: str, arguments: Any) -> Any:
        """Calls a tool and returns its `CallToolResult`. Raises `AgentError` for one that is an error."""
        begun = time.monotonic_ns()
        result = super().call(tool, arguments)
        self._took.append((time.monotonic_ns() - begun) // 1000)
        if result.get("isError"):
            raise agent.AgentError(f"{tool} failed: {result}")
        return result


if __name__ == "__main__":
    agent.McpServer = TimedServer  # type: ignore[misc]  # the example makes its own, and is to stay as simple as it is
    sys.exit(agent.main())
