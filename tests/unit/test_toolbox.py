"""The daemon's own tools: what they take, who may call them, what they return (WIRE section 6; HAZARDS T7, T8, T14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from oubliette.agents.environment import Environment
from oubliette.errors import Conflict, Forbidden, InvalidParams, NotFound, OublietteError
from oubliette.relay import Pending
from oubliette.scopes import Scope
from oubliette.session import Session
from oubliette.tokens import Principal
from oubliette.toolbox import box
from oubliette.toolbox.call import Call
from oubliette.toolbox.declare import AnyTool
from tests.helpers.agents import FakeAgent
from tests.helpers.domain import OTHER, OWNER, STRANGER, Domain, open_domain

TOOLS = list(box.TOOLS.values())
ANY_TYPE = {"result", "context"}

# Schemas


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_tools_entry_is_what_mcp_asks_for(tool: AnyTool) -> None:
    entry = tool.entry
    assert entry["name"] == tool.name
    assert entry["description"].endswith(".")
    assert ("outputSchema" in entry) == (tool.pack != "ot")
    for schema in (entry["inputSchema"], entry.get("outputSchema", entry["inputSchema"])):
        assert schema["type"] == "object"
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    assert entry["inputSchema"]["additionalProperties"] is False
    for name, schema in entry["inputSchema"]["properties"].items():
        assert schema["description"], name
    annotations = entry["annotations"]
    assert annotations["readOnlyHint"] is (tool.access == "read")
    assert not (annotations["readOnlyHint"] and annotations["destructiveHint"])
    assert msgspec.json.decode(msgspec.json.encode(entry)) == entry


def test_numbers_have_bounds() -> None:
    properties = box.TOOLS["session_events"].entry["inputSchema"]["properties"]
    assert (properties["limit"]["minimum"], properties["limit"]["maximum"]) == (1, 1000)
    assert (properties["wait_seconds"]["minimum"], properties["wait_seconds"]["maximum"]) == (0, 30)
    assert properties["since_index"]["minimum"] == 0


def test_a_response_takes_any_result_and_a_string_or_null_as_error() -> None:
    schema = jsonschema_rs.validator_for(box.TOOLS["caller_tool_response"].entry["inputSchema"])
    ids = {"session_id": "s", "request_id": "r"}
    results: list[Any] = [None, 1, "x", [], {}, True]
    for result in results:
        assert schema.is_valid({**ids, "result": result})
    assert schema.is_valid({**ids, "error": None})
    assert schema.is_valid({**ids, "error": ""})
    assert not schema.is_valid({**ids, "error": 5})


def test_what_is_destructive_says_so() -> None:
    destructive = {tool.name for tool in TOOLS if tool.entry["annotations"]["destructiveHint"]}
    deletions = {"project_delete", "workspace_delete", "session_cleanup"}
    assert destructive == {"session_end", "token_revoke"} | deletions


# Arguments

VALID: dict[str, dict[str, Any]] = {
    "project_create": {
        "name": "x",
        "description": "x",
        "agent": "external",
        "runtime": "process",
        "env": {"A": "x"},
        "packs": ["ot"],
    },
    "project_list": {},
    "project_options": {},
    "project_get": {"project_id": "prj"},
    "project_delete": {"project_id": "prj", "force": False},
    "workspace_create": {"project_id": "prj", "name": "x", "env": {"A": "x"}},
    "workspace_delete": {"project_id": "prj", "workspace_id": "wsp"},
    "workspace_list": {"project_id": "prj"},
    "session_message": {
        "message": "x",
        "project_id": "default",
        "workspace_id": "wsp",
        "session_id": "ses",
        "agent": "external",
        "interrupt": False,
        "wait": False,
    },
    "session_list": {"project_id": "default", "status": "idle", "limit": 10, "cursor": "x"},
    "session_get": {"session_id": "ses"},
    "session_events": {"session_id": "ses", "since_index": 0, "limit": 10, "wait_seconds": 0, "follow": False},
    "session_end": {"session_id": "ses"},
    "session_cleanup": {"project_id": "prj", "max_age_hours": 1},
    "caller_tool_response": {"session_id": "ses", "request_id": "req", "error": "no"},
    "caller_tool_progress": {"session_id": "ses", "request_id": "req", "progress": 1, "total": 2, "message": "x"},
    "token_create": {"name": "x", "scope": "admin", "expires_in_seconds": 1},
    "token_list": {},
    "token_revoke": {"token_id": "x"},
    "ot_tools": {"name": "x", "pattern": "x", "pack": "x", "compact": True},
    "ot_packs": {"name": "x", "pattern": "x"},
    "ot_aliases": {"name": "x", "pattern": "x"},
    "ot_snippets": {"name": "x", "pattern": "x"},
    "ot_config": {},
    "ot_health": {},
    "ot_notify": {"topic": "x", "message": "x"},
    "ot_reload": {},
}


def refusal(tool: str, arguments: Any) -> InvalidParams:
    with pytest.raises(InvalidParams) as refused:
        box.TOOLS[tool].decode(msgspec.json.encode(arguments))
    assert refused.value.message.startswith(f"{tool}: ")
    return refused.value


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_arguments_of_the_right_types_are_taken(tool: AnyTool) -> None:
    assert set(VALID[tool.name]) | ANY_TYPE >= set(tool.entry["inputSchema"]["properties"])
    tool.decode(msgspec.json.encode(VALID[tool.name]))


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_an_unknown_argument_is_refused_by_name(tool: AnyTool) -> None:
    error = refusal(tool.name, {**VALID[tool.name], "sesion_id": "typo"})
    assert (error.field, "sesion_id" in error.message) == ("sesion_id", True)


@pytest.mark.parametrize(
    ("tool", "argument"),
    [(tool.name, name) for tool in TOOLS for name in tool.entry["inputSchema"].get("required", [])],
)
def test_a_missing_argument_is_refused_by_name(tool: str, argument: str) -> None:
    arguments = {name: value for name, value in VALID[tool].items() if name != argument}
    error = refusal(tool, arguments)
    assert (error.field, argument in error.message) == (argument, True)


@pytest.mark.parametrize(("tool", "argument"), [(tool, name) for tool, valid in VALID.items() for name in valid])
def test_an_argument_of_a_wrong_type_is_refused_by_name(tool: str, argument: str) -> None:
    right = VALID[tool][argument]
    wrongs: list[Any] = [[], {}, "x" if isinstance(right, int | float) else 5]
    for wrong in wrongs:
        if type(wrong) is type(right):
            continue
        error = refusal(tool, {**VALID[tool], argument: wrong})
        assert (error.field, argument in error.message) == (argument, True)


@pytest.mark.parametrize(
    ("tool", "argument", "values"),
    [
        ("session_list", "limit", [0, -1, 1001, 1.5, True]),
        ("session_events", "limit", [0, 1001]),
        ("session_events", "since_index", [-1, 0.5]),
        ("session_events", "wait_seconds", [-0.1, 30.1, 10**400]),
        ("session_list", "status", ["nope", ""]),
        ("session_cleanup", "max_age_hours", [-1, 10**9]),
        ("project_create", "description", ["x" * 4097]),
        ("token_create", "name", ["", "x" * 201]),
        ("token_create", "expires_in_seconds", [0, -1, 10**12]),
        ("caller_tool_progress", "message", ["x" * 4097]),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(tool: str, argument: str, values: list[Any]) -> None:
    for value in values:
        text = msgspec.json.encode({**VALID[tool], argument: None}).replace(
            f'"{argument}":null'.encode(), f'"{argument}":{value if isinstance(value, int) else ""}'.encode()
        )
        if not isinstance(value, int) or isinstance(value, bool):
            text = msgspec.json.encode({**VALID[tool], argument: value})
        with pytest.raises(InvalidParams) as refused:
            box.TOOLS[tool].decode(text)
        assert refused.value.field == argument


@pytest.mark.parametrize("arguments", [b"[]", b"5", b'"x"', b"null"])
def test_arguments_that_are_no_object_are_refused(arguments: bytes) -> None:
    with pytest.raises(InvalidParams, match="Expected `object`"):
        box.TOOLS["session_get"].decode(arguments)


@pytest.mark.parametrize("context", [5, [], "x", {"caller_id": "a b"}, {"caller_tools": []}])
async def test_a_context_that_is_none_is_refused_by_name(tmp_path: Path, context: Any) -> None:
    async with open_domain(tmp_path) as domain:
        with pytest.raises(InvalidParams) as refused:
            await domain.run(OWNER, "session_message", message="x", context=context)
        assert refused.value.field is not None
        assert refused.value.field.startswith("context")
        assert domain.records.stored == []


# Who may call what

SCOPES = {
    "admin": Scope(None, False),
    "admin:ro": Scope(None, True),
    "own": Scope("default", False),
    "own:ro": Scope("default", True),
    "other": Scope("elsewhere", False),
    "other:ro": Scope("elsewhere", True),
}

# One column a scope, in the order of SCOPES: y allowed, f forbidden, n not_found. "Outside the asker's scope a thing is
# `not_found`; within it, what may not be done is `forbidden`". Every session here belongs to another token.
ALLOWED = {
    "project_create": "yfffff",
    "project_list": "yyyyyy",
    "project_options": "yyyyyy",
    "project_get": "yyyynn",
    "project_delete": "yfyfnf",
    "workspace_create": "yfyfnf",
    "workspace_delete": "yfyfnf",
    "workspace_list": "yyyynn",
    "session_message": "yfyfnf",
    "session_list": "yyyynn",
    "session_get": "yyyynn",
    "session_events": "yyyynn",
    "session_end": "yfyfnf",
    "session_cleanup": "yfyfnf",
    "caller_tool_response": "ffffnf",
    "caller_tool_progress": "ffffnf",
    "token_create": "yfffff",
    "token_list": "yfffff",
    "token_revoke": "yfffff",
    "ot_tools": "yyyyyy",
    "ot_packs": "yyyyyy",
    "ot_aliases": "yyyyyy",
    "ot_snippets": "yyyyyy",
    "ot_config": "yyyyyy",
    "ot_health": "yyyyyy",
    "ot_notify": "yfffff",
    "ot_reload": "yfffff",
}
OWNERS_ALONE = {"caller_tool_response", "caller_tool_progress"}


def test_every_tool_has_a_row() -> None:
    assert set(ALLOWED) == set(VALID) == set(box.TOOLS)


async def arguments_for(tool: str, domain: Domain, session: Session, pending: Pending) -> dict[str, Any]:
    token_id = (await domain.services.tokens.create("x", "admin"))[1].token_id
    project = domain.services.projects.project(session.project_id)
    workspace = await domain.services.projects.create_workspace(project, "x", Environment())
    arguments: dict[str, dict[str, Any]] = {
        "project_create": {"name": "x"},
        "project_list": {},
        "project_options": {},
        "project_get": {"project_id": project.project_id},
        "project_delete": {"project_id": project.project_id, "force": True},
        "workspace_create": {"project_id": project.project_id, "name": "y"},
        "workspace_delete": {"project_id": project.project_id, "workspace_id": workspace.workspace_id},
        "workspace_list": {"project_id": project.project_id},
        "session_message": {"session_id": session.id, "message": "x"},
        "session_list": {"project_id": project.project_id},
        "session_get": {"session_id": session.id},
        "session_events": {"session_id": session.id},
        "session_end": {"session_id": session.id},
        "session_cleanup": {"project_id": project.project_id},
        "caller_tool_response": {"session_id": session.id, "request_id": pending.request_id, "result": 1},
        "caller_tool_progress": {"session_id": session.id, "request_id": pending.request_id, "progress": 1},
        "token_create": {"name": "x", "scope": "admin"},
        "token_list": {},
        "token_revoke": {"token_id": token_id},
        "ot_notify": {"topic": "x", "message": "x"},
    }
    return arguments.get(tool, {})


async def outcome_of(domain: Domain, principal: Principal, tool: str, arguments: dict[str, Any]) -> str:
    """Calls a tool and says how it went; a result must be what its outputSchema says."""
    try:
        result = await domain.run(principal, tool, **arguments)
    except Forbidden:
        return "f"
    except NotFound:
        return "n"
    if box.TOOLS[tool].is_structured:
        jsonschema_rs.validate(box.TOOLS[tool].entry["outputSchema"], result)
    assert not result.get("isError")
    return "y"


@pytest.mark.parametrize(("tool", "row"), ALLOWED.items())
async def test_the_permission_table(tmp_path: Path, tool: str, row: str) -> None:
    answers = ""
    for scope in SCOPES.values():
        async with open_domain(tmp_path) as domain:
            # Not the project `default`, which nobody can delete.
            own = (await domain.project()).project_id
            if scope.project_id == "default":
                scope = Scope(own, scope.read_only)
            session = await domain.start("send", project_id=own)
            pending = session.relay.begin("send", b"{}")
            arguments = await arguments_for(tool, domain, session, pending)
            answers += await outcome_of(domain, Principal("asker", scope), tool, arguments)
            if tool in OWNERS_ALONE:
                assert [one.request_id for one in map(_request, session.relay.pending_entries())] == [
                    pending.request_id
                ]
                owner = Principal("owner", scope)
                expected = {"f": "y" if not scope.read_only else "f"}.get(answers[-1], answers[-1])
                assert await outcome_of(domain, owner, tool, arguments) == expected
    assert answers == row


class _Request(msgspec.Struct):
    request_id: str


def _request(entry: Any) -> _Request:
    return msgspec.json.decode(entry.data, type=_Request)


async def test_a_scope_is_offered_what_it_may_call() -> None:
    for column, scope in enumerate(SCOPES.values()):
        offered = {tool.name for tool in box.offered(scope)}
        allowed = {tool for tool, row in ALLOWED.items() if row[column] in "yn"}
        assert offered | OWNERS_ALONE == allowed | OWNERS_ALONE


async def test_only_the_owner_declares_tools(tmp_path: Path) -> None:
    """HAZARDS finding 9: any project writer's `message` replaced the event target."""
    async with open_domain(tmp_path) as domain:
        session = await domain.start("send")
        context = {"caller_id": "evil", "caller_tools": [{"name": "send"}]}
        with pytest.raises(Forbidden):
            await domain.run(OTHER, "session_message", session_id=session.id, message="x", context=context)
        with pytest.raises(NotFound):
            await domain.run(STRANGER, "session_message", session_id=session.id, message="x", context=context)
        assert session.declaration is not None
        assert session.declaration.caller_id == "myapp"
        assert session.log.last_index == 2


