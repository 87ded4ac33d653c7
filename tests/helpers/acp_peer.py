"""The agent's end of the Agent Client Protocol, on pipes in memory, as a test plays it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, memory_stream_one_way_pair

from oubliette.agents.acp import AcpAgent
from oubliette.agents.base import Conversation, Program, Running, TurnResult
from oubliette.agents.profile import Options, Permissions
from oubliette.errors import AgentFailed
from tests.helpers.sandbox import HostSandbox, Told

Json = dict[str, Any]
TEXT: Json = {"type": "text", "text": "hello"}


class Peer:
    """The agent's end of one process. `received` are the messages of the client, all of them."""

    def __init__(self, stdin: MemoryReceiveStream, stdout: MemorySendStream) -> None:
        self.received: list[Json] = []
        self._stdin = stdin
        self._stdout = stdout
        self._buffer = b""

    async def receive(self) -> Json:
        """Returns the next message. Raises `EndOfChannel` where the client has hung up."""
        while b"\n" not in self._buffer:
            data = bytes(await self._stdin.receive_some())
            if not data:
                raise trio.EndOfChannel
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        self.received.append(message)
        return dict(message)

    async def send_line(self, line: bytes) -> None:
        await self._stdout.send_all(line + b"\n")

    async def send(self, message: Json) -> None:
        await self.send_line(json.dumps({"jsonrpc": "2.0", **message}).encode())

    async def answer(self, asked: Json, result: Any) -> None:
        await self.send({"id": asked["id"], "result": result})

    async def update(self, kind: str, /, **members: Any) -> None:
        update = {"sessionUpdate": kind, **members}
        await self.send({"method": "session/update", "params": {"sessionId": "s-1", "update": update}})

    async def say(self, text: str, **members: Any) -> None:
        await self.update("agent_message_chunk", content={"type": "text", "text": text}, **members)

    async def open_session(self, *, can_load: bool = False, version: int = 1, **new: Any) -> Json:
        """Takes part in the beginning; returns what session/new or session/load came with."""
        hello = {"protocolVersion": version, "agentCapabilities": {"loadSession": can_load}}
        await self.answer(await self.receive(), hello)
        asked = await self.receive()
        await self.answer(asked, None if asked["method"] == "session/load" else {"sessionId": "s-1", **new})
        return asked

    async def prompt(self) -> Json:
        asked = await self.receive()
        assert asked["method"] == "session/prompt"
        return asked


Behaviour = Callable[[Peer], Awaitable[None]]


class PeerSandbox(HostSandbox):
    """Each program that is started behaves as the next of `behaviours` says; its end is the process's."""

    def __init__(self, folder: Path, behaviours: tuple[Behaviour, ...], variables: dict[str, str]) -> None:
        super().__init__(folder, variables=variables)
        self.peers: list[Peer] = []
        self._behaviours = list(behaviours)

    @asynccontextmanager
    async def start(self, program: Program) -> AsyncIterator[Running]:
        self.programs.append(program)
        running = PeerProcess()
        self.peers.append(running.peer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.run, self._behaviours.pop(0))
            yield running
            nursery.cancel_scope.cancel()


class PeerProcess:
    complaint = "it broke"

    def __init__(self) -> None:
        self.stdin, theirs = memory_stream_one_way_pair()
        self._stdout, self.stdout = memory_stream_one_way_pair()
        self.peer = Peer(theirs, self._stdout)
        self._over = trio.Event()

    async def run(self, behave: Behaviour) -> None:
        await behave(self.peer)
        self._stdout.close()
        self._over.set()

    async def wait(self) -> int:
        await self._over.wait()
        return 3


@asynccontextmanager
async def conversing(
    folder: Path, *behaviours: Behaviour, permissions: Permissions = "sandbox", model: str = "", **variables: str
) -> AsyncIterator[tuple[Conversation, PeerSandbox]]:
    sandbox = PeerSandbox(folder, behaviours, variables)
    agent = AcpAgent(Options(command=("agent", "acp"), permissions=permissions, model=model))
    async with agent.converse(sandbox) as conversation:
        yield conversation, sandbox


async def one_turn(folder: Path, behave: Behaviour, **options: Any) -> tuple[TurnResult, Told, Peer]:
    """Raises what the turn raises."""
    told, failure = Told(), None
    async with conversing(folder, behave, **options) as (conversation, sandbox):
        try:
            result = await conversation.turn(told.turn("hello"))
        except (AgentFailed, OSError) as error:
            failure = error
    if failure is not None:
        raise failure
    return result, told, sandbox.peers[0]


def answering(*updates: tuple[str, Json], **end: Any) -> Behaviour:
    """An agent that tells these updates in one turn, and waits for more."""

    async def behave(peer: Peer) -> None:
        await peer.open_session()
        asked = await peer.prompt()
        for kind, members in updates:
            await peer.update(kind, **members)
        await peer.answer(asked, {"stopReason": "end_turn", **end})
        await trio.sleep_forever()

    return behave


def chunk(text: str, **members: Any) -> tuple[str, Json]:
    return "agent_message_chunk", {"content": {"type": "text", "text": text}, **members}
