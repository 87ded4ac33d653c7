"""The agent's requests under way: bounded, cancellable, each answered at most once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from oubliette_client import era, messages, source
from oubliette_client.era import Request
from oubliette_client.messages import Message, RequestError
from oubliette_client.methods import Methods, Waiting
from oubliette_client.stdio import leaf, note

# The daemon's own bound on a session's pending requests (`relay.max_pending`), so that it is never ours that counts.
MAX_RUNNING: Final = 1000
# A request is kept whole until it ends: seven of the longest, or a thousand of 32 KiB.
MAX_RUNNING_CHARACTERS: Final = 32 * 1024 * 1024
# The answers of a batch wait for each other; beyond this the array is sent in parts.
MAX_BATCH_CHARACTERS: Final = 8 * 1024 * 1024

Reply = Callable[[str | None], None]
"""Takes the answer to one message of the agent, None where it gets none."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Running:
    request: Request
    characters: int
    key: str
    reply: Reply
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Requests:
    """What the agent asked and has not been answered yet, by id."""

    def __init__(self, methods: Methods) -> None:
        self._methods = methods
        self._running: dict[str, _Running] = {}
        self._characters = 0

    def start(self, message: Message, id: str, reply: Reply, nursery: trio.Nursery) -> None:
        """Answers a request at once, a refused one too, or in a task of its own in `nursery`."""
        try:
            self._start(message, id, reply, nursery)
        except RequestError as failure:
            reply(messages.error(failure, id))

    def cancel(self, id: str) -> None:
        """Ends a request, which then tells the daemon and is not answered (MCP). One that has ended is left alone."""
        running = self._running.pop(messages.same_id(id), None)
        if running is not None:
            running.scope.cancel()

    def _start(self, message: Message, id: str, reply: Reply, nursery: trio.Nursery) -> None:
        key = messages.same_id(id)
        if key in self._running:
            raise RequestError(messages.INVALID_REQUEST, f"the id {source.excerpt(id)} is still in use")
        request = era.read(message, id, self._methods.agreed)
        handlers = self._methods.of(request.revision)
        if message.method in handlers.immediate:
            reply(messages.result(id, handlers.immediate[message.method](request)))
        elif message.method in handlers.waiting:
            running = _Running(request=request, characters=len(message.params), key=key, reply=reply)
            self._admit(running)
            nursery.start_soon(self._run, running, handlers.waiting[message.method])
        else:
            raise RequestError(messages.METHOD_NOT_FOUND, f"there is no method {source.excerpt(message.method)}")

    def _admit(self, running: _Running) -> None:
        characters = self._characters + running.characters
        if len(self._running) >= MAX_RUNNING or characters > MAX_RUNNING_CHARACTERS:
            raise RequestError(messages.LIMIT_EXCEEDED, "too many requests at once: this one was not sent")
        self._characters = characters
        self._running[running.key] = running

    async def _run(self, running: _Running, handle: Waiting) -> None:
        answer = None
        with running.scope:
            answer = await _answer(running.request, handle)
        self._characters -= running.characters
        # A cancelled id is free at once, so it may be another request's by now.
        if self._running.get(running.key) is running:
            del self._running[running.key]
        running.reply(None if running.scope.cancel_called else answer)


async def _answer(request: Request, handle: Waiting) -> str:
    try:
        return messages.result(request.id, await handle(request))
    except RequestError as failure:
        return messages.error(failure, request.id)
    except Exception as failure:
        # A mistake of ours in one request must not end the others (HAZARDS T31). What it said may hold arguments.
        note(f"internal error in {request.method}: {type(leaf(failure)).__name__}")
        return messages.error(RequestError(messages.INTERNAL_ERROR, "internal error"), request.id)


class Batch:
    """The answers to a batch of `size` messages: one array once all are there (JSON-RPC 2.0, section 6)."""

    def __init__(self, size: int, reply: Reply) -> None:
        self._missing = size
        self._reply = reply
        self._answers: list[str] = []
        self._characters = 0

    def reply(self, answer: str | None) -> None:
        """Takes the answer to one of the messages."""
        self._missing -= 1
        if answer is not None:
            self._answers.append(answer)
            self._characters += len(answer)
        if self._answers and (not self._missing or self._characters > MAX_BATCH_CHARACTERS):
            self._reply("[" + ",".join(self._answers) + "]")
            self._answers, self._characters = [], 0
