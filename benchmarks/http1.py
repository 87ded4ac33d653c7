"""As much of HTTP/1.1 as a load generator needs: requests out, whole responses and SSE data in. Pure: no sockets.

It reads what hypercorn and uvicorn write: `content-length` and `chunked` bodies, and event streams whose events have
one `data:` line each, which holds for JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_HEAD_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Response:
    """One whole response; header names are lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


def request(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """Returns the bytes of one request; `content-length` is added to `headers` for any method but GET."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if method != "GET":
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class ResponseReader:
    """Turns the bytes of one keep-alive connection into responses, at most one of them in flight."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Response | None:
        """Takes bytes; returns the response when they complete it."""
        self._buffer += data
        head, end, body = self._buffer.partition(_HEAD_END)
        if not end:
            return None
        status, headers = parse_head(head)
        whole = _dechunked(body) if b"transfer-encoding" in headers else _counted(body, headers, status)
        if whole is None:
            return None
        self._buffer = b""
        return Response(status, headers, whole)


def parse_head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    """Returns the status and the headers of a response, names in lower case."""
    first, *lines = head.split(b"\r\n")
    fields = (line.partition(b":") for line in lines)
    return int(first[9:12]), {name.lower(): value.strip() for name, _, value in fields}


def _counted(body: bytes, headers: dict[bytes, bytes], status: int) -> bytes | None:
    length = 0 if status == 204 else int(headers.get(b"content-length", b"0"))
    return body if len(body) >= length else None


def _dechunked(body: bytes) -> bytes | None:
    chunks = ChunkReader()
    whole = chunks.feed(body)
    return whole if chunks.ended else None


class ChunkReader:
    """Undoes the chunked transfer coding (RFC 9112 section 7.1); trailers are not expected."""

    def __init__(self) -> None:
        self.ended = False
        self._buffer = b""

    def feed(self, data: bytes) -> bytes:
        """Takes bytes of the body; returns the content of the chunks that they complete."""
        self._buffer += data
        content = b""
        while (chunk := self._take()) is not None:
            content += chunk
        return content

    def _take(self) -> bytes | None:
        size, end, rest = self._buffer.partition(b"\r\n")
        if not end or self.ended:
            return None
        length = int(size, 16)
        if len(rest) < length + 2:
            return None
        self.ended, self._buffer = length == 0, rest[length + 2 :]
        return rest[:length]


class EventReader:
    """Turns the bytes of one event stream, from its response's first line on, into the data of its events."""

    def __init__(self) -> None:
        self.status: int | None = None
        self._head = b""
        self._chunks = ChunkReader()
        self._text = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Takes bytes; returns the `data` of the events that they complete. `status` is None until the head is in."""
        if self.status is None:
            data = self._feed_head(data)
        *lines, self._text = (self._text + self._chunks.feed(data)).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    def _feed_head(self, data: bytes) -> bytes:
        self._head += data
        head, end, rest = self._head.partition(_HEAD_END)
        if not end:
            return b""
        self.status, headers = parse_head(head)
        if headers.get(b"transfer-encoding") != b"chunked":
            raise ValueError(f"an event stream is expected, not {self._head[:500]!r}")
        return rest
