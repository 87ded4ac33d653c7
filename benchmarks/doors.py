"""The two doors of HTTP: how a session starts, where its events come from, how a request is answered.

Over MCP a caller is one MCP session of revision 2025-11-25 with one GET stream; over plain HTTP it is one event stream
of its session (WIRE section 4.2). Starting blocks, with a deadline on every socket operation; answering is bytes only.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import msgspec

from benchmarks import loop
from benchmarks.http1 import Response, ResponseReader, request

REVISION: Final = "2025-11-25"
HELLO: Final = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
# Every request of the start is answered by a system that has nothing else to do.
SETUP_SECONDS: Final = 20.0
_CONTEXT: Final = {"caller_id": "bench", "caller_tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
_START: Final = {"message": "bench", "agent": "external", "context": _CONTEXT}
START_CALL: Final = {"name": "session_message", "arguments": _START}
_ACCEPT: Final = "application/json, text/event-stream"


class Event(msgspec.Struct):
    """A `caller_tool_request` (WIRE section 5), as much of it as an echo needs."""

    session_id: str
    request_id: str
    arguments: msgspec.Raw


class Started(msgspec.Struct):
    """A session with the profile `external`, as `session_message` and `POST /sessions` return it."""

    session_id: str
    socket: str


class ToolResult(msgspec.Struct):
    """The result of the call that starts a session."""

    structuredContent: Started


class _Answer(msgspec.Struct):
    result: ToolResult


@dataclass(frozen=True, slots=True)
class Door:
    """A started session: its socket's path, the request that opens its stream, the one that answers an event."""

    session: Started
    stream: bytes
    answer: Callable[[Event], bytes]


class Server:
    """The system under test: where it listens, and what every request to it carries."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname, parts.port)
        self._headers = {"host": parts.netloc, "content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"

    def connect(self) -> socket.socket:
        """Returns a new connection; it blocks, `SETUP_SECONDS` at most."""
        sock = socket.create_connection(self._address, timeout=SETUP_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def request(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
        """Returns the bytes of a request with this server's headers and `headers`."""
        return request(method, path, self._headers | headers, body)

    def get(self, path: str) -> Response:
        """Returns the answer to a GET on a connection of its own. Raises `ValueError` for a status that is no 2xx."""
        return self._exchange(self.request("GET", path, {}))

    def post(self, path: str, headers: dict[str, str], body: object) -> Response:
        """Returns the answer to a POST on a connection of its own. Raises `ValueError` for a status that is no 2xx."""
        return self._exchange(self.request("POST", path, headers, msgspec.json.encode(body)))

    def _exchange(self, data: bytes) -> Response:
        reader = ResponseReader()
        with self.connect() as sock:
            sock.sendall(data)
            while (response := reader.feed(loop.receive(sock))) is None:
                pass
        if not 200 <= response.status < 300:
            raise ValueError(f"{data[:200]!r} was answered with {response.status} {response.body[:2000]!r}")
        return response


def start_http(server: Server) -> Door:
    """Starts a session over plain HTTP. Raises `ValueError` when the server refuses."""
    session = msgspec.json.decode(server.post("/sessions", {}, _START).body, type=Started)

    def answer(event: Event) -> bytes:
        path = f"/sessions/{event.session_id}/requests/{event.request_id}"
        return server.request("POST", path, {}, b'{"result":%b}' % event.arguments)

    return Door(session, request_stream(server, session.session_id), answer)


def request_stream(server: Server, session_id: str) -> bytes:
    """Returns the request for the events of one session as a stream."""
    return server.request("GET", f"/sessions/{session_id}/events", {"accept": "text/event-stream"})


def start_mcp(server: Server) -> Door:
    """Opens an MCP session and starts a session through it. Raises `ValueError` when the server refuses."""
    headers = _initialize(server)
    started = server.post("/mcp", headers, rpc_request("tools/call", START_CALL, 2)).body
    numbers = itertools.count(3)

    def answer(event: Event) -> bytes:
        arguments = {"session_id": event.session_id, "request_id": event.request_id, "result": event.arguments}
        call = {"name": "caller_tool_response", "arguments": arguments}
        return server.request(
            "POST", "/mcp", headers, msgspec.json.encode(rpc_request("tools/call", call, next(numbers)))
        )

    stream = server.request("GET", "/mcp", headers | {"accept": "text/event-stream"})
    return Door(msgspec.json.decode(started, type=_Answer).result.structuredContent, stream, answer)


def _initialize(server: Server) -> dict[str, str]:
    accepted = server.post("/mcp", {"accept": _ACCEPT}, rpc_request("initialize", HELLO, 1))
    session = accepted.headers[b"mcp-session-id"].decode()
    headers = {"accept": _ACCEPT, "mcp-session-id": session, "mcp-protocol-version": REVISION}
    server.post("/mcp", headers, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    return headers


def rpc_request(method: str, params: object, id: int) -> dict[str, object]:
    """Returns a JSON-RPC request."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
