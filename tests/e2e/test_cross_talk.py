"""Twenty sessions of four tokens, the same JSON-RPC ids on every link, disconnects at random: nothing is misrouted.

HAZARDS G13, T4 to T6, T10; FIELD section 2, defects 3 and 5.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import trio

from tests.helpers.http import Api
from tests.helpers.link import AgentLink, open_link
from tests.helpers.mcp_http import initialized
from tests.helpers.process import DaemonProcess

OWNERS, SESSIONS_EACH, CALLS_EACH = 4, 5, 100
SECONDS = 60
CONFIG = "relay: {disconnect_grace_seconds: 20, attach_grace_seconds: 20}"


@pytest.fixture(scope="module")
def own_daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess(CONFIG) as process:
        yield process


class Owner:
    """One caller: a token, its sessions, a stream that breaks off now and then, and who answers for it."""

    def __init__(self, soak: Soak, number: int, token: str) -> None:
        self.soak = soak
        self.number = number
        self.random = Random(number)
        self.api = Api(soak.port, token)
        self.sessions: dict[str, Any] = {}
        self.asked, self.to_answer = trio.open_memory_channel[Any](10_000)
        self.seen: set[str] = set()

    async def start(self) -> None:
        for _ in range(SESSIONS_EACH):
            session = await self.api.start_session("echo")
            self.sessions[session["session_id"]] = session

    async def listen(self) -> None:
        """Follows all its sessions; comes back with its last id, or with none."""
        headers: dict[str, str] = {}
        while True:
            async with self.api.events("/events", headers) as events:
                for _ in range(self.random.randint(50, 200)):
                    sse = await events.next()
                    headers = {"Last-Event-ID": sse.id} if sse.id else headers
                    self.take(json.loads(sse.data))
            headers = headers if self.random.random() < 0.7 else {}

    def take(self, event: Any) -> None:
        assert event["session_id"] in self.sessions, "an event of somebody else's session"
        if event["type"] == "caller_tool_request" and event["request_id"] not in self.seen:
            self.seen.add(event["request_id"])
            self.asked.send_nowait(event)

    async def answer(self) -> None:
        """Answers over one connection; now and then somebody else tries first."""
        async with await trio.open_tcp_stream("127.0.0.1", self.soak.port) as stream:
            async for event in self.to_answer:
                if self.random.random() < 0.05:
                    thief = self.soak.owners[self.number - 1]
                    assert await thief.post_answer(stream, event) == 403
                status = await self.post_answer(stream, event)
                assert status in (204, 409), status
                self.soak.counts[f"answered {status}"] += 1

    async def post_answer(self, stream: trio.SocketStream, event: Any) -> int:
        """Sends an answer and returns its status; the connection stays open."""
        body = json.dumps({"result": {**event["arguments"], "by": self.number}}).encode()
        path = f"/sessions/{event['session_id']}/requests/{event['request_id']}"
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.soak.port}\r\nAuthorization: Bearer {self.api.token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        await stream.send_all(head.encode() + body)
        response = b""
        while not is_whole(response):
            response += await stream.receive_some(65536)
        return int(response.split()[1])


def is_whole(response: bytes) -> bool:
    """Whether an HTTP response, with a body or without, is there to its end."""
    head, end, body = response.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return bool(end) and len(body) >= int(length or 0)


class Soak:
    def __init__(self, port: int) -> None:
        self.port = port
        self.owners: list[Owner] = []
        self.counts: Counter[str] = Counter()

    async def run(self, tokens: list[str]) -> None:
        self.owners = [Owner(self, number, token) for number, token in enumerate(tokens)]
        async with trio.open_nursery() as callers:
            for owner in self.owners:
                await owner.start()
                callers.start_soon(owner.listen)
                for _ in range(2):
                    callers.start_soon(owner.answer)
            async with trio.open_nursery() as agents:
                for owner in self.owners:
                    for session in owner.sessions.values():
                        agents.start_soon(self.agent, owner, session)
            callers.cancel_scope.cancel()

    async def agent(self, owner: Owner, session: Any) -> None:
        """Calls in bursts with ids from 0 on, each on a new link; now and then it goes without its answers."""
        random = Random(session["session_id"])
        done = 0
        while done < CALLS_EACH:
            tags = [f"{session['session_id']}/{done + number}" for number in range(10)]
            async with open_link(session["socket"]) as link:
                for id, tag in enumerate(tags):
                    await link.call("echo", {"tag": tag}, id=id)
                if random.random() < 0.1:
                    self.counts["left"] += len(tags)
                    continue
                done += await self.take_answers(link, owner, tags)

    async def take_answers(self, link: AgentLink, owner: Owner, tags: list[str]) -> int:
        """Returns how many calls were answered; the others came when nobody listened."""
        answered = 0
        for _ in tags:
            answer = await link.receive()
            if "error" in answer:
                assert answer["error"]["code"] == -32003, answer
                self.counts["nobody listened"] += 1
            else:
                assert answer["result"] == {"tag": tags[answer["id"]], "by": owner.number}, "misrouted"
                answered += 1
        self.counts["right"] += answered
        return answered


async def make_tokens(daemon: DaemonProcess) -> list[str]:
    mcp = await initialized(Api(daemon.port, daemon.admin_token))
    made = [await mcp.call("token_create", name=f"owner {number}", scope="admin") for number in range(OWNERS)]
    return [one["structuredContent"]["token"] for one in made]


async def test_two_thousand_tagged_calls_all_come_back_to_who_made_them(own_daemon: DaemonProcess) -> None:
    soak = Soak(own_daemon.port)
    with trio.fail_after(SECONDS):
        await soak.run(await make_tokens(own_daemon))
    assert soak.counts["right"] >= OWNERS * SESSIONS_EACH * CALLS_EACH
    assert soak.counts["answered 204"] >= soak.counts["right"]
    assert soak.counts["left"], "some agents went without their answers"
    own_daemon.stop()
    errors = [line for line in own_daemon.log_text.splitlines() if '"level": "error"' in line]
    assert errors == []
