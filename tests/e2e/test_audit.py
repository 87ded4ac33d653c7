"""The audit log of a real daemon, from every door; no secret in it or anywhere else (HAZARDS G17, T7, T15 to T18)."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from oubliette.gate import BURST
from tests.helpers.audit import lines_of
from tests.helpers.http import Api
from tests.helpers.link import open_link
from tests.helpers.mcp_http import initialized
from tests.helpers.mcp_socket import open_socket
from tests.helpers.process import DaemonProcess

LIMIT = 20
WRONG = f"oub_wrong_{'5ec2e7' * 10}beef"
MESSAGE, RESULT, REASON, VALUE = (f"canary-{name}-1f9c" for name in ("message", "result", "reason", "value"))


@pytest.fixture(scope="module")
def audited() -> Iterator[DaemonProcess]:
    """A daemon of its own: its log is searched, and its address book is filled with failures."""
    with DaemonProcess("log: {level: debug}\n") as process:
        yield process


def audit_of(daemon: DaemonProcess) -> Path:
    return daemon.data_dir / "audit.log"


async def noted(daemon: DaemonProcess, on: Any = None, **wanted: Any) -> Any:
    """Waits for a line with these members, on these objects, and returns it."""
    with trio.fail_after(LIMIT):
        while True:
            for line in lines_of(audit_of(daemon)):
                if wanted.items() <= line.items() and (on or {}).items() <= line["on"].items():
                    return line
            await trio.sleep(0.01)


async def make_token(admin: Api, scope: str, **more: Any) -> Any:
    mcp = await initialized(admin)
    return (await mcp.call("token_create", name=f"for {scope}", scope=scope, **more))["structuredContent"]


async def test_the_first_token_is_noted(audited: DaemonProcess) -> None:
    line = await noted(audited, action="token.first")
    assert (line["outcome"], line["on"]["scope"]) == ("ok", "admin")
    assert audited.admin_token.split("_")[1] == line["on"]["token_id"]
    assert stat.S_IMODE(audit_of(audited).stat().st_mode) == 0o600


async def test_every_door_is_told_with_who_and_on_what(audited: DaemonProcess) -> None:
    admin = Api(audited.port, audited.admin_token)
    made = await make_token(admin, "project:default")
    who = {"token_id": made["token_id"], "token": "for project:default"}
    agent = Api(audited.port, made["token"])
    context = {"caller_id": "myapp", "caller_tools": [{"name": "send"}]}
    message = {"message": MESSAGE, "agent": "external", "context": context}

    session = (await agent.post("/sessions", message)).json["session_id"]
    assert (await noted(audited, {"session_id": session}, door="http", **who))["action"] == "session_message"
    mcp = await initialized(agent)
    session = (await mcp.call("session_message", **message))["structuredContent"]["session_id"]
    line = await noted(audited, {"session_id": session}, door="mcp", **who)
    assert (line["action"], line["outcome"], line["on"]["project_id"]) == ("session_message", "ok", "default")
    async with open_socket(agent) as socket:
        await socket.initialize()
        await socket.call("session_end", session_id=session)
        assert (await noted(audited, {"session_id": session}, door="websocket", **who))["action"] == "session_end"

    outer = await admin.start_session()
    async with open_link(outer["socket"]) as link:
        params = {"api_key": made["token"], "tool": "token_create", "arguments": {"name": "x", "scope": "admin"}}
        await link.send({"jsonrpc": "2.0", "id": 1, "method": "oubliette_call_tool", "params": params})
        assert (await link.receive())["error"]["code"] == -32002
    line = await noted(audited, door="link", **who)
    assert (line["action"], line["outcome"], line["inside"]) == ("token_create", "forbidden", outer["session_id"])


async def test_an_answer_that_is_none_of_its_senders_business_is_noted_and_no_other(audited: DaemonProcess) -> None:
    admin = Api(audited.port, audited.admin_token)
    other = await make_token(admin, "admin")
    session = await admin.start_session("send")
    async with admin.events("/events") as events, open_link(session["socket"]) as link:
        await link.call("send")
        request = (await events.next_of("caller_tool_request"))[1]["request_id"]
        stranger = Api(audited.port, other["token"])
        assert (await stranger.answer(session, request, result=RESULT)).status == 403
        assert (await admin.answer(session, request, error=REASON)).status == 204
    line = await noted(audited, {"request_id": request}, action="caller_tool_response")
    assert (line["token_id"], line["outcome"]) == (other["token_id"], "forbidden")
    answers = [line for line in lines_of(audit_of(audited)) if line["action"] == "caller_tool_response"]
    assert len(answers) == 1


async def test_thousands_of_guesses_cost_little_and_lock_nobody_out(audited: DaemonProcess) -> None:
    """HAZARDS T17: from one address, as fast as they are taken. `test_gate.py` has the tens of thousands."""
    admin = Api(audited.port, audited.admin_token)
    answers = await guess(audited, 500)
    before = resident(audited)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_guess_into, answers, audited, 1_500)
        with trio.fail_after(LIMIT):
            for _ in range(20):
                assert (await admin.get("/sessions/nobody")).status == 404
    assert resident(audited) - before < 4 * 1024 * 1024
    assert answers.count(b"HTTP/1.1 ") == 2_000
    told, limited = answers.count(b"HTTP/1.1 401"), answers.count(b"HTTP/1.1 429")
    assert told + limited == 2_000
    assert BURST <= told < BURST + 60
    assert answers.count(b"retry-after: 1\r\n") == limited
    assert await limit_of(audited) == ("429", "limit_exceeded")
    refused = [line for line in lines_of(audit_of(audited)) if line["action"] == "authenticate"]
    assert len(refused) < BURST + 60
    assert (refused[0]["source"], refused[0]["outcome"]) == ("127.0.0.1", "unauthorized")
    assert (await admin.get("/sessions/nobody")).status == 404


async def guess(daemon: DaemonProcess, count: int) -> bytearray:
    answers = bytearray()
    await _guess_into(answers, daemon, count)
    return answers


async def _guess_into(answers: bytearray, daemon: DaemonProcess, count: int) -> None:
    """Sends requests with wrong tokens, a hundred at a time on one connection, and appends what comes back."""
    head = f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {WRONG}\r\n\r\n".encode()
    async with await trio.open_tcp_stream("127.0.0.1", daemon.port) as stream:
        for _ in range(count // 100):
            await stream.send_all(head * 100)
            before, there = len(answers), 0
            while there < 100:
                answers += await stream.receive_some(65536)
                there = answers.count(b"HTTP/1.1 ", before)
        # The last body.
        while not answers.endswith(b"}}"):
            answers += await stream.receive_some(65536)


async def limit_of(daemon: DaemonProcess) -> tuple[str, str]:
    """What one more wrong token is told, once the limit bites."""
    with trio.fail_after(LIMIT):
        while True:
            reply = await Api(daemon.port, WRONG).post("/mcp", {})
            if reply.status == 429:
                assert reply.json["error"]["code"] == -32006
                return str(reply.status), reply.error["data"]["kind"]


def resident(daemon: DaemonProcess) -> int:
    return int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1]) * 4096


async def test_no_secret_is_anywhere_but_where_it_belongs(audited: DaemonProcess) -> None:
    """HAZARDS G17, T18, over everything that the tests of this file made the daemon write."""
    admin = Api(audited.port, audited.admin_token)
    mcp = await initialized(admin)
    made = [await make_token(admin, scope) for scope in ("admin", "project:default:ro")]
    for each in made:
        await Api(audited.port, each["token"]).get(f"/sessions/{each['token']}")
        await mcp.call("session_end", session_id=each["token"])
        await mcp.call("token_revoke", token_id=each["token_id"])
        await Api(audited.port, each["token"]).get("/sessions/x")
    for env in ({"SECRET": VALUE}, {"bad name": VALUE}, {"SECRET": f"{VALUE}\0"}):
        await mcp.call("project_create", name="canaries", env=env)
    await noted(audited, {"token_id": made[-1]["token_id"]}, action="token_revoke")
    pages = (await mcp.call("session_list", limit=1000))["structuredContent"]["sessions"]
    events = b"".join([await _events_of(admin, each["session_id"]) for each in pages])

    tokens = [each["token"].encode() for each in made]
    secrets = [token.rpartition(b"_")[2] for token in [*tokens, audited.admin_token.encode(), WRONG.encode()]]
    log, audit = audited.log.read_bytes(), audit_of(audited).read_bytes()
    for secret in [*secrets, VALUE.encode()]:
        assert secret not in log + audit + command_line(audited) + events
    for canary in (MESSAGE, RESULT, REASON):
        assert canary.encode() not in audit
    where = {path.relative_to(audited.data_dir).parts[0] for path in files_with(audited.data_dir, secrets)}
    assert where == {"admin.token"}
    assert len(list(files_with(audited.data_dir, [VALUE.encode()]))) == 1


def command_line(daemon: DaemonProcess) -> bytes:
    return Path(f"/proc/{daemon.pid}/cmdline").read_bytes()


async def _events_of(api: Api, session_id: str) -> bytes:
    return (await api.get(f"/sessions/{session_id}/events?limit=1000", {"Accept": "application/json"})).body


def files_with(folder: Path, secrets: list[bytes]) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if any(secret in data for secret in secrets):
                yield path
