"""A proxied server over streamable HTTP (MCP, "Transports"): its requests, its streams, and its session.

    _send ─┬─ a request:       a task of its own, _exchange: POST, and its answer as JSON or as a stream
           └─ anything else:   a task of its own, _tell: POST
    _listen: the GET stream, opened once `initialize` is through, and again whenever it ends

The SDK has such a transport too. This one bounds what it reads, gives every wait an end, keeps the connection after an
answer, tells when a stream broke or a session was forgotten, and goes on listening; and no failure of one request ends
the others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
import httpx2
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from oubliette.upstreams.connection import Fate, ServerConfig
from oubliette.upstreams.http_client import Events, body_of, events_of, is_stream, open_client, why
from oubliette.upstreams.liveness import Liveness
from oubliette.upstreams.messages import CUT_OFF, Ledger, UnreadableError, read_untrusted, write

# In seconds. Of a notification and of an answer to the server.
ASIDE_SECONDS: Final = 5.0
# Of the stream of a request that was cancelled, which its server need not end.
CANCELLED_SECONDS: Final = 5.0
# Of the farewell that ends a session on the server.
GOODBYE_SECONDS: Final = 1.0
# How often a stream that broke is taken up again in a row, before its answer counts as lost.
RESUMPTIONS: Final = 3

SESSION_ID: Final = "mcp-session-id"
VERSION: Final = "mcp-protocol-version"
LAST_EVENT_ID: Final = "last-event-id"
BOTH: Final = "application/json, text/event-stream"
STREAM: Final = "text/event-stream"

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def open_http(config: ServerConfig, fate: Fate, ledger: Ledger) -> AsyncIterator[tuple[Streams, Liveness]]:
    """Yields the streams that a session of the SDK runs on, and what is known of the server's life.

    `fate` ends where nobody answers and where the session was forgotten. Leaving it ends the session on the server,
    within GOODBYE_SECONDS.
    """
    into, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, out_of = anyio.create_memory_object_stream[SessionMessage](0)
    url = httpx2.URL(config.url or "")
    liveness = Liveness(url.host, url.port or (443 if url.scheme == "https" else 80), fate)
    with into, incoming, outgoing, out_of:
        async with open_client(url, config.headers) as client:
            transport = HttpTransport(client, url, into, fate=fate, liveness=liveness, ledger=ledger)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(transport.run, out_of)
                try:
                    yield (incoming, outgoing), liveness
                finally:
                    nursery.cancel_scope.cancel()
                    await transport.say_goodbye()


class HttpTransport:
    """Carries one session. `run` must be running."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: httpx2.URL,
        into: Incoming,
        *,
        fate: Fate,
        liveness: Liveness,
        ledger: Ledger,
    ) -> None:
        self._client = client
        self._url = url
        self._into = into
        self._fate = fate
        self._liveness = liveness
        self._ledger = ledger
        self._session_id = self._version = ""
        self._under_way: dict[RequestId, trio.CancelScope] = {}

    async def run(self, out_of: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Sends what the session says, until it is cancelled."""
        async with trio.open_nursery() as nursery:
            async for message in out_of:
                await self._send(message, nursery)

    async def say_goodbye(self) -> None:
        """Ends the session: "Clients that no longer need a particular session […] SHOULD send an HTTP DELETE"."""
        if self._fate.reason is None and self._session_id:
            with trio.move_on_after(GOODBYE_SECONDS, shield=True), suppress(httpx2.HTTPError):
                await self._client.delete(self._url, headers=self._headers(BOTH))

    async def _send(self, message: SessionMessage, nursery: trio.Nursery) -> None:
        content, headers = message.message, self._headers_for(message)
        if isinstance(content, JSONRPCRequest):
            nursery.start_soon(self._exchange, content, headers)
        elif isinstance(content, JSONRPCNotification) and content.method == "notifications/initialized":
            # MCP, "Initialization": what follows comes after it.
            await self._tell(content, headers)
            nursery.start_soon(self._listen)
        elif not self._ends_exchange(content):
            nursery.start_soon(self._tell, content, headers)

    def _ends_exchange(self, content: JSONRPCMessage) -> bool:
        """Whether a notice that a request was cancelled is said by closing its stream, as MCP 2026-07-28 has it."""
        if not isinstance(content, JSONRPCNotification) or content.method != "notifications/cancelled":
            return False
        is_modern = self._version in MODERN_PROTOCOL_VERSIONS
        scope = self._under_way.get((content.params or {}).get("requestId", ""))
        if scope is not None:
            scope.deadline = trio.current_time() + (0 if is_modern else CANCELLED_SECONDS)
        return is_modern

    def _headers_for(self, message: SessionMessage) -> dict[str, str]:
        """The headers of a message: those that the session gave it, and the session's own."""
        given: Mapping[str, str] = {}
        if isinstance(message.metadata, ClientMessageMetadata):
            given = message.metadata.headers or {}
        if isinstance(message.message, JSONRPCRequest) and message.message.method == "initialize":
            self._version = ""
        self._version = given.get(VERSION, self._version)
        return {**self._headers(BOTH), "content-type": "application/json", **given}

    def _headers(self, accept: str) -> dict[str, str]:
        own = {"accept": accept, SESSION_ID: self._session_id, VERSION: self._version}
        return {name: value for name, value in own.items() if value}

    # One request

    async def _exchange(self, request: JSONRPCRequest, headers: dict[str, str]) -> None:
        with trio.CancelScope() as scope:
            self._under_way[request.id] = scope
            try:
                await self._post(request, headers)
            except UnreadableError as error:
                await self._fail(request, INTERNAL_ERROR, f"it sent {error}")
            finally:
                del self._under_way[request.id]

    async def _post(self, request: JSONRPCRequest, headers: dict[str, str]) -> None:
        events = Events()
        try:
            async with self._client.stream("POST", self._url, content=write(request), headers=headers) as response:
                if request.method == "initialize":
                    self._session_id = response.headers.get(SESSION_ID, "")
                is_answered = await self._read(request, response, events)
        except httpx2.TransportError as error:
            self._broke(error)
            is_answered = not events.last_id
            if is_answered:
                await self._fail(request, CUT_OFF, why(error))
        if not is_answered:
            await self._resume(request, events)

    async def _read(self, request: JSONRPCRequest, response: httpx2.Response, events: Events) -> bool:
        """Hands on what a response says; returns whether that answers the request."""
        if response.status_code != 200:
            await self._refuse(request, response)
        elif is_stream(response):
            return await self._follow(request, response, events)
        elif not await self._answer(request, read_untrusted(await body_of(response), self._ledger)):
            await self._fail(request, INTERNAL_ERROR, "it sent no answer")
        return True

    async def _refuse(self, request: JSONRPCRequest, response: httpx2.Response) -> None:
        self._liveness.doubt()
        if response.status_code == 404 and SESSION_ID in response.request.headers:
            # MCP, "Session Management": "When a client receives HTTP 404 in response to a request containing an
            # Mcp-Session-Id, it MUST start a new session".
            self._fate.end("it has forgotten the session")
        message = read_untrusted(await body_of(response), self._ledger)
        if not isinstance(message, JSONRPCError) or not await self._answer(request, message):
            code = METHOD_NOT_FOUND if response.status_code == 404 else INTERNAL_ERROR
            # Also for a redirect: HAZARDS T23.
            await self._fail(request, code, f"it answered HTTP {response.status_code}")

    async def _follow(self, request: JSONRPCRequest, response: httpx2.Response, events: Events) -> bool:
        """Hands on what a stream says, up to the answer; returns whether there was one."""
        stands = request.method == "subscriptions/listen"
        self._liveness.standing += stands
        try:
            async with events_of(response, events) as stream:
                async for data in stream:
                    message = read_untrusted(data, self._ledger)
                    if await self._answer(request, message):
                        return True
                    await self._hand_on(message)
            return False
        finally:
            self._liveness.standing -= stands
            if stands:
                self._liveness.doubt()

    async def _resume(self, request: JSONRPCRequest, events: Events) -> None:
        """MCP, "Resumability and Redelivery": a stream whose events had ids is taken up again by a GET."""
        for _ in range(RESUMPTIONS if events.last_id else 0):
            await trio.sleep(events.retry)
            headers = {**self._headers(STREAM), LAST_EVENT_ID: events.last_id}
            with suppress(httpx2.TransportError):
                async with self._client.stream("GET", self._url, headers=headers) as response:
                    if response.status_code != 200 or not is_stream(response):
                        break
                    if await self._follow(request, response, events):
                        return
        await self._fail(request, CUT_OFF, "its stream ended without an answer")

    async def _answer(self, request: JSONRPCRequest, message: JSONRPCMessage | None) -> bool:
        """Hands on a message if it answers the request; returns whether it does."""
        if isinstance(message, JSONRPCError):
            # The id of a request that could not be read is null.
            await self._hand_on(JSONRPCError(jsonrpc="2.0", id=request.id, error=message.error))
            return True
        if not isinstance(message, JSONRPCResponse) or message.id != request.id:
            return False
        await self._hand_on(message)
        return True

    async def _fail(self, request: JSONRPCRequest, code: int, problem: str) -> None:
        error = ErrorData(code=code, message=problem)
        await self._hand_on(JSONRPCError(jsonrpc="2.0", id=request.id, error=error))

    # What is said besides

    async def _tell(self, content: JSONRPCMessage, headers: dict[str, str]) -> None:
        with trio.move_on_after(ASIDE_SECONDS):
            try:
                async with self._client.stream("POST", self._url, content=write(content), headers=headers) as response:
                    if response.status_code >= 300:
                        self._liveness.doubt()
                    await body_of(response)
            except httpx2.TransportError as error:
                self._broke(error)
            except UnreadableError:  # an answer without end, to what wants none
                self._liveness.doubt()
        self._ledger.leave(content)

    async def _listen(self) -> None:
        """Keeps the GET stream open, where the server has one: "MUST either return Content-Type: text/event-stream […]
        or else return HTTP 405"."""
        events = Events()
        while self._session_id:
            with suppress(httpx2.TransportError):
                headers = self._headers(STREAM) | ({LAST_EVENT_ID: events.last_id} if events.last_id else {})
                async with self._client.stream("GET", self._url, headers=headers) as response:
                    if response.status_code == 200 and is_stream(response):
                        await self._hear(response, events)
                    elif response.status_code < 500:
                        if response.status_code == 404:  # no such stream, or no such session: a ping tells
                            self._liveness.doubt()
                        return
            self._liveness.doubt()
            await trio.sleep(events.retry)

    async def _hear(self, response: httpx2.Response, events: Events) -> None:
        self._liveness.standing += 1
        try:
            async with events_of(response, events) as stream:
                async for data in stream:
                    await self._hand_on(read_untrusted(data, self._ledger))
        except UnreadableError as error:
            self._fate.end(f"it sent {error}")
        finally:
            self._liveness.standing -= 1

    async def _hand_on(self, message: JSONRPCMessage | None) -> None:
        if message is not None:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the session is over
                await self._into.send(SessionMessage(message))

    def _broke(self, error: httpx2.TransportError) -> None:
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            self._fate.end(f"{self._url.host} cannot be reached: {why(error)}")
        self._liveness.doubt()
