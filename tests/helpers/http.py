"""An HTTP client of the tests: h11 over trio, so that nothing hides what is on the wire."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import h11
import trio

from oubliette.protocol.sse import EventDecoder, ServerSentEvent

LIMIT = 20  # seconds; far more than anything takes


class Reply:
    """A whole response."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]


class EventReader:
    """The events of an open SSE response."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._decoder = EventDecoder()
        self._ready: list[ServerSentEvent] = []
        self.comments = b""

    async def next(self) -> ServerSentEvent:
        """Returns the next event. Raises `EndOfChannel` at the end of the response."""
        with trio.fail_after(LIMIT):
            while not self._ready:
                chunk = await self._connection.next_chunk()
                if not chunk:
                    raise trio.EndOfChannel
                self.comments += b"".join(line for line in chunk.splitlines(True) if line.startswith(b":"))
                self._ready += self._decoder.feed(chunk)
        return self._ready.pop(0)

    async def next_of(self, kind: str) -> tuple[ServerSentEvent, Any]:
        """Returns the next event of a type, with its decoded data; others are passed over."""
        while True:
            event = await self.next()
            data = json.loads(event.data)
            if data.get("type") == kind or data.get("params", {}).get("data", {}).get("type") == kind:
                return event, data


class Api:
    """Requests to one daemon, each on a connection of its own; `token` is sent where there is one."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port = port
        self.token = token

    async def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Sends a request and returns the whole response. `body` is JSON, or bytes as they are."""
        with trio.fail_after(LIMIT):
            async with self._open(method, path, body, headers) as connection:
                chunks = []
                while chunk := await connection.next_chunk():
                    chunks.append(chunk)
                return Reply(connection.status, connection.headers, b"".join(chunks))

    @asynccontextmanager
    async def events(self, path: str, headers: Mapping[str, str] | None = None) -> AsyncIterator[EventReader]:
        """Opens an SSE response; leaving closes the connection."""
        async with self._open("GET", path, None, {"Accept": "text/event-stream", **(headers or {})}) as connection:
            assert connection.status == 200, connection.status
            yield EventReader(connection)

    async def post(self, path: str, body: Any) -> Reply:
        return await self.request("POST", path, body)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return await self.request("GET", path, None, headers)

    async def start_session(self, *tools: Any, agent: str = "external", **more: Any) -> Any:
        """Starts a session whose caller `myapp` offers `tools`, names or whole declarations; returns the session."""
        declared = [{"name": tool} if isinstance(tool, str) else tool for tool in tools]
        context = {"caller_id": "myapp", "caller_tools": declared}
        body = {"message": "hello", "agent": agent, **({"context": context} if declared else {}), **more}
        reply = await self.post("/sessions", body)
        assert reply.status == 201, reply.body
        return reply.json

    async def answer(self, session: Any, request_id: str, **outcome: Any) -> Reply:
        return await self.post(f"/sessions/{session['session_id']}/requests/{request_id}", outcome)

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, body: Any, headers: Mapping[str, str] | None
    ) -> AsyncIterator[_Connection]:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with stream:
            connection = _Connection(stream)
            await connection.send(method, path, self._headers(body, headers), _encoded(body))
            yield connection

    def _headers(self, body: Any, more: Mapping[str, str] | None) -> dict[str, str]:
        headers = {"Host": f"127.0.0.1:{self.port}"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
            headers["Content-Length"] = str(len(_encoded(body)))
        return {**headers, **(more or {})}


def _encoded(body: Any) -> bytes:
    if body is None:
        return b""
    return body if isinstance(body, bytes) else json.dumps(body).encode()


class _Connection:
    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self.status = 0
        self.headers: dict[str, str] = {}

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        request = h11.Request(method=method, target=path, headers=list(headers.items()))
        out = self._http.send(request) or b""
        out += self._http.send(h11.Data(data=body)) or b"" if body else b""
        out += self._http.send(h11.EndOfMessage()) or b""
        await self._stream.send_all(out)
        response = await self._next_event()
        while not isinstance(response, h11.Response):
            response = await self._next_event()
        self.status = response.status_code
        self.headers = {name.decode(): value.decode() for name, value in response.headers}

    async def next_chunk(self) -> bytes:
        event = await self._next_event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        return b""

    async def _next_event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._stream.receive_some(65536))
        return event
