"""The profile `acp`: any agent that speaks the Agent Client Protocol over stdio, such as `opencode acp`.

    converse                      a nursery for the agent's process
      the process               ⇢ one for all turns; hears it to its end, and answers what it asks
      turn                        takes what it tells from a channel of capacity 0: an agent that talks faster than its
                                  events can be recorded waits, in its own pipe

Where the process has died between two turns it is started again, with the conversation where the agent can load it. Its
variables are those of the turn that starts it.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import trio
from msgspec import Raw, Struct

from oubliette.agents import acp_protocol as acp
from oubliette.agents import opencode
from oubliette.agents.acp_protocol import Answer, Update
from oubliette.agents.base import Conversation, Program, Running, Sandbox, Turn, TurnResult
from oubliette.agents.environment import Environment
from oubliette.agents.profile import MAX_LINE, Options, Said, client_of, cut, own_folders
from oubliette.errors import AgentFailed
from oubliette.protocol.jsonrpc import Message
from oubliette.protocol.lines import CLOSED, NEED_DATA, OVERSIZED, LineReader

# How long an agent may take to start and to open a session: it starts our client, and loads a conversation, in it.
START_SECONDS: Final = 120.0
# How long a cancelled turn may take to stop. After that the process is ended.
CANCEL_SECONDS: Final = 2.0
# How long the end of the process may take: politely, by force, and somebody has to notice.
END_SECONDS: Final = 15.0
# Between the end of stdout and that of the process.
_EXIT_SECONDS: Final = 2.0
_CHUNK: Final = 64 * 1024
# What our client needs of the environment, should the agent pass on none of it.
_PASSED_ON: Final = "OUBLIETTE_API_KEY"
_FORGOTTEN: Final = "[the agent was started again; it does not know what was said before]"

OnUpdate = Callable[[Update], Awaitable[None]]
T = TypeVar("T", bound=Struct)


class AcpAgent:
    """An agent that speaks the Agent Client Protocol. Its `options` have no use for an endpoint and its key."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @asynccontextmanager
    async def converse(self, sandbox: Sandbox) -> AsyncIterator[Conversation]:
        """A conversation with one process, which is started by the first turn."""
        for name, data in opencode.INSTALLED.items():
            await sandbox.write(name, data)
        async with trio.open_nursery() as nursery:
            yield _Conversation(sandbox, self._options, nursery)
            nursery.cancel_scope.cancel()


