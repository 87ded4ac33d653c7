"""HTTP to a daemon, for the command line: its plain routes, and its tools over MCP (WIRE section 4).

Blocking, with a deadline on every read, and a connection for each request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

import oubliette
from oubliette.protocol.revisions import NEWEST
from oubliette.protocol.sse import EventDecoder, ServerSentEvent

# How long a connection may take to open, in seconds.
CONNECT_SECONDS: Final = 10.0
# A stream with nothing to say carries a comment every 15 s (WIRE section 4.3): four of them missed, in seconds.
QUIET_SECONDS: Final = 60.0
_CHUNK: Final = 64 * 1024
_STREAM: Final = "text/event-stream"

AnswerT = TypeVar("AnswerT")


class RefusedError(Exception):
    """The daemon refused what was asked for. `kind` is one of WIRE section 7."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class UnreachableError(Exception):
    """Nobody answers at the address, or whoever does is not the daemon; in words for the operator."""


class _Data(Struct, frozen=True):
    kind: str = "internal_error"


class _Error(Struct, frozen=True):
    """An error as plain routes, tools, and JSON-RPC (whose kind is in `data`) have it (WIRE section 7)."""

    message: str
    kind: str = ""
    data: _Data = _Data()

    def as_exception(self) -> RefusedError:
        return RefusedError(self.kind or self.data.kind, self.message)


class _Refusal(Struct, frozen=True):
    error: _Error


class _ResultMeta(Struct, frozen=True):
    error: _Error | None = msgspec.field(name="oubliette/error", default=None)


class _Block(Struct, frozen=True):
    text: str = ""


class _ToolResult(Struct, frozen=True):
    structured: dict[str, Any] = msgspec.field(name="structuredContent", default_factory=dict)
    content: list[_Block] = []
    meta: _ResultMeta = msgspec.field(name="_meta", default=_ResultMeta())


class _ToolAnswer(Struct, frozen=True):
    result: _ToolResult | None = None
    error: _Error | None = None


class _Agreed(Struct, frozen=True):
    version: str = msgspec.field(name="protocolVersion")


class _InitializeAnswer(Struct, frozen=True):
    result: _Agreed


class DaemonClient:
    """Speaks to the daemon at `url`, an http or https one, as whoever `token` belongs to.

    Every method raises `RefusedError` and `UnreachableError`; neither says the token.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self._token = token

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Asks a plain route. Returns the answer's JSON, None where it has none."""
        with self._open(method, path, body, {"Accept": "application/json"}) as response:
            return self._parse(self._read(response) or b"null", Any)

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Calls one of the daemon's tools, in an MCP session of its own, and returns its structured content.

        It takes as long as the tool takes.
        """
        return self._call(name, arguments).structured

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Calls a tool whose result is text, also where it says that something failed, and returns the text."""
        return "".join(block.text for block in self._call(name, arguments).content)

    def _call(self, name: str, arguments: Mapping[str, Any]) -> _ToolResult:
        with self._mcp_session() as headers:
            answer = self._ask("tools/call", {"name": name, "arguments": arguments}, headers)
        result = answer.result or _ToolResult()
        error = answer.error or result.meta.error
        if error is not None:
            raise error.as_exception()
        return result

    @contextmanager
    def events(self, path: str, last_id: str = "") -> Iterator[Iterator[ServerSentEvent]]:
        """Opens an SSE route, to go on after the event `last_id` where one is given. Leaving closes the connection.

        The events end where the daemon ends the stream; a connection that breaks raises `UnreachableError`.
        """
        resume = {"Last-Event-ID": last_id} if last_id else {}
        with self._open("GET", path, None, {"Accept": _STREAM, **resume}) as response:
            yield self._decode(response)

    @contextmanager
    def _mcp_session(self) -> Iterator[dict[str, str]]:
        """Yields the headers of a new MCP session; the daemon would keep it for an hour, so it is ended."""
        client = {"name": "oubliette", "version": oubliette.__version__}
        params = {"protocolVersion": NEWEST.name, "capabilities": {}, "clientInfo": client}
        with self._post({"id": 0, "method": "initialize", "params": params}, {}) as response:
            agreed = self._parse(self._read(response), _InitializeAnswer).result
            id = response.headers.get("Mcp-Session-Id", "")
        headers = {"Mcp-Session-Id": id, "MCP-Protocol-Version": agreed.version}
        with self._post({"method": "notifications/initialized"}, headers):
            pass
        yield headers
        with self._open("DELETE", "/mcp", None, headers):
            pass

    def _ask(self, method: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> _ToolAnswer:
        """Sends an MCP request. An answer that is long in coming is the one event of a stream."""
        with self._post({"id": 1, "method": method, "params": params}, headers) as response:
            if response.headers.get_content_type() == _STREAM:
                body = "".join(event.data for event in self._decode(response)).encode()
            else:
                body = self._read(response)
        return self._parse(body, _ToolAnswer)

    @contextmanager
    def _post(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> Iterator[HTTPResponse]:
        accept = {"Accept": f"application/json, {_STREAM}"}
        with self._open("POST", "/mcp", {"jsonrpc": "2.0", **message}, {**accept, **headers}) as response:
            yield response

    @contextmanager
    def _open(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Iterator[HTTPResponse]:
        """Yields the response, once its status says that the request was not refused."""
        content = None if body is None else msgspec.json.encode(body)
        ours = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        address = urlsplit(self.url)
        connection = _connection(address.scheme, address.netloc)
        try:
            with self._reaching():
                connection.connect()
                connection.sock.settimeout(QUIET_SECONDS)
                connection.request(method, address.path + path, content, {**ours, **headers})
                response = connection.getresponse()
            with response:
                if response.status >= 300:
                    raise self._parse(self._read(response), _Refusal).error.as_exception()
                yield response
        finally:
            connection.close()

    def _read(self, response: HTTPResponse) -> bytes:
        with self._reaching():
            return response.read()

    def _decode(self, response: HTTPResponse) -> Iterator[ServerSentEvent]:
        decoder = EventDecoder()
        while True:
            with self._reaching():
                data = response.read1(_CHUNK)
                events = decoder.feed(data)
            if not data:
                return
            yield from events

    def _parse(self, body: bytes, kind: type[AnswerT]) -> AnswerT:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise UnreachableError(f"what answers at {self.url} is not an Oubliette daemon") from None

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (OSError, HTTPException, ValueError) as error:  # the last: no host name, or an event without an end
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise UnreachableError(
                f"cannot reach the daemon at {self.url}: {reason}; is it running? start it with `oubliette serve`"
            ) from None


def _connection(scheme: str, netloc: str) -> HTTPConnection:
    kind = HTTPSConnection if scheme == "https" else HTTPConnection
    return kind(netloc, timeout=CONNECT_SECONDS)
