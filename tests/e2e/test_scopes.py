"""Every tool × every scope × own, foreign and missing project × every door, against WIRE section 6 as written down in
`tests/helpers/verdicts.py` (HAZARDS G2, T5, T8, T9, T12, T14, T41, and check 4 of its section 5).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest

from oubliette.toolbox import box
from tests.helpers.http import Api, Reply
from tests.helpers.link import AgentLink, open_link
from tests.helpers.mcp_http import McpHttp, initialized
from tests.helpers.mcp_socket import open_socket
from tests.helpers.verdicts import (
    NOT_ON_LINKS,
    PLACES,
    SCOPES,
    TABLE,
    Where,
    is_offered,
    kind_of_result,
    scope_of,
    verdict,
)

Ask = Callable[[str, Any], Awaitable[str]]
KINDS = {-32001: "unauthorized", -32002: "forbidden", -32602: "unknown"}
STATUSES = {200: "ok", 201: "ok", 202: "ok", 204: "ok", 401: "unauthorized", 403: "forbidden", 404: "not_found"}


class Place:
    """A project with a workspace and two sessions of an admin's, and things that may be deleted."""

    def __init__(self, admin: McpHttp, project: Any) -> None:
        self.project_id = project["project_id"]
        self._admin = admin

    async def fill(self) -> None:
        self.session = await self._start()
        self.to_end = await self._start()

    async def arguments(self, tool: str) -> Any:
        """Returns arguments that are right for `tool` in every way but what the asker's scope says."""
        project = {"project_id": self.project_id}
        session = {"session_id": self.session}
        match tool:
            case "project_delete":
                return {"project_id": (await make_project(self._admin))["project_id"], "force": True}
            case "workspace_delete":
                workspace = await self._do("workspace_create", **project)
                return {**project, "workspace_id": workspace["workspace_id"]}
            case "session_message":
                return {**project, "message": "hi", "agent": "external"}
            case "session_end":
                return {"session_id": self.to_end}
            case "session_get" | "session_events":
                return session
            case "caller_tool_response":
                return {**session, "request_id": "x", "result": 1}
            case "caller_tool_progress":
                return {**session, "request_id": "x", "progress": 1}
            case _:
                return project

    async def _start(self) -> str:
        session = await self._do("session_message", message="hi", agent="external", project_id=self.project_id)
        return str(session["session_id"])

    async def _do(self, tool: str, **arguments: Any) -> Any:
        return done(await self._admin.call(tool, **arguments))


class Missing(Place):
    """Ids that nothing has."""

    def __init__(self) -> None:
        self.project_id = "prj_nothing"
        self.session = self.to_end = "ses_nothing"

    async def arguments(self, tool: str) -> Any:
        if tool == "project_delete":
            return {"project_id": self.project_id, "force": True}
        if tool == "workspace_delete":
            return {"project_id": self.project_id, "workspace_id": "wsp_nothing"}
        return await super().arguments(tool)


class World:
    """Two projects, and what lies in neither."""

    def __init__(self, api: Api, admin: McpHttp, own: Place, foreign: Place) -> None:
        self.api = api
        self.admin = admin
        self.places: dict[Where, Place] = {"own": own, "foreign": foreign, "missing": Missing()}

    async def token(self, scope: str) -> str:
        ids = [self.places[where].project_id for where in PLACES[:2]]
        made = await self.admin.call("token_create", name="asker", scope=scope_of(scope, *ids))
        return str(done(made)["token"])

    async def arguments(self, tool: str, where: Where) -> Any:
        if tool == "project_create":
            return {"name": unique()}
        if tool == "token_create":
            return {"name": "x", "scope": "admin"}
        if tool == "token_revoke":
            return {"token_id": done(await self.admin.call("token_create", name="x", scope="admin:ro"))["token_id"]}
        if tool == "ot_notify":
            return {"topic": "notes", "message": "hi"}
        if TABLE[tool][0] == "global":
            return {}
        return await self.places[where].arguments(tool)


def done(result: Any) -> Any:
    assert not result.get("isError"), result
    return result["structuredContent"]


_names = iter(range(1_000_000))


def unique() -> str:
    return f"scopes {next(_names)}"


