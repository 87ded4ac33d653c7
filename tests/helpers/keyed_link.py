"""An agent that holds a key, on a link over memory streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.helpers.agents import FakeAgent, never_end
from tests.helpers.link import AgentLink
from tests.helpers.link_bench import LinkBench, open_link_bench


class KeyedLink:
    """A link whose agent holds `key`."""

    def __init__(self, bench: LinkBench, link: AgentLink, key: str, token_id: str) -> None:
        self.bench = bench
        self.link = link
        self.key = key
        self.token_id = token_id

    async def ask(self, tool: str, id: Any = 1, **arguments: Any) -> None:
        params = {"api_key": self.key, "tool": tool, "arguments": arguments}
        await self.link.ask("oubliette_call_tool", params, id=id)

    async def answer(self, tool: str, **arguments: Any) -> Any:
        """Calls a tool and returns the whole answer."""
        await self.ask(tool, **arguments)
        return await self.link.receive()

    async def structured(self, tool: str, **arguments: Any) -> Any:
        """Calls a tool that must succeed, and returns what it says."""
        result = (await self.answer(tool, **arguments))["result"]
        assert not result.get("isError"), result
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        return result["structuredContent"]

    async def offered(self) -> list[Any]:
        await self.link.ask("oubliette_tools", {"api_key": self.key})
        tools: list[Any] = (await self.link.receive())["result"]["tools"]
        return tools

    async def revoke(self) -> None:
        await self.bench.domain.services.tokens.revoke(self.token_id)


@asynccontextmanager
async def keyed_link(
    folder: Path, scope: str = "admin", expires_in_seconds: float | None = None
) -> AsyncIterator[KeyedLink]:
    """A session of profile `external`, beside the profiles `echo` and `slow`, whose agent holds a key."""
    async with open_link_bench(folder, agents={"echo": FakeAgent(), "slow": FakeAgent(never_end)}) as bench:
        tokens = bench.domain.services.tokens
        token, record = await tokens.create("key", scope, expires_in_seconds)
        yield KeyedLink(bench, await bench.connect(), token, record.token_id)
