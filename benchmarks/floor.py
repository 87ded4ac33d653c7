"""The floor: the bare minimum of a relay on plain ASGI and trio (hypercorn's trio worker).

`python -m benchmarks.floor --data-dir D [--one-by-one]` prints `listening on http://127.0.0.1:PORT`. It speaks as much
of WIRE as the load needs: `/mcp` of revision 2025-11-25, over HTTP and over WebSocket, the tools `session_message` and
`caller_tool_response`, one unix socket for each session. There are no checks, no records, no tokens, no deadlines, no
limits, no tasks but hypercorn's own and one for each link: whatever the daemon costs above it is the price of its
promises, or waste.

With `--one-by-one` a link reads its next request when the last one was answered: the relay that `benchmarks.parallel`
compares with.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import uuid4

import msgspec
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from msgspec import Raw

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]

_EVENT: Final = (
    b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","logger":"oubliette.session",'
    b'"data":{"type":"caller_tool_request","session_id":"%b","request_id":"%b","tool":"%b","arguments":%b}}}'
)
_HELLO: Final = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {}}
_ACCEPTED: Final = {
    "content": [{"type": "text", "text": '{"accepted":true}'}],
    "structuredContent": {"accepted": True},
    "isError": False,
}


class _Call(msgspec.Struct):
    tool: str
    arguments: Raw


class _Request(msgspec.Struct):
    id: Raw
    params: _Call


class _ToolArguments(msgspec.Struct):
    session_id: str = ""
    request_id: str = ""
    result: Raw = Raw(b"null")


class _ToolCall(msgspec.Struct):
    name: str = ""
    arguments: _ToolArguments = msgspec.field(default_factory=_ToolArguments)


class _Message(msgspec.Struct):
    method: str
    id: Raw = Raw(b"null")
    params: _ToolCall = msgspec.field(default_factory=_ToolCall)


_decode_message: Final = msgspec.json.Decoder(_Message).decode
_decode_request: Final = msgspec.json.Decoder(_Request).decode


@dataclass
class Caller:
    """One MCP session: what sends its events, once it has a GET stream or is a WebSocket."""

    deliver: Callable[[list[bytes]], Awaitable[None]] | None = None


@dataclass
class Link:
    """One agent's connection, and what wakes it when its requests are taken one by one."""

    stream: trio.SocketStream
    lock: trio.Lock = field(default_factory=trio.Lock)
    answered: trio.Event = field(default_factory=trio.Event)

    async def answer(self, id: Raw, result: Raw) -> None:
        """Sends the answer to request `id`."""
        async with self.lock:
            await self.stream.send_all(b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (id, result))
        self.answered.set()


