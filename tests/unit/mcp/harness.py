"""MCP without a network: requests of either era to a domain in memory, and what comes back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio
from msgspec import UNSET, Raw
from trio.testing import wait_all_tasks_blocked

from oubliette.http.mcp import McpEndpoint
from oubliette.http.positions import Positions
from oubliette.http.request import Request
from oubliette.mcp import held, methods
from oubliette.mcp.exchange import Exchange
from oubliette.mcp.session import McpSession, McpSessions
from oubliette.protocol.jsonrpc import Message, decode
from oubliette.protocol.mcp import CLIENT_CAPABILITIES, LOG_LEVEL, PROTOCOL_VERSION
from oubliette.protocol.mcp_headers import NAMED_BY, encode
from oubliette.protocol.revisions import BY_NAME, NEWEST, REVISIONS
from oubliette.protocol.sse import EventDecoder
from oubliette.session import Session
from oubliette.tokens import Principal
from tests.helpers.domain import OWNER, Domain, open_domain

STATELESS = REVISIONS[-1]
META: Mapping[str, Any] = {PROTOCOL_VERSION: STATELESS.name, CLIENT_CAPABILITIES: {}}
LOGGED: Mapping[str, Any] = {**META, LOG_LEVEL: "info"}
ACCEPT = {"accept": "application/json, text/event-stream"}


def text_of(method: str, *, id: Any = 1, **params: Any) -> bytes:
    """A request as it is on the wire."""
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode()


def message_of(method: str, *, id: Any = 1, **params: Any) -> Message:
    return decode(text_of(method, id=id, **params))


def headers_of(message: Message) -> dict[str, str]:
    """The headers that a client sends with a stateless request."""
    params = json.loads(bytes(message.params) or b"{}")
    headers = {**ACCEPT, "mcp-protocol-version": STATELESS.name, "mcp-method": message.method}
    if message.method in NAMED_BY:
        headers["mcp-name"] = encode(params[NAMED_BY[message.method]]).decode()
    return headers


def is_attached(session: Session) -> bool:
    """Whether the session's owner counts as connected."""
    return session.relay.is_attached


def child_of(domain: Domain, parent: Session, id: str) -> Session:
    """A session that `parent` has just started, without events so far."""
    record = msgspec.structs.replace(parent.record, session_id=id, parent_id=parent.id, last_index=0)
    child = domain.sessions.archived(record)
    for watcher in list(domain.sessions.watchers):
        watcher(child)
    return child


