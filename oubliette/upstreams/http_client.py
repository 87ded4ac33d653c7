"""The HTTP client of proxied servers, and bodies of responses read within bounds.

What a library would decide by itself is decided here: no redirect is followed (HAZARDS T23), no proxy or password of
the environment is used, nothing compressed is taken, no body is held without bound.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import httpx2
import trio

from oubliette import __version__
from oubliette.protocol.sse import EventDecoder, ServerSentEvent
from oubliette.upstreams.connection import MAX_IN_FLIGHT
from oubliette.upstreams.messages import MAX_MESSAGE_BYTES, UnreadableError

# In seconds. Of a TCP connection and its TLS, and of a place among the connections.
CONNECT_SECONDS: Final = 10.0
# Of a piece of a request that the server does not take.
WRITE_SECONDS: Final = 30.0
# What is left of a response after the answer; a server that ends it within that time keeps its connection.
TAIL_SECONDS: Final = 1.0
# For the calls under way, for as many that were cancelled just now, for streams that stand and what is told besides.
CONNECTIONS: Final = 2 * MAX_IN_FLIGHT + 16
# Uvicorn and Node close an idle connection after 5 s; a request that uses it again just then fails.
KEEP_ALIVE_SECONDS: Final = 2.0
# Before a stream is opened again, in seconds: where the server does not say, and the bounds of what it may say.
RETRY_SECONDS: Final = 1.0
MIN_RETRY_SECONDS: Final = 0.1
MAX_RETRY_SECONDS: Final = 30.0
# A peer that vanishes without a word, as when a network goes away, is noticed within 25 s.
_SOCKET_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000),
)


@asynccontextmanager
async def open_client(url: httpx2.URL, headers: Mapping[str, str]) -> AsyncIterator[httpx2.AsyncClient]:
    """Yields a client for the server at `url`. Its cookies and connections are no other server's."""
    # Reading the certificates takes 200 ms, which is not the event loop's to spend.
    context = await trio.to_thread.run_sync(_tls) if url.scheme == "https" else _no_tls()
    limits = httpx2.Limits(max_connections=CONNECTIONS, keepalive_expiry=KEEP_ALIVE_SECONDS)
    transport = httpx2.AsyncHTTPTransport(
        verify=context, trust_env=False, limits=limits, socket_options=_SOCKET_OPTIONS
    )
    async with httpx2.AsyncClient(
        transport=transport,
        headers={"User-Agent": f"oubliette/{__version__}", **headers, "Accept-Encoding": "identity"},
        # How long an answer may take is for the deadline of each call.
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=None, write=WRITE_SECONDS),
        follow_redirects=False,
        trust_env=False,
    ) as client:
        yield client


def is_stream(response: httpx2.Response) -> bool:
    """Whether the body is a stream of events."""
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower() == "text/event-stream"


async def body_of(response: httpx2.Response) -> bytes:
    """Returns the body. Raises UnreadableError, and httpx2.TransportError."""
    body = bytearray()
    async with _chunks(response) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > MAX_MESSAGE_BYTES:
                raise _too_long()
    return bytes(body)


@dataclass(slots=True)
class Events(EventDecoder):
    """What is known of a stream: `last_id` to take it up again, `retry` seconds after it ended."""

    max_bytes: int = MAX_MESSAGE_BYTES
    retry: float = field(default=RETRY_SECONDS, init=False)

    def _take_field(self, line: bytes) -> None:
        # The HTML standard, section 9.2: "consists of only ASCII digits".
        name, _, value = line.partition(b":")
        digits = value.removeprefix(b" ")
        if name == b"retry" and digits.isdigit():
            self.retry = max(MIN_RETRY_SECONDS, min(int(digits[:9]) / 1000, MAX_RETRY_SECONDS))
        EventDecoder._take_field(self, line)


class _EventStream:
    """The data of the messages of a stream, as an iterator that may be left at any time."""

    def __init__(self, chunks: AsyncIterator[bytes], events: Events) -> None:
        self._chunks = chunks
        self._events = events
        self._waiting: deque[bytes] = deque()

    def __aiter__(self) -> _EventStream:
        return self

    async def __anext__(self) -> bytes:
        while not self._waiting:
            chunk = await anext(self._chunks)
            self._waiting += [event.data.encode() for event in self._feed(chunk) if event.type == "message"]
        return self._waiting.popleft()

    def _feed(self, chunk: bytes) -> list[ServerSentEvent]:
        try:
            return self._events.feed(chunk)
        except ValueError:
            raise _too_long() from None


@asynccontextmanager
async def events_of(response: httpx2.Response, events: Events) -> AsyncIterator[_EventStream]:
    """Yields the data of each message. Reading it raises UnreadableError, and httpx2.TransportError."""
    async with _chunks(response) as chunks:
        yield _EventStream(chunks, events)


@asynccontextmanager
async def _chunks(response: httpx2.Response) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yields the pieces of a body, and sees to it that they come to an end.

    They come through half a dozen asynchronous generators of the HTTP library. One that is left in the middle would be
    finished by the garbage collector, whenever that is; so it is read to its end, or the reading is cancelled.
    """
    if response.headers.get("content-encoding", "identity") != "identity":
        raise UnreadableError("a compressed message, which was not asked for")
    chunks = response.aiter_raw()
    try:
        yield chunks
    except BaseException:
        await _finish(chunks, 0)
        raise
    await _finish(chunks, TAIL_SECONDS)


async def _finish(chunks: AsyncIterator[bytes], seconds: float) -> None:
    with trio.move_on_after(seconds, shield=not seconds):
        try:
            async for _ in chunks:
                pass
        except httpx2.TransportError:
            return


def _too_long() -> UnreadableError:
    return UnreadableError(f"a message of more than {MAX_MESSAGE_BYTES} bytes")


def why(error: httpx2.TransportError) -> str:
    """Returns what went wrong, in words that hold nothing of the request: no header, and so no secret."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx2.ConnectError) and str(error):
        return str(error)
    return f"the connection broke ({type(error).__name__})"


@cache
def _tls() -> ssl.SSLContext:
    # SSL_CERT_FILE and SSL_CERT_DIR are heeded: they say whom an operator trusts, and send nothing elsewhere.
    return httpx2.create_ssl_context(trust_env=True)


@cache
def _no_tls() -> ssl.SSLContext:
    # For plain HTTP, where the library wants a context all the same: this one trusts nobody.
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
