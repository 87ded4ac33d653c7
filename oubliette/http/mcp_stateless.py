"""`/mcp` in revision 2026-07-28: each POST stands for itself, and its response stream is all there is to end."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from oubliette.errors import InvalidRequest, NotAcceptable, OublietteError
from oubliette.http.mcp_answer import PostAnswer, hold, respond
from oubliette.http.request import Request
from oubliette.mcp import held, methods
from oubliette.mcp.envelope import Envelope, open_envelope
from oubliette.mcp.exchange import Exchange
from oubliette.mcp.methods import Answer
from oubliette.protocol.jsonrpc import NULL, Message
from oubliette.protocol.revisions import REVISIONS
from oubliette.toolbox.call import Services

# In whose words a request is refused that does not say its own revision.
_NEWEST: Final = REVISIONS[-1]


class StatelessEndpoint:
    """Serves the POSTs of the revision without sessions."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, request: Request, message: Message) -> None:
        """Answers one message. Raises `NotAcceptable` where the peer could not read the answer."""
        if not message.raw_id or message.is_response:
            # "This revision … defines no client-to-server notifications over Streamable HTTP".
            return await request.respond(202)
        try:
            if message.id == NULL:
                # MCP, "Requests": "Unlike base JSON-RPC, the ID MUST NOT be null".
                raise InvalidRequest("the id of a request must not be null")
            envelope = open_envelope(message, request.headers)
        except OublietteError as error:
            return await respond(request, methods.refuse(message.id, error, _NEWEST))
        can_stream = _check_accept(request, message)

        async def work(channel: PostAnswer) -> Answer:
            return await held.answer(self._exchange(request, message, envelope, channel, can_stream), message)

        if methods.holds(message, self._services):
            return await hold(request, work, can_stream=can_stream)
        exchange = self._exchange(request, message, envelope, PostAnswer(request), can_stream)
        await respond(request, await methods.answer(exchange, message))

    def _exchange(
        self, request: Request, message: Message, envelope: Envelope, channel: PostAnswer, can_stream: bool
    ) -> Exchange:
        return Exchange(
            id=message.id,
            principal=request.known_principal,
            revision=envelope.revision,
            services=self._services,
            channel=channel,
            level=envelope.level if can_stream else None,
            progress_token=envelope.progress_token if can_stream else UNSET,
            capabilities=envelope.capabilities,
        )


def _check_accept(request: Request, message: Message) -> bool:
    """Returns whether the answer may be a stream. Raises `NotAcceptable` where it would have to be."""
    can_stream = request.accepts("text/event-stream")
    if not can_stream and (message.method == "subscriptions/listen" or not request.accepts("application/json")):
        raise NotAcceptable("Accept must allow application/json and text/event-stream")
    return can_stream