class Sent:
    """A channel that keeps what it is given, and when. While it is not `reads`, each send waits."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.times: list[float] = []
        self.reads = trio.Event()
        self.reads.set()

    async def send(self, *messages: bytes) -> None:
        self.messages += [json.loads(message) for message in messages]
        self.times += [trio.current_time()] * len(messages)
        await self.reads.wait()

    def params(self, method: str) -> list[Any]:
        """The params of each notification of `method`."""
        return [message["params"] for message in self.messages if message["method"] == method]

    @property
    def events(self) -> list[Any]:
        return [params["data"] for params in self.params("notifications/message")]


class Asker:
    """A principal that asks in one revision, stateless or within an MCP session. `sent` is what came meanwhile."""

    def __init__(self, domain: Domain, principal: Principal = OWNER, session: McpSession | None = None) -> None:
        self.domain = domain
        self.session = session
        self.sent = Sent()
        self._principal = principal

    def exchange(self, *, id: Any = 1, token: Any = UNSET, **options: Any) -> Exchange:
        return Exchange(
            id=json.dumps(id).encode(),
            principal=self._principal,
            revision=STATELESS if self.session is None else self.session.revision,
            services=self.domain.services,
            channel=self.sent,
            session=self.session,
            progress_token=token if token is UNSET else Raw(json.dumps(token).encode()),
            **options,
        )

    async def ask(self, method: str, *, id: Any = 1, options: Mapping[str, Any] | None = None, **params: Any) -> Any:
        """Returns the whole response to a request."""
        message = message_of(method, id=id, **params)
        answer = held.answer if methods.holds(message, self.domain.services) else methods.answer
        return json.loads((await answer(self.exchange(id=id, **(options or {})), message)).text)

    async def result(self, method: str, **params: Any) -> Any:
        """Returns the result of a request that must succeed."""
        answer = await self.ask(method, **params)
        assert "result" in answer, answer
        return answer["result"]

    async def error(self, method: str, **params: Any) -> Any:
        """Returns the error of a request that must fail."""
        answer = await self.ask(method, **params)
        assert "error" in answer, answer
        return answer["error"]

    async def call(self, tool: str, options: Mapping[str, Any] | None = None, **arguments: Any) -> Any:
        return await self.result("tools/call", options=options, name=tool, arguments=arguments)


class Served:
    """One HTTP request of the owner to `/mcp`, and what was written in answer, each piece with its time.

    A peer that `reads_slowly` has not read the end of a response yet when Hypercorn announces it, as `http.disconnect`.
    """

    def __init__(self, method: str, headers: Mapping[str, str], body: bytes) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self.headers: dict[bytes, bytes] = {}
        self.gone = trio.Event()
        self.reads_slowly = False
        self.has_ended = False
        lines = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"method": method, "path": "/mcp", "headers": lines, "query_string": b"", "http_version": "1.1"}
        self.request = Request(scope, self._receive, self._send)
        self.request.body = body
        self.request.principal = OWNER

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        assert not self.has_ended, "nothing is written behind the end"
        if message["type"] == "http.response.start":
            self.headers = dict(message["headers"])
        else:
            if self.reads_slowly and not message["more_body"]:
                self.gone.set()
                await wait_all_tasks_blocked()
            self.pieces.append((trio.current_time(), message["body"]))
            self.has_ended = not message["more_body"]

    @property
    def status(self) -> int:
        return self.request.status

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    @property
    def json(self) -> Any:
        assert self.headers[b"content-type"] == b"application/json"
        return json.loads(self.body)

    @property
    def messages(self) -> list[Any]:
        """The messages of an SSE response."""
        assert self.headers[b"content-type"].startswith(b"text/event-stream")
        return [json.loads(event.data) for event in EventDecoder().feed(self.body)]


class Endpoint:
    """`/mcp` of a domain, behind the door."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.mcp_sessions = McpSessions(domain.sessions, domain.records, domain.services.changes)
        positions = Positions("test", domain.sessions.journal)
        self.serve = McpEndpoint(domain.services, self.mcp_sessions, positions, 1024 * 1024)

    def post(self, method: str, headers: Mapping[str, str | None] | None = None, **params: Any) -> Served:
        """A stateless request that is still to be run; a header of None is left out."""
        text = text_of(method, **{"_meta": META, **params})
        chosen = {**headers_of(decode(text)), **(headers or {})}
        return Served("POST", {name: value for name, value in chosen.items() if value is not None}, text)

    def within(self, session: McpSession, text: bytes = b"") -> Served:
        """A request of an MCP session that is still to be run: a POST of `text`, or the GET stream."""
        version = {"mcp-session-id": session.id, "mcp-protocol-version": session.revision.name}
        return Served("POST" if text else "GET", {**ACCEPT, **version}, text)

    async def run(self, served: Served) -> Served:
        """Runs a request to its end. Raises what the door would answer with."""
        await self.serve(served.request)
        return served

    def open_session(self, revision: str = NEWEST.name) -> McpSession:
        return self.mcp_sessions.open(OWNER, BY_NAME[revision])


@asynccontextmanager
async def open_asker(folder: Path, **options: Any) -> AsyncIterator[Asker]:
    """Runs a domain whose owner asks in the revision without sessions."""
    async with open_domain(folder, **options) as domain:
        yield Asker(domain)


@asynccontextmanager
async def open_legacy_asker(folder: Path, revision: str = NEWEST.name, **options: Any) -> AsyncIterator[Asker]:
    """Runs a domain whose owner asks within an MCP session."""
    async with open_domain(folder, **options) as domain:
        mcp_sessions = McpSessions(domain.sessions, domain.records, domain.services.changes)
        yield Asker(domain, session=mcp_sessions.open(OWNER, BY_NAME[revision]))


@asynccontextmanager
async def open_endpoint(folder: Path, **options: Any) -> AsyncIterator[Endpoint]:
    async with open_domain(folder, **options) as domain:
        yield Endpoint(domain)
