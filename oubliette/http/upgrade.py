"""Requests that take their connection over (RFC 9110, section 7.8), on Hypercorn's HTTP/1.1 protocol.

Hypercorn would make a stream of its own kind of a WebSocket, with two queues and four dictionaries for each message.
Here it is a request like any other: the door decides who may make it, and its route may have the connection, or answer.
"""

from __future__ import annotations

from collections.abc import Iterable

import h11
from hypercorn.protocol.events import Request
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import ASGIHTTPState

from oubliette.http.h11_stream import H11Stream
from oubliette.http.request import Header


class UpgradableH11Protocol(H11Protocol):
    """HTTP/1.1 where every request is an "http" one, and `upgrade` answers one that proposes another protocol."""

    async def _create_stream(self, request: h11.Request) -> None:
        """Does what Hypercorn's own does for all but WebSockets."""
        self.stream = H11Stream(self)
        version, method = request.http_version.decode(), request.method.decode().upper()
        headers, state = list(request.headers), self.connection_state
        await self.stream.handle(Request(STREAM_ID, headers, version, method, request.target, state))

    async def upgrade(self, headers: Iterable[Header]) -> bytes:
        """Answers the request under way with 101, and returns what came behind it.

        The reader stays parked where h11 has paused it, so that nothing more is read here; the end of the application
        is the end of the connection. Raises `RuntimeError` where the request proposes no upgrade, is not read to its
        end, or has its answer.
        """
        if self.connection.their_state is not h11.MIGHT_SWITCH_PROTOCOL:  # type: ignore[attr-defined]  # not in __all__
            raise RuntimeError("there is no request that could be upgraded")
        assert isinstance(self.stream, H11Stream)
        # As behind a response: the application's return is no error then.
        self.stream.state = ASGIHTTPState.CLOSED
        answer = h11.InformationalResponse(status_code=101, headers=list(headers), reason=b"Switching Protocols")
        await self._send_h11_event(answer)
        return bytes(self.connection.trailing_data[0])
