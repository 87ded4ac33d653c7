"""One request and its answer, between Hypercorn's protocol and the application.

Hypercorn's own stream turns every message of the application into an event of its own, that into one of h11's, and each
of those into a write. Here the head of an answer, its first piece and its end go through h11 together, as one write.
"""

from __future__ import annotations

from typing import Any

import h11
from hypercorn.events import RawData
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.typing import H11SendableEvent
from hypercorn.utils import suppress_body


class H11Stream(HTTPStream):
    """What `HTTPStream` is on HTTP/1.1, without trailers, pushes and early hints. The access log is nobody's."""

    def __init__(self, protocol: H11Protocol) -> None:
        whose = (protocol.ssl, protocol.client, protocol.server)
        parts = (protocol.app, protocol.config, protocol.context, protocol.task_group)
        super().__init__(*parts, *whose, protocol.stream_send, STREAM_ID)
        self._protocol = protocol
        self._head: h11.Response | None = None

    async def app_send(self, message: Any) -> None:
        """Takes a message of the application, None for its end."""
        kind = message and message["type"]
        if kind == "http.response.start" and self.state is ASGIHTTPState.REQUEST:
            self._start(message)
        elif kind == "http.response.body" and self.state is ASGIHTTPState.RESPONSE:
            await self._continue(message)
        else:
            if self._head is not None:
                await self._write([])  # the application has failed behind the head
            await super().app_send(message)

    def _start(self, message: Any) -> None:
        headers = [*message["headers"], *self.config.response_headers("h11")]
        self._head = h11.Response(status_code=message["status"], headers=headers)
        self.response = message
        self.state = ASGIHTTPState.RESPONSE

    async def _continue(self, message: Any) -> None:
        chunk, is_last = message.get("body", b""), not message.get("more_body", False)
        events: list[H11SendableEvent] = []
        if chunk and not suppress_body(self.scope["method"], self.response["status"]):
            events.append(h11.Data(data=chunk))
        if is_last:
            events.append(h11.EndOfMessage())
        await self._write(events)
        if is_last:
            self.state = ASGIHTTPState.CLOSED
            await self._protocol._maybe_recycle()

    async def _write(self, events: list[H11SendableEvent]) -> None:
        connection = self._protocol.connection
        if self._head is not None:
            events.insert(0, self._head)
            self._head = None
        try:
            data = b"".join([connection.send(event) or b"" for event in events])
        except h11.LocalProtocolError:
            # Of a peer that broke the protocol meanwhile nothing more is heard, and nothing can be said to it.
            if connection.their_state is not h11.ERROR:
                raise
        else:
            await self._protocol.send(RawData(data=data))
