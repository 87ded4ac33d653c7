"""A scripted agent. It needs the standard library alone, and what it does with MCP is what every agent does.

    python agent.py PROMPT      (without an argument the prompt is read from stdin)

It starts `$OUBLIETTE_CLIENT` as its MCP server on stdio, says which tools it has, and then takes the prompt line by
line. Two kinds of prompt are known:

    call TOOL {"an": "argument"}    a line that calls a tool; the arguments are a JSON object and may be left out
    anything else                   free text; without a single `call` line it goes, as `message`, to the first tool
                                    that the caller has declared

What it prints becomes the `message` events of its session. A tool that fails is a line of output like any other. The
exit code is 0 at the end of the prompt, and 1, with the reason on stderr, where a line of the prompt or the MCP server
is at fault.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

PROTOCOL_VERSION: Final = "2025-11-25"
# How long the MCP server may take to end once its stdin is closed, in seconds.
CLOSE_SECONDS: Final = 2.0
CALL: Final = re.compile(r"^call (\S+) *(\{.*)?$", re.MULTILINE)
# The daemon's own tools, and what their names begin with: the others are those that the caller has declared.
DAEMON_TOOLS: Final = ("session_message", "project_list", "ot_", "oubliette_")


class AgentError(Exception):
    """Why the agent cannot go on."""


class McpServer:
    """An MCP server that runs as a subprocess: a JSON-RPC message a line, ours to its stdin, its own from its stdout.

    Everything raises `AgentError` where the server cannot be started, has ended, or refuses a request.
    """

    def __init__(self, command: list[str]) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603, RUF100  # the daemon's own command; examples/ allows it anyhow
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", bufsize=1
            )
        except OSError as error:
            raise AgentError(f"cannot start the MCP server {shlex.join(command)}: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._last_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # MCP, lifecycle: first close the server's input, wait, and only then use force.
        with suppress(BrokenPipeError):
            self._input.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.wait()
        self._output.close()

    def initialize(self) -> None:
        """Agrees on the protocol. Comes first."""
        client = {"name": "scripted-agent", "version": "1.0"}
        params = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client}
        self._request("initialize", params)
        self._send({"method": "notifications/initialized"})

    def tools(self) -> list[str]:
        """Returns the names of the tools."""
        return [tool["name"] for tool in self._request("tools/list", {})["tools"]]

    def call(self, tool: str, arguments: Any) -> Any:
        """Calls a tool and returns its `CallToolResult`. It takes as long as the tool takes."""
        return self._request("tools/call", {"name": tool, "arguments": arguments})

    def _request(self, method: str, params: dict[str, Any]) -> Any:
        self._last_id += 1
        self._send({"id": self._last_id, "method": method, "params": params})
        answer = next((message for message in self._messages() if message.get("id") == self._last_id), None)
        if answer is None:
            raise AgentError(f"the MCP server ended before it answered {method}")
        if "error" in answer:
            raise AgentError(f"the MCP server refused {method}: {answer['error']['message']}")
        return answer["result"]

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Yields the server's responses. Its notifications are passed over, and its pings answered."""
        for line in self._output:
            message = _parse(line, "a message of the MCP server")
            if "method" not in message:
                yield message
            elif message["method"] == "ping":
                self._send({"id": message["id"], "result": {}})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._input.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        except BrokenPipeError:
            raise AgentError("the MCP server has ended") from None


def main() -> int:
    """Does what the prompt asks for and returns the exit code."""
    prompt = " ".join(sys.argv[1:]) or sys.stdin.read()
    try:
        with McpServer(_client_command()) as server:
            server.initialize()
            _work(server, prompt)
    except AgentError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _work(server: McpServer, prompt: str) -> None:
    tools = server.tools()
    _say(f"tools: {', '.join(tools) or 'none'}")
    for tool, arguments in _calls(prompt, tools):
        _say(f"calling {tool} {json.dumps(arguments, ensure_ascii=False)}")
        result = server.call(tool, arguments)
        _say(f"{tool} {'failed' if result.get('isError') else 'answered'}: {_text(result)}")


def _client_command() -> list[str]:
    command = os.environ.get("OUBLIETTE_CLIENT")
    if not command:
        raise AgentError("OUBLIETTE_CLIENT is not set: the daemon sets it for the agents that it starts")
    return shlex.split(command)


def _calls(prompt: str, tools: list[str]) -> list[tuple[str, Any]]:
    """Returns the tools to call, each with its arguments."""
    asked = CALL.findall(prompt)
    if asked:
        return [(tool, _parse(arguments or "{}", f"the arguments of {tool}")) for tool, arguments in asked]
    callers = [tool for tool in tools if not tool.startswith(DAEMON_TOOLS)]
    return [(tool, {"message": prompt}) for tool in callers[:1]]


def _parse(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise AgentError(f"{what}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise AgentError(f"{what}: not a JSON object: {text.strip()}")
    return value


def _text(result: dict[str, Any]) -> str:
    """Returns what a `CallToolResult` says; what is not text is named."""
    return "\n".join(block.get("text", f"[{block['type']}]") for block in result["content"])


def _say(text: str) -> None:
    # In UTF-8 whatever the locale, and at once: each line is an event.
    sys.stdout.buffer.write(text.encode(errors="backslashreplace") + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