async def make_project(admin: McpHttp) -> Any:
    return done(await admin.call("project_create", name=unique()))


@asynccontextmanager
async def open_world(api: Api) -> AsyncIterator[World]:
    admin = await initialized(api)
    places = [Place(admin, await make_project(admin)) for _ in range(2)]
    for place in places:
        await place.fill()
    yield World(api, admin, *places)
    for place in places:
        await admin.call("project_delete", project_id=place.project_id, force=True)


# The doors


@asynccontextmanager
async def by_mcp(world: World, token: str) -> AsyncIterator[Ask]:
    mcp = await initialized(Api(world.api.port, token))

    async def ask(tool: str, arguments: Any) -> str:
        return kind_of_result(await mcp.call(tool, **arguments))

    yield ask


@asynccontextmanager
async def by_websocket(world: World, token: str) -> AsyncIterator[Ask]:
    async with open_socket(Api(world.api.port, token)) as socket:
        await socket.initialize()

        async def ask(tool: str, arguments: Any) -> str:
            return kind_of_result(await socket.call(tool, **arguments))

        yield ask


@asynccontextmanager
async def by_link(world: World, token: str) -> AsyncIterator[Ask]:
    """From within a session of the project `default`: it is the key that decides, not the container."""
    async with link_of(world) as link:

        async def ask(tool: str, arguments: Any) -> str:
            answer = await link_call(link, token, tool, arguments)
            return KINDS[answer["error"]["code"]] if "error" in answer else kind_of_result(answer["result"])

        yield ask


@asynccontextmanager
async def by_http(world: World, token: str) -> AsyncIterator[Ask]:
    api = Api(world.api.port, token)

    async def ask(tool: str, arguments: Any) -> str:
        return STATUSES[(await plain(api, tool, arguments)).status]

    yield ask


@asynccontextmanager
async def link_of(world: World) -> AsyncIterator[AgentLink]:
    session = await world.api.start_session()
    async with open_link(session["socket"]) as link:
        yield link
    await world.api.request("DELETE", f"/sessions/{session['session_id']}")


async def link_call(link: AgentLink, key: str, tool: str, arguments: Any) -> Any:
    params = {"api_key": key, "tool": tool, "arguments": arguments}
    await link.send({"jsonrpc": "2.0", "id": 1, "method": "oubliette_call_tool", "params": params})
    return await link.receive()


async def plain(api: Api, tool: str, arguments: Any) -> Reply:
    """The plain route that does what a tool does."""
    rest = {name: value for name, value in arguments.items() if name not in ("session_id", "request_id")}
    session = f"/sessions/{arguments.get('session_id')}"
    request = f"{session}/requests/{arguments.get('request_id')}"
    match tool:
        case "session_message":
            return await api.post("/sessions", rest)
        case "session_get":
            return await api.get(session)
        case "session_events":
            return await api.get(f"{session}/events", {"Accept": "application/json"})
        case "session_end":
            return await api.request("DELETE", session)
        case "caller_tool_response":
            return await api.post(request, rest)
        case "caller_tool_progress":
            return await api.post(f"{request}/progress", rest)
    raise AssertionError(tool)


PLAIN = (
    "session_message",
    "session_get",
    "session_events",
    "session_end",
    "caller_tool_response",
    "caller_tool_progress",
)
DOORS = {"mcp": by_mcp, "websocket": by_websocket, "link": by_link, "http": by_http}


def tools_of(door: str) -> list[str]:
    there = [tool for tool in TABLE if not (door == "link" and tool in NOT_ON_LINKS)]
    return [tool for tool in there if door != "http" or tool in PLAIN]


def is_its_own_end(tool: str, scope: str, where: Where) -> bool:
    """Whether a key would do away with the project that it is for, and so with itself: a test of its own."""
    return tool == "project_delete" and scope.startswith("project:") and verdict(tool, scope, where) == "ok"


# The tests


def test_every_tool_is_in_the_table() -> None:
    assert (box.TOOLS.keys() - TABLE.keys(), TABLE.keys() - box.TOOLS.keys()) == (set(), set())


