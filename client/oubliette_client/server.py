"""The MCP server towards the agent: lines become messages, and messages become answers.

Requests run concurrently and are answered in the order in which they end (FIELD section 2, defect 2: one slow tool must
not hold up the next call).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from oubliette.protocol.lines import CLOSED, Signal
from oubliette_client import messages, source
from oubliette_client.messages import Message, RequestError
from oubliette_client.methods import Methods
from oubliette_client.requests import MAX_RUNNING, Batch, Reply, Requests
from oubliette_client.streams import MAX_LINE_BYTES, LineStream, Outbox

# HAZARDS F9 gives an agent's death 1 s to end its calls. Half of that lets `printf … | oubliette-client` be answered.
DRAIN_SECONDS: Final = 0.5


class Server:
    """Serves one agent.

    `on_initialized` is called when it says that it may be sent notifications, `on_end` when it says no more.
    """

    def __init__(
        self, methods: Methods, outbox: Outbox, on_initialized: Callable[[], None], on_end: Callable[[], None]
    ) -> None:
        self._methods = methods
        self._requests = Requests(methods)
        self._outbox = outbox
        self._on_initialized = on_initialized
        self._on_end = on_end

    async def run(self, stdin: trio.abc.ReceiveStream) -> None:
        """Serves until `stdin` ends; what still runs then has `DRAIN_SECONDS` to end."""
        lines = LineStream(stdin)
        async with trio.open_nursery() as nursery:
            while (event := await lines.receive()) is not CLOSED:
                self._receive(event, nursery)
                await self._outbox.room()
            self._on_end()
            nursery.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS

    def _receive(self, event: bytes | Signal, nursery: trio.Nursery) -> None:
        try:
            if isinstance(event, Signal):
                raise RequestError(messages.INVALID_REQUEST, f"a line of more than {MAX_LINE_BYTES} bytes")
            self._take_line(messages.text_untrusted(event), nursery)
        except RequestError as failure:
            self._reply(messages.error(failure))

    def _reply(self, answer: str | None) -> None:
        if answer is not None:
            self._outbox.put(source.encode(answer))

    def _take_line(self, text: str, nursery: trio.Nursery) -> None:
        if messages.is_batch(text):
            self._take_batch(messages.batch_untrusted(text), nursery)
        else:
            self._take(text, self._reply, nursery)

    def _take_batch(self, batch: list[str], nursery: trio.Nursery) -> None:
        if not self._methods.agreed.batches:
            raise RequestError(messages.INVALID_REQUEST, f"MCP {self._methods.agreed.name} has no batches")
        if not 0 < len(batch) <= MAX_RUNNING:
            raise RequestError(messages.INVALID_REQUEST, f"a batch must have 1 to {MAX_RUNNING} messages")
        answers = Batch(len(batch), self._reply)
        for text in batch:
            try:
                self._take(text, answers.reply, nursery)
            except RequestError as failure:
                answers.reply(messages.error(failure))

    def _take(self, text: str, reply: Reply, nursery: trio.Nursery) -> None:
        message = messages.message_untrusted(text)
        if message is not None and message.id is not None:
            self._requests.start(message, message.id, reply, nursery)
            return
        if message is not None:
            self._notice(message)
        reply(None)

    def _notice(self, notification: Message) -> None:
        """Takes a notification. One that is not understood is ignored (JSON-RPC 2.0, section 4.1)."""
        if notification.method == "notifications/initialized":
            self._on_initialized()
        elif notification.method == "notifications/cancelled":
            self._requests.cancel(source.fields(notification.params).get("requestId", messages.NULL))