class Floor:
    """The relay: an ASGI application, and a socket for each session."""

    def __init__(self, folder: str, nursery: trio.Nursery, *, one_by_one: bool) -> None:
        self._folder = folder
        self._nursery = nursery
        self._one_by_one = one_by_one
        self._callers: dict[bytes, Caller] = {}
        self._pending: dict[str, tuple[Link, Raw]] = {}
        self._numbers = itertools.count(1)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serves one request (ASGI 3)."""
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "websocket":
            await self._socket(receive, send)
        elif scope["method"] == "GET":
            await self._stream(self._callers[_session(scope)], receive, send)
        else:
            await self._post(scope, await _body(receive), send)

    async def _stream(self, caller: Caller, receive: Receive, send: Send) -> None:
        await receive()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b": hello\n\n", "more_body": True})
        caller.deliver = partial(_send_events, send)
        await receive()
        caller.deliver = None

    async def _post(self, scope: dict[str, Any], body: bytes, send: Send) -> None:
        message = _decode_message(body)
        headers: list[tuple[bytes, bytes]] = []
        if message.method == "initialize":
            session = uuid4().hex.encode()
            self._callers[session] = Caller()
            headers.append((b"mcp-session-id", session))
            result: object = _HELLO
        elif message.method == "notifications/initialized":
            return await _respond(send, 202, headers, b"")
        else:
            result = await self._call(self._callers[_session(scope)], message.params)
        await _respond(send, 200, headers, _encode_result(message.id, result))

    async def _socket(self, receive: Receive, send: Send) -> None:
        """Serves one WebSocket: it is its caller's session, stream and way back."""
        caller = Caller(partial(_send_messages, send))
        await receive()
        await send({"type": "websocket.accept", "subprotocol": "mcp"})
        while (received := await receive())["type"] == "websocket.receive":
            message = _decode_message(received["text"])
            if message.method == "initialize":
                await _send_messages(send, [_encode_result(message.id, _HELLO)])
            elif message.method == "tools/call":
                await _send_messages(send, [_encode_result(message.id, await self._call(caller, message.params))])

    async def _call(self, caller: Caller, call: _ToolCall) -> object:
        if call.name == "caller_tool_response":
            link, id = self._pending.pop(call.arguments.request_id)
            await link.answer(id, call.arguments.result)
            return _ACCEPTED
        return {"content": [], "structuredContent": await self._start_session(caller)}

    async def _start_session(self, caller: Caller) -> object:
        number = next(self._numbers)
        path = os.path.join(self._folder, f"{number}.sock")
        listener = trio.socket.socket(trio.socket.AF_UNIX)
        await listener.bind(path)
        listener.listen()
        self._nursery.start_soon(self._accept, caller, str(number).encode(), trio.SocketListener(listener))
        return {"session_id": str(number), "socket": path}

    async def _accept(self, caller: Caller, session: bytes, listener: trio.SocketListener) -> None:
        async def serve_link(stream: trio.SocketStream) -> None:
            await self._serve_link(caller, session, Link(stream))

        await trio.serve_listeners(serve_link, [listener])

    async def _serve_link(self, caller: Caller, session: bytes, link: Link) -> None:
        rest = b""
        async with link.stream:
            while data := await link.stream.receive_some():
                *lines, rest = (rest + data).split(b"\n")
                if self._one_by_one:
                    await self._relay_one_by_one(caller, session, link, lines)
                else:
                    assert caller.deliver is not None
                    await caller.deliver([self._event(session, link, line) for line in lines])

    async def _relay_one_by_one(self, caller: Caller, session: bytes, link: Link, lines: list[bytes]) -> None:
        assert caller.deliver is not None
        for line in lines:
            link.answered = trio.Event()
            await caller.deliver([self._event(session, link, line)])
            await link.answered.wait()

    def _event(self, session: bytes, link: Link, line: bytes) -> bytes:
        request, request_id = _decode_request(line), str(uuid4())
        self._pending[request_id] = (link, request.id)
        return _EVENT % (session, request_id.encode(), request.params.tool.encode(), request.params.arguments)


def _session(scope: dict[str, Any]) -> bytes:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    return next(value for name, value in headers if name == b"mcp-session-id")


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    return body


async def _send_events(send: Send, events: list[bytes]) -> None:
    body = b"".join([b"data: %b\n\n" % event for event in events])
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _send_messages(send: Send, messages: list[bytes]) -> None:
    for message in messages:
        await send({"type": "websocket.send", "text": message.decode()})


def _encode_result(id: Raw, result: object) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "result": result})


async def _respond(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _config() -> Config:
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.backlog = 1024
    config.keep_alive_timeout = 75
    # The default closes a connection after 1000 requests: some seconds of this load.
    config.keep_alive_max_requests = 1_000_000_000
    config.errorlog = logging.getLogger("floor")
    return config


async def run(folder: str, *, one_by_one: bool) -> None:
    """Serves until the process is ended; `folder` takes the sockets, and must have a short path."""
    async with trio.open_nursery() as nursery:
        floor = Floor(folder, nursery, one_by_one=one_by_one)
        urls = await nursery.start(serve, floor, _config())
        print(f"listening on {urls[0]}", flush=True)


def main() -> None:
    """Reads the command line and serves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="where the sockets lie; a short path")
    parser.add_argument("--one-by-one", action="store_true", help="take the requests of a link one by one")
    options = parser.parse_args()
    trio.run(lambda: run(options.data_dir, one_by_one=options.one_by_one))


if __name__ == "__main__":
    main()