@pytest.mark.parametrize("door", DOORS)
async def test_what_comes_of_every_call(api: Api, door: str) -> None:
    wrong, count = [], 0
    async with open_world(api) as world:
        for scope in SCOPES:
            async with DOORS[door](world, await world.token(scope)) as ask:
                for tool, where in product(tools_of(door), PLACES):
                    if is_its_own_end(tool, scope, where):
                        continue
                    found, wanted = await ask(tool, await world.arguments(tool, where)), verdict(tool, scope, where)
                    wrong += [] if found == wanted else [f"{scope}: {tool} on {where}: {found}, not {wanted}"]
                    count += 1
    assert wrong == []
    assert count >= len(tools_of(door)) * len(SCOPES) * len(PLACES) - len(SCOPES)


@pytest.mark.parametrize("door", ["mcp", "websocket", "link"])
async def test_a_projects_key_may_do_away_with_its_project(api: Api, door: str) -> None:
    """And is told so, though it is worthless from then on."""
    async with open_world(api) as world, DOORS[door](world, await world.token("project:<own>")) as ask:
        assert await ask("project_delete", {"project_id": world.places["own"].project_id, "force": True}) == "ok"


async def test_what_is_listed(api: Api) -> None:
    async with open_world(api) as world, link_of(world) as link:
        for scope in SCOPES:
            token = await world.token(scope)
            mcp = await initialized(Api(api.port, token))
            listed = {tool["name"] for tool in (await mcp.request("tools/list"))["result"]["tools"]}
            assert {tool for tool in TABLE if is_offered(tool, scope)} == listed & set(TABLE)
            await link.send({"jsonrpc": "2.0", "id": 1, "method": "oubliette_tools", "params": {"api_key": token}})
            there = {tool["name"] for tool in (await link.receive())["result"]["tools"]}
            assert there == listed - NOT_ON_LINKS


async def test_naming_ones_own_project_opens_nobody_elses_things(api: Api) -> None:
    """HAZARDS T12: what is done is decided by whose the thing is, not by what else the call says of it."""
    async with open_world(api) as world:
        own, foreign = world.places["own"], world.places["foreign"]
        listed = done(await world.admin.call("workspace_list", project_id=foreign.project_id))
        theirs = {"project_id": own.project_id, "workspace_id": listed["workspaces"][0]["workspace_id"]}
        talk = {"message": "hi", "agent": "external"}
        token = await world.token("project:<own>")
        for door in ("mcp", "websocket", "link"):
            async with DOORS[door](world, token) as ask:
                session = {"session_id": foreign.session, "project_id": own.project_id, "message": "hi"}
                assert await ask("session_message", session) == "not_found"
                assert await ask("session_message", {**theirs, **talk}) == "not_found"
                assert await ask("workspace_delete", theirs) == "not_found"
        async with by_http(world, token) as ask:
            assert await ask("session_message", {**theirs, **talk}) == "not_found"


async def test_no_key_makes_one_that_may_more(api: Api) -> None:
    """HAZARDS T41: an injected agent cannot mint itself a better key, nor even one like its own."""
    async with open_world(api) as world:
        own = f"project:{world.places['own'].project_id}"
        for scope in ("project:<own>", "project:<own>:ro", "admin:ro"):
            token = await world.token(scope)
            for door in ("mcp", "websocket", "link"):
                async with DOORS[door](world, token) as ask:
                    for wanted in ("admin", "admin:ro", own, f"{own}:ro"):
                        assert await ask("token_create", {"name": "mine", "scope": wanted}) == "forbidden"


async def test_lists_show_a_scope_its_own_project_alone(api: Api) -> None:
    async with open_world(api) as world:
        own, foreign = world.places["own"], world.places["foreign"]
        for scope, others in (("project:<own>", False), ("project:<own>:ro", False), ("admin:ro", True)):
            mcp = await initialized(Api(api.port, await world.token(scope)))
            projects = {each["project_id"] for each in done(await mcp.call("project_list"))["projects"]}
            sessions = {each["session_id"] for each in done(await mcp.call("session_list", limit=1000))["sessions"]}
            assert own.project_id in projects
            assert own.session in sessions
            assert (foreign.project_id in projects, foreign.session in sessions) == (others, others)
            assert others or (projects, sessions) == ({own.project_id}, {own.session, own.to_end})
