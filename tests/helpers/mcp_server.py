"""An MCP server for tests: a process on stdio, or over HTTP on a free port, that misbehaves by script.

    python -P tests/helpers/mcp_server.py stdio|http '{"tools": […], …}'

`-P` keeps its neighbours out of its way, which are called as modules of the standard library are. Over HTTP it prints
`listening on PORT`. It needs the standard library alone, so it is up in a tenth of a second, and it speaks the
revisions that begin with `initialize`. The keys of the script are those of `Script`; `<3 x>` in it is `xxx`.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Send = Callable[[dict[str, Any] | str], None]
ANY = {"type": "object"}
PICTURE = {
    "content": [
        {"type": "text", "text": "a picture", "annotations": {"audience": ["user"], "priority": 0.5}},
        {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},
        {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav", "_meta": {"a": 1}},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "text", "mimeType": "text/plain"}},
        {"type": "resource_link", "uri": "file:///b", "name": "b"},
    ],
    "structuredContent": {"kept": True, "nothing": None, "number": 1.5, "big": 12345678901234567890123},
    "isError": True,
    "_meta": {"example.org/x": {"y": [1, None]}},
}


@dataclass
class Script:
    """What the server does; by default it behaves."""

    tools: list[Any] | None = None
    # The text of the member `tools`, for what JSON can spell and Python cannot say.
    tools_text: str = ""
    # How many tools a page has; 0: all. `endless`: there is always one more page.
    page: int = 0
    endless: bool = False
    # Methods that are never answered, and one at which the process ends.
    silent: list[str] = field(default_factory=list)
    dies_on: str = ""
    # Lines on stdout and stderr before anything else.
    noise: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)
    # Ignores the end of stdin, and SIGTERM.
    stubborn: bool = False
    # A file that gets a line for each message that came, and one for its process id.
    journal: str = ""
    # Speaks 2026-07-28, without `subscriptions/listen`.
    modern: bool = False
    # HTTP: ends the stream of a call before its answer, which a GET from there on gets: "resumed", or does not: "lost".
    breaks: str = ""
    # HTTP: whether there is a GET stream, sessions, an answer as a stream; a status for a method instead of an answer.
    port: int = 0
    stream: bool = True
    sessions: bool = True
    sse: bool = True
    statuses: dict[str, int] = field(default_factory=dict)
    location: str = ""
    encoding: str = ""


class Server:
    """The protocol, whatever it is carried by. `unasked` sends what no request asked for."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.unasked: Send = lambda message: None
        self.tools = script.tools
        self.cancelled: dict[Any, threading.Event] = {}
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.headers: dict[str, str] = {}
        self.text = ""
        self.is_deaf = False
        self.sessions: set[str | None] = set()

    def note(self, entry: Any) -> None:
        if self.script.journal:
            with open(self.script.journal, "a") as journal:
                journal.write(json.dumps(entry) + "\n")

    def handle(self, message: dict[str, Any], send: Send) -> None:
        """Handles one message; returns when its answer was sent."""
        self.note(message)
        method, params = message.get("method", ""), message.get("params") or {}
        if method and method == self.script.dies_on:
            os._exit(7)
        if method == "notifications/cancelled":
            self._cancelled(params["requestId"]).set()
        elif not method:
            self.answers.put(message)
        elif "id" in message and method not in self.script.silent:
            self._answer(message["id"], method, params, send)

    def _answer(self, id: Any, method: str, params: dict[str, Any], send: Send) -> None:
        if method == "tools/list" and self.script.tools_text:
            send(f'{{"jsonrpc":"2.0","id":{json.dumps(id)},"result":{{"tools":{self.script.tools_text}}}}}')
            return
        known = {"initialize": self._initialize, "ping": lambda params: {}, "tools/list": self._list}
        if self.script.modern:
            known["server/discover"] = self._discover
        if method in known:
            send({"jsonrpc": "2.0", "id": id, "result": {**known[method](params), **self._marks()}})
        elif method == "tools/call":
            self._call(id, params, send)
        else:
            send({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": f"no {method}"}})

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        info = {"name": "scripted", "version": "1"}
        capabilities = {"tools": {"listChanged": True}}
        return {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}

    def _discover(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": True}}}

    def _marks(self) -> dict[str, Any]:
        return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if self.script.modern else {}

    def _list(self, params: dict[str, Any]) -> dict[str, Any]:
        if self.tools is not None:
            tools = self.tools
        else:
            names = [name.removeprefix("tool_") for name in dir(self) if name.startswith("tool_")]
            tools = [{"name": name, "inputSchema": ANY} for name in names]
        start = int(params.get("cursor") or 0)
        end = start + self.script.page if self.script.page else len(tools)
        more = {"nextCursor": str(end)} if self.script.endless or end < len(tools) else {}
        return {"tools": tools[start:end], **more}

    def _call(self, id: Any, params: dict[str, Any], send: Send) -> None:
        handler = getattr(self, f"tool_{params['name']}", None)
        if handler is None:
            send({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": f"Unknown tool: {params['name']}"}})
            return
        token = (params.get("_meta") or {}).get("progressToken")

        def progress(done: Any, total: Any = None, message: str | None = None) -> None:
            known = {"progressToken": token, "progress": done, "total": total, "message": message}
            params = {key: value for key, value in known.items() if value is not None}
            send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

        result = handler(params.get("arguments") or {}, id, progress, send)
        if isinstance(result, str):
            send(result.replace("$ID", json.dumps(id)))
        elif result is not None:
            marks = {"resultType": "complete"} if self.script.modern else {}
            send({"jsonrpc": "2.0", "id": id, "result": {**marks, **result}})

    def _cancelled(self, id: Any) -> threading.Event:
        return self.cancelled.setdefault(id, threading.Event())

    def tool_echo(self, arguments: dict[str, Any], *rest: Any) -> Any:
        return {"content": [{"type": "text", "text": json.dumps(arguments)}], "structuredContent": arguments}

    def tool_picture(self, *rest: Any) -> Any:
        return PICTURE

    def tool_slow(self, arguments: dict[str, Any], id: Any, progress: Callable[..., None], send: Send) -> Any:
        """Reports `steps` steps, then waits until it is cancelled or `seconds` are over."""
        for step in range(arguments.get("steps", 1)):
            progress(step + 1, arguments.get("steps", 1), "working")
        if self._cancelled(id).wait(arguments.get("seconds", 60)):
            self.note("slow was cancelled")
            return None
        return {"content": []}

    def tool_die(self, *rest: Any) -> Any:
        os._exit(7)

    def tool_refuse(self, arguments: dict[str, Any], id: Any, progress: Any, send: Send) -> Any:
        send({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": arguments["message"]}})

    def tool_ask(self, arguments: dict[str, Any], id: Any, progress: Any, send: Send) -> Any:
        """Asks the client for what servers may ask for; returns the errors."""
        sampling = {"messages": [], "maxTokens": 1}
        elicitation = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
        asked = {"sampling/createMessage": sampling, "elicitation/create": elicitation, "roots/list": {}}
        answers = {}
        for method, params in asked.items():
            send({"jsonrpc": "2.0", "id": method, "method": method, "params": params})
            answer = self.answers.get(timeout=10)
            answers[answer["id"]] = answer.get("error", {}).get("message")
        return {"content": [], "structuredContent": answers}

    def tool_swap(self, arguments: dict[str, Any], *rest: Any) -> Any:
        """Has other tools from now on, and says so `times`."""
        self.tools = arguments["tools"]
        for _ in range(arguments.get("times", 1)):
            self.unasked({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        return {"content": []}

    def tool_seen(self, *rest: Any) -> Any:
        """What the process was given: its environment and the headers of the last request."""
        return {"content": [], "structuredContent": {"env": dict(os.environ), "headers": self.headers}}

    def tool_big(self, arguments: dict[str, Any], *rest: Any) -> Any:
        return {"content": [{"type": "text", "text": "x" * arguments["bytes"]}]}

    def tool_line(self, *rest: Any) -> Any:
        """The text of the call itself."""
        return {"content": [{"type": "text", "text": self.text}]}

    def tool_forget(self, *rest: Any) -> Any:
        """Knows no session any more."""
        self.sessions.clear()
        return {"content": []}

    def tool_leave_a_child(self, *rest: Any) -> Any:
        """Dies, and leaves a child behind that holds its pipes."""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        self.note({"child": child.pid})
        os._exit(7)

    def tool_flood(self, arguments: dict[str, Any], id: Any, progress: Any, send: Send) -> Any:
        """Asks without end, and reads nothing any more."""
        self.is_deaf = True
        while True:
            send({"jsonrpc": "2.0", "id": "x" * 10_000, "method": "roots/list"})

    def tool_text(self, arguments: dict[str, Any], *rest: Any) -> Any:
        """Sends `message` as it is, `$ID` replaced."""
        return arguments["message"]


def serve_stdio(server: Server) -> None:
    lock = threading.Lock()

    def send(message: dict[str, Any] | str) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        with lock:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    server.unasked = send
    for line in server.script.noise:
        send(line)
    for line in sys.stdin:
        while server.is_deaf:
            time.sleep(1)
        server.text = line.rstrip("\n")
        message = json.loads(line)
        # What stands in the way of nothing is done at once, so that the order is the client's.
        if message.get("method") == "tools/call":
            threading.Thread(target=server.handle, args=(message, send), daemon=True).start()
        else:
            server.handle(message, send)
    while server.script.stubborn:
        time.sleep(1)


def expanded(text: str) -> str:
    """Replaces `<3 x>` by `xxx`: an argument of a command must not be long."""
    return re.sub(r"<(\d+) (.)>", lambda found: found[2] * int(found[1]), text)


def main() -> None:
    script = Script(**json.loads(expanded(sys.argv[2])))
    server = Server(script)
    server.note({"pid": os.getpid()})
    if script.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in script.stderr:
        print(line, file=sys.stderr, flush=True)
    if sys.argv[1] == "stdio":
        serve_stdio(server)
        return
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.helpers.mcp_server_http import serve_http

    serve_http(server)


if __name__ == "__main__":
    main()