class _Process:
    """One run of the agent's program. One request of ours is under way at a time.

    `over` is set when there is nothing left of it; `is_silent` says already before that nothing more will be heard.
    """

    def __init__(self, *, free_hand: bool) -> None:
        self.over = trio.Event()
        self.is_silent = False
        self.exit_code = 0
        self.complaint = ""
        self._free_hand = free_hand
        self._scope = trio.CancelScope()
        self._stdin: trio.abc.SendStream
        self._writing = trio.StrictFIFOLock()
        self._numbers = itertools.count(1)
        self._listener: trio.MemorySendChannel[Answer | Update] | None = None

    async def run(
        self, sandbox: Sandbox, program: Program, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Starts the program and hears it to its end, or until `stop`. Raises what `Sandbox.start` raises."""
        try:
            with self._scope:
                async with sandbox.start(program) as running:
                    self._stdin = running.stdin
                    task_status.started()
                    await self._hear(running)
        finally:
            self.over.set()

    async def _hear(self, running: Running) -> None:
        try:
            await self._read_lines(running.stdout)
        finally:
            self._fall_silent()
        with trio.move_on_after(_EXIT_SECONDS):
            self.exit_code = await running.wait()
        self.complaint = running.complaint

    async def _read_lines(self, stdout: trio.abc.ReceiveStream) -> None:
        lines = LineReader(MAX_LINE)
        while (line := lines.next_event()) is not CLOSED:
            if line is NEED_DATA:
                lines.receive_data(bytes(await stdout.receive_some(_CHUNK)))
            elif line is OVERSIZED:
                await self._take(acp.LEFT_OUT)
            elif isinstance(line, bytes):
                await self._take(acp.receive(line))

    async def _take(self, received: Message | Answer | Update | None) -> None:
        if isinstance(received, Message):
            await self._send(self._decide(received))
        elif received is not None and self._listener is not None:
            # Whoever listened may have what it waited for.
            with suppress(trio.BrokenResourceError):
                await self._listener.send(received)

    def _decide(self, asked: Message) -> bytes:
        if asked.method == "session/request_permission":
            return acp.permission(asked, free_hand=self._free_hand)
        return acp.refusal(asked)

    async def _send(self, line: bytes) -> None:
        async with self._writing:
            if self._scope.cancel_called:
                return
            try:
                await self._stdin.send_all(line + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # its end is noticed by its stdout
            except trio.Cancelled:
                # Half a line is written, perhaps: nothing can follow it.
                self._scope.cancel()
                raise

    def _fall_silent(self) -> None:
        self.is_silent = True
        if self._listener is not None:
            self._listener.close()

    async def stop(self) -> None:
        """Ends the process, in bounded time."""
        self._scope.cancel()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + END_SECONDS):
            await self.over.wait()

    async def request(
        self, method: str, params: Mapping[str, Any], *, on_update: OnUpdate | None = None, to_cancel: bytes = b""
    ) -> Raw:
        """Asks the agent, and returns its result. What it tells meanwhile goes to `on_update`, in order.

        Cancelled, it sends `to_cancel` and waits for the answer nevertheless, `CANCEL_SECONDS` at most, or else stops
        the process. Raises `AgentFailed` for an error, and `_GoneError`.
        """
        if self.is_silent:
            raise _GoneError(self)
        number = next(self._numbers)
        self._listener, incoming = trio.open_memory_channel[Answer | Update](0)
        with incoming:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, acp.request(number, method, params))
                try:
                    answer = await _answer(number, incoming, on_update)
                except trio.Cancelled:
                    await self._withdraw(number, incoming, to_cancel)
                    raise
        if answer is None:
            raise _GoneError(self)
        if answer.error:
            raise AgentFailed(f"{method}: {answer.error}")
        return answer.result

    async def _withdraw(
        self, number: int, incoming: trio.MemoryReceiveChannel[Answer | Update], to_cancel: bytes
    ) -> None:
        if to_cancel:
            with trio.move_on_after(CANCEL_SECONDS, shield=True):
                await self._send(to_cancel)
                if await _answer(number, incoming, None) is not None:
                    return
        await self.stop()


async def _answer(
    number: int, incoming: trio.MemoryReceiveChannel[Answer | Update], on_update: OnUpdate | None
) -> Answer | None:
    """Returns the answer to a request, None where the process ends before it."""
    async for received in incoming:
        if isinstance(received, Update):
            if on_update is not None:
                await on_update(received)
        elif received.number == number:
            return received
    return None


class _GoneError(Exception):
    """A process ended where it should have answered."""

    def __init__(self, process: _Process) -> None:
        super().__init__()
        self.process = process


class _Conversation:
    def __init__(self, sandbox: Sandbox, options: Options, nursery: trio.Nursery) -> None:
        self._sandbox = sandbox
        self._options = options
        self._nursery = nursery
        self._process: _Process | None = None
        self._session = ""

    async def turn(self, turn: Turn) -> TurnResult:
        try:
            if self._process is None or self._process.is_silent:
                self._process = await self._start(turn)
            return await self._prompt(self._process, turn)
        except _GoneError as gone:
            return await _death(gone.process)

    async def _start(self, turn: Turn) -> _Process:
        """Returns a process with an open session."""
        if self._process is not None:
            await self._process.stop()
        process = _Process(free_hand=self._options.gives_free_hand(self._sandbox))
        variables = Environment({**self._options.environment, **turn.variables})
        await self._nursery.start(process.run, self._sandbox, self._program(variables))
        try:
            with trio.fail_after(START_SECONDS):
                await self._open(process, turn, variables)
        except BaseException as error:
            await process.stop()
            if isinstance(error, trio.TooSlowError):
                raise AgentFailed(f"it opened no session within {START_SECONDS:g} s") from None
            raise
        return process

    def _program(self, variables: Environment) -> Program:
        # OpenCode is the first of its kind; to others this says nothing.
        own = {**own_folders(self._sandbox.place.home), **opencode.locked_server()}
        environment = Environment({**opencode.SETTINGS, **variables, **own})
        return Program(argv=self._options.command, environment=environment)

    async def _open(self, process: _Process, turn: Turn, variables: Environment) -> None:
        hello = _expect(acp.Hello, await process.request("initialize", acp.HELLO), "initialize")
        if hello.version != acp.PROTOCOL_VERSION:
            raise AgentFailed(f"it speaks version {hello.version} of its protocol, not {acp.PROTOCOL_VERSION}")
        place = self._place(variables)
        if self._session and not (hello.capabilities.can_load and await self._load(process, place)):
            await turn.say(_FORGOTTEN)
            self._session = ""
        if not self._session:
            self._session = await self._new(process, place)

    def _place(self, variables: Environment) -> dict[str, Any]:
        place = self._sandbox.place
        known = {**place.variables, **variables}
        passed_on = {_PASSED_ON: known[_PASSED_ON]} if _PASSED_ON in known else {}
        return acp.place(place.workspace, client_of(place), passed_on)

    async def _load(self, process: _Process, place: dict[str, Any]) -> bool:
        try:
            await process.request("session/load", {"sessionId": self._session, **place})
        except AgentFailed:
            return False
        return True

    async def _new(self, process: _Process, place: dict[str, Any]) -> str:
        new = _expect(acp.NewSession, await process.request("session/new", place), "session/new")
        if self._options.model:
            if new.model_option is None:
                raise AgentFailed("it leaves the choice of its model to nobody")
            choice = {"sessionId": new.session, "configId": new.model_option, "value": self._options.model}
            await process.request("session/set_config_option", choice)
        return new.session

    async def _prompt(self, process: _Process, turn: Turn) -> TurnResult:
        hearing = _Telling(turn)
        result = await process.request(
            "session/prompt",
            acp.prompt(self._session, turn.prompt),
            on_update=hearing.on_update,
            to_cancel=acp.cancellation(self._session),
        )
        return await hearing.end(_expect(acp.PromptEnd, result, "session/prompt"))


class _Telling:
    """Tells a turn's owner of what is heard in it."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._updates = acp.TurnUpdates()
        self._last = ""

    async def on_update(self, update: Update) -> None:
        for heard in self._updates.hear(update):
            if isinstance(heard, Said):
                await self._say(heard)
            else:
                await self._turn.report(heard)

    async def _say(self, said: Said) -> None:
        if said.text.strip():
            self._last = said.text
            await self._turn.say(cut(said.text))

    async def end(self, prompt_end: acp.PromptEnd) -> TurnResult:
        for said in self._updates.end():
            await self._say(said)
        if prompt_end.stop_reason not in ("end_turn", "cancelled"):
            await self._turn.say(f"[the agent stopped: {prompt_end.stop_reason[:64]}]")
        return TurnResult(text=cut(self._last), usage=dict(prompt_end.used.usage) or None)


async def _death(process: _Process) -> TurnResult:
    """What there is to say of a process that ended within a turn, where it should not have."""
    await process.stop()
    complaint = process.complaint or "it ended without an answer"
    return TurnResult(text="", exit_code=process.exit_code or 1, complaint=complaint)


def _expect(kind: type[T], result: Raw, method: str) -> T:
    found = acp.read(kind, result)
    if found is None:
        raise AgentFailed(f"{method}: its answer is not one of its protocol")
    return found