async def test_a_project_scope_starts_sessions_in_its_own_project_alone(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        own = Principal("own", Scope("default", False))
        assert (await domain.run(own, "session_message", message="x"))["project_id"] == "default"
        with pytest.raises(NotFound):
            await domain.run(own, "session_message", message="x", project_id="elsewhere")
        with pytest.raises(NotFound):
            await domain.run(STRANGER, "session_message", message="x", project_id="default")


async def test_a_foreign_session_and_none_are_told_alike(tmp_path: Path) -> None:
    """HAZARDS G2: "foreign and unknown ids give the same reply"."""
    async with open_domain(tmp_path) as domain:
        session = await domain.start("send")
        for tool in ("session_get", "session_events", "session_end"):
            messages = []
            for id in (session.id, "ses_" + "0" * 32):
                with pytest.raises(NotFound) as refused:
                    await domain.run(STRANGER, tool, session_id=id)
                messages.append(refused.value.message.replace(id, "ID"))
            assert messages[0] == messages[1]


async def test_the_socket_is_shown_to_full_admins_alone(tmp_path: Path) -> None:
    """WIRE section 8: "(admin scope only)"."""
    async with open_domain(tmp_path) as domain:
        session = await domain.start()
        shown = []
        for scope in SCOPES.values():
            if scope.covers("default"):
                view = await domain.run(Principal("asker", scope), "session_get", session_id=session.id)
                shown.append("socket" in view)
        assert shown == [True, False, False, False]
        await domain.sessions.end(session)
        assert "socket" not in await domain.run(OWNER, "session_get", session_id=session.id)


# WIRE section 3, "Answers"


async def ask(domain: Domain) -> tuple[Session, Pending]:
    session = await domain.start("send")
    return session, session.relay.begin("send", b"{}")


@pytest.mark.parametrize(
    ("outcome", "is_error", "value"),
    [
        ({"result": None}, False, b"null"),
        ({"result": None, "error": None}, False, b"null"),
        ({"result": {"n": 1}}, False, b'{"n":1}'),
        ({"result": 0, "error": None}, False, b"0"),
        ({"error": "no"}, True, "no"),
        ({"error": ""}, True, ""),
        ({"result": None, "error": "no"}, True, "no"),
    ],
)
async def test_answers_that_count(tmp_path: Path, outcome: Any, is_error: bool, value: Any) -> None:
    async with open_domain(tmp_path) as domain:
        session, pending = await ask(domain)
        ids = {"session_id": session.id, "request_id": pending.request_id}
        assert await domain.run(OWNER, "caller_tool_response", **ids, **outcome) == {"accepted": True}
        got = pending.outcome
        assert isinstance(got, OublietteError) is is_error
        assert (got.message if isinstance(got, OublietteError) else got) == value


@pytest.mark.parametrize(
    ("outcome", "field"),
    [
        ({}, "result"),
        ({"error": None}, "result"),
        ({"result": 1, "error": "no"}, "error"),
        ({"result": False, "error": ""}, "error"),
        ({"result": 1, "error": 5}, "error"),
    ],
)
async def test_answers_that_do_not_count_leave_the_request_waiting(tmp_path: Path, outcome: Any, field: str) -> None:
    """HAZARDS F8."""
    async with open_domain(tmp_path) as domain:
        session, pending = await ask(domain)
        ids = {"session_id": session.id, "request_id": pending.request_id}
        with pytest.raises(InvalidParams) as refused:
            await domain.run(OWNER, "caller_tool_response", **ids, **outcome)
        assert refused.value.field == field
        await domain.run(OWNER, "caller_tool_response", **ids, result=1)


async def test_a_refused_answer_is_logged_as_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_domain(tmp_path) as domain:
        session, pending = await ask(domain)
        ids = {"session_id": session.id, "request_id": pending.request_id}
        refused: list[tuple[Principal, dict[str, Any], type[OublietteError]]] = [
            (OWNER, {}, InvalidParams),
            (OTHER, {"result": 1}, Forbidden),
            (STRANGER, {"result": 1}, NotFound),
        ]
        for principal, outcome, error in refused:
            caplog.clear()
            with pytest.raises(error):
                await domain.run(principal, "caller_tool_response", **ids, **outcome)
            (line,) = [record for record in caplog.records if "caller_tool.response failed" in record.getMessage()]
            assert line.levelname == "WARNING"
            assert error.kind in line.getMessage()
        caplog.clear()
        await domain.run(OWNER, "caller_tool_response", **ids, result=1)
        assert caplog.records == []


async def test_a_result_is_passed_on_as_it_was_spelled(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        session, pending = await ask(domain)
        text = b'{"session_id":"%b","request_id":"%b","result":{"b":1.10,"a":1e400}}'
        arguments = text % (session.id.encode(), pending.request_id.encode())
        tool = box.TOOLS["caller_tool_response"]
        await box.run(Call(principal=OWNER, services=domain.services, door="mcp"), tool, arguments)
        assert pending.outcome == b'{"b":1.10,"a":1e400}'


@pytest.mark.parametrize(("principal", "error"), [(OTHER, Forbidden), (STRANGER, NotFound)])
async def test_nobody_but_the_owner_answers(tmp_path: Path, principal: Principal, error: type[OublietteError]) -> None:
    """FIELD section 2, defect 6; HAZARDS T7, F7: the request is untouched and still the owner's to answer."""
    async with open_domain(tmp_path) as domain:
        session, pending = await ask(domain)
        ids = {"session_id": session.id, "request_id": pending.request_id}
        before = len(domain.records.stored)
        for _ in range(2):
            with pytest.raises(error):
                await domain.run(principal, "caller_tool_response", **ids, result="stolen")
            with pytest.raises(error):
                await domain.run(principal, "caller_tool_progress", **ids, progress=1)
        assert len(domain.records.stored) == before
        await domain.run(OWNER, "caller_tool_response", **ids, result=1)
        with pytest.raises(Conflict):
            await domain.run(OWNER, "caller_tool_response", **ids, result=1)


async def test_a_request_is_answered_in_its_own_session_alone(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        _, pending = await ask(domain)
        other, _ = await ask(domain)
        with pytest.raises(NotFound):
            await domain.run(
                OWNER, "caller_tool_response", session_id=other.id, request_id=pending.request_id, result=1
            )
        assert pending.request_id not in other.relay._ended


# Pages


async def test_sessions_are_listed_newest_first_in_pages(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start()
        await domain.sessions.end(session)
        # Two of a second: their ids tell them apart.
        ages = {f"ses_{number}": f"2026-01-01T00:00:0{number // 2}Z" for number in range(5)}
        domain.records.saved = {
            id: msgspec.structs.replace(session.record, session_id=id, created_at=age) for id, age in ages.items()
        }
        got: list[str] = []
        cursor: dict[str, str] = {}
        for size in (2, 2, 1):
            page = await domain.run(OWNER, "session_list", limit=2, **cursor)
            assert len(page["sessions"]) == size
            got += [session["session_id"] for session in page["sessions"]]
            cursor = {"cursor": page["next_cursor"]} if "next_cursor" in page else {}
        assert (got, cursor) == (["ses_4", "ses_3", "ses_2", "ses_1", "ses_0"], {})


@pytest.mark.parametrize("cursor", ["", "nope", "====", "WzFd", "é", "W10=", "\0"])
async def test_a_cursor_that_nobody_gave_is_refused_by_name(tmp_path: Path, cursor: str) -> None:
    async with open_domain(tmp_path) as domain:
        with pytest.raises(InvalidParams) as refused:
            await domain.run(OWNER, "session_list", cursor=cursor)
        assert refused.value.field == "cursor"


async def test_a_list_has_filters(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        running, ended = await domain.start(), await domain.start()
        await domain.sessions.end(ended)
        await wait_all_tasks_blocked()
        page = await domain.run(OWNER, "session_list", status="ended")
        assert [one["session_id"] for one in page["sessions"]] == [ended.id]
        page = await domain.run(OWNER, "session_list", status="running", project_id="default")
        assert [one["session_id"] for one in page["sessions"]] == [running.id]


async def test_events_come_in_pages(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start()
        for _ in range(4):
            session.message("x")
        got: list[int] = []
        while True:
            since = got[-1] if got else 0
            page = await domain.run(OWNER, "session_events", session_id=session.id, since_index=since, limit=2)
            assert page["last_index"] == 6
            if not page["events"]:
                break
            assert len(page["events"]) == 2
            got += [event["index"] for event in page["events"]]
        assert got == [1, 2, 3, 4, 5, 6]


# Polling


async def test_a_poll_returns_as_soon_as_there_is_an_event(tmp_path: Path, autojump_clock: MockClock) -> None:
    """FIELD section 2, defect 7: a request is an event like any other, and polls get it."""
    async with open_domain(tmp_path) as domain:
        session = await domain.start("send")
        pages: list[Any] = []

        async def poll() -> None:
            arguments = {"session_id": session.id, "since_index": 2, "wait_seconds": 30}
            pages.append(await domain.run(OWNER, "session_events", **arguments))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await trio.sleep(5)
            assert session.relay.is_attached
            pending = session.relay.begin("send", b"{}")
        assert trio.current_time() == 5.0
        assert [event["type"] for event in pages[0]["events"]] == ["caller_tool_request"]
        assert pending.given
        await trio.sleep(14.9)
        assert session.relay.is_attached


async def test_a_poll_without_an_event_returns_when_its_time_is_over(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start()
        page = await domain.run(OWNER, "session_events", session_id=session.id, since_index=2, wait_seconds=7.5)
        assert (page["events"], page["last_index"], trio.current_time()) == ([], 2, 7.5)


@pytest.mark.parametrize(("principal", "wait", "counts"), [(OWNER, 1, True), (OWNER, 0, False), (OTHER, 1, False)])
async def test_only_the_owners_polls_that_wait_count(
    tmp_path: Path, autojump_clock: MockClock, principal: Principal, wait: float, counts: bool
) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start("send")
        await domain.run(principal, "session_events", session_id=session.id, wait_seconds=wait)
        assert session.relay.is_attached is counts


async def test_a_poll_gives_no_more_than_it_returns(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start("send")
        given: list[list[bool]] = []

        async def poll() -> None:
            arguments = {"session_id": session.id, "since_index": 2, "wait_seconds": 30, "limit": 1}
            await domain.run(OWNER, "session_events", **arguments)
            given.append([one.given for one in pending])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await wait_all_tasks_blocked()
            pending = [session.relay.begin("send", b"{}") for _ in range(3)]
        assert given == [[True, False, False]]


async def test_follow_answers_when_the_session_has_ended(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start()
        pages: list[Any] = []

        async def follow() -> None:
            pages.append(await domain.run(OWNER, "session_events", session_id=session.id, follow=True))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await trio.sleep(100)
            assert pages == []
            await domain.sessions.end(session)
        assert [event["type"] for event in pages[0]["events"]] == ["session_started", "message", "session_ended"]
        assert (pages[0]["completed"], pages[0]["failed"]) == (True, False)


async def test_what_a_session_was_started_with_cannot_change(tmp_path: Path) -> None:
    async with open_domain(tmp_path) as domain:
        session = await domain.start()
        same = {"project_id": "default", "workspace_id": session.workspace_id, "agent": "external"}
        await domain.run(OWNER, "session_message", session_id=session.id, message="x", **same)
        for argument in same:
            expected = InvalidParams if argument == "agent" else NotFound
            with pytest.raises(expected) as refused:
                await domain.run(OWNER, "session_message", session_id=session.id, message="x", **{argument: "other"})
            assert refused.value.field == argument


@pytest.mark.parametrize("suffix", ["", ":ro"])
async def test_a_token_for_a_project_that_is_not_there_is_issued_with_a_warning(tmp_path: Path, suffix: str) -> None:
    async with open_domain(tmp_path) as domain:
        for scope in ("admin", "admin:ro", f"project:default{suffix}"):
            assert "warnings" not in await domain.run(OWNER, "token_create", name="x", scope=scope)
        made = await domain.run(OWNER, "token_create", name="x", scope=f"project:acme{suffix}")
        assert made["token"]
        assert "no project 'acme'" in made["warnings"][0]


async def test_an_agent_does_not_wait_for_the_turn_after_its_own(tmp_path: Path) -> None:
    """With a key it may message its own session, but that turn cannot begin before this one ends."""
    async with open_domain(tmp_path, agents={"fake": FakeAgent()}) as domain:
        session = await domain.start(agent="fake")
        arguments = msgspec.json.encode({"message": "again", "session_id": session.id, "wait": True})
        inside = Call(principal=OWNER, services=domain.services, door="link", inside=session.id)
        with trio.fail_after(5), pytest.raises(InvalidParams) as refused:
            await box.run(inside, box.TOOLS["session_message"], arguments)
        assert refused.value.field == "wait"
        outside = Call(principal=OWNER, services=domain.services, door="mcp")
        with trio.fail_after(5):
            answer = await box.run(outside, box.TOOLS["session_message"], arguments)
        assert msgspec.json.decode(answer)["text"] == "again"
