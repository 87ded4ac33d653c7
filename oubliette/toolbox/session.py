"""The pack `session`."""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from typing import Annotated, Final, Literal, NoReturn

import msgspec
import trio
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from oubliette import clock
from oubliette.declarations import Declaration, parse_declaration
from oubliette.errors import Forbidden, InvalidParams, NotFound, ShuttingDown
from oubliette.events import FellBehindError
from oubliette.session import Session
from oubliette.starting import NewSession
from oubliette.streams import Stream
from oubliette.toolbox.call import Call
from oubliette.toolbox.declare import tool
from oubliette.turns import TurnInLine

SessionId = Annotated[str, Meta(description="The session's id")]
Status = Literal["starting", "running", "idle", "completed", "failed", "ended", "interrupted"]
# Compiling a caller's schemas can take seconds where they are meant to: longer declarations are read in a thread.
MAX_PARSED_AT_ONCE: Final = 8 * 1024
# A hundred years.
MAX_AGE_HOURS: Final = 876_600
Limit = Annotated[int, Meta(ge=1, le=1000, description="At most so many")]


class NewMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    message: Annotated[str, Meta(description="What the agent is asked to do")]
    project_id: Annotated[str | None, Meta(description="The project of a new session")] = None
    workspace_id: Annotated[str | None, Meta(description="The workspace of a new session")] = None
    session_id: Annotated[str | None, Meta(description="The session to go on with; without it a new one starts")] = None
    agent: Annotated[str | None, Meta(description="The agent profile of a new session")] = None
    context: Annotated[
        Raw | UnsetType,
        Meta(description="caller_id and caller_tools: the tools of yours that the agent may call"),
    ] = UNSET
    interrupt: Annotated[bool, Meta(description="End the turn under way first")] = False
    wait: Annotated[bool, Meta(description="Answer when the turn has ended, with its text")] = False


class OneSession(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    session_id: SessionId


class ListArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    project_id: Annotated[str | None, Meta(description="Only sessions of this project")] = None
    status: Annotated[Status | None, Meta(description="Only sessions in this state")] = None
    limit: Limit = 100
    cursor: Annotated[str | None, Meta(description="next_cursor of the page before")] = None


class EventsArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    session_id: Annotated[str | None, Meta(description="The session whose events are asked for")] = None
    since_index: Annotated[int, Meta(ge=0, description="Events after this index")] = 0
    limit: Limit = 100
    wait_seconds: Annotated[float, Meta(ge=0, le=30, description="Wait so long for an event where there is none")] = 0
    follow: Annotated[
        bool,
        Meta(description="Answer when the session has ended; events come meanwhile, of every session without an id"),
    ] = False


class CleanupArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    project_id: Annotated[
        str | None, Meta(description="Only sessions of this project; without it of all that the token's scope covers")
    ] = None
    max_age_hours: Annotated[
        float, Meta(ge=0, le=MAX_AGE_HOURS, description="Keep those that ended less than so many hours ago")
    ] = 24


class SessionView(Struct, frozen=True, kw_only=True):
    session_id: str
    project_id: str
    workspace_id: str
    status: Status
    agent: str
    runtime: str
    owner: Annotated[str, Meta(description="The token_id of the token that started it")]
    parent_id: str | None
    depth: int
    caller_id: str | None
    caller_tools: list[str]
    created_at: str
    last_index: int
    socket: Annotated[str | UnsetType, Meta(description="Where a client of one's own attaches (external)")] = UNSET
    warnings: list[str] | UnsetType = UNSET
    text: Annotated[str | UnsetType, Meta(description="What the turn said, with wait")] = UNSET


class SessionPage(Struct, frozen=True, kw_only=True):
    sessions: list[SessionView]
    next_cursor: str | UnsetType = UNSET


class Removed(Struct, frozen=True, kw_only=True):
    removed: Annotated[int, Meta(description="How many sessions were removed")]


class EventsPage(Struct, frozen=True, kw_only=True):
    session_id: str
    status: Status
    last_index: Annotated[int, Meta(description="The session's newest index")]
    events: list[Raw]
    completed: Annotated[bool, Meta(description="No turn is under way, and none has failed")]
    failed: Annotated[bool, Meta(description="The session failed or was interrupted")]


@tool("session.message", access="write", target="project", holds=True)
async def session_message(call: Call, arguments: NewMessage) -> SessionView:
    """Starts a session with a message to its agent, or goes on with one."""
    declaration = await _declaration(call, arguments)
    if arguments.session_id is None:
        session, turn = await _start(call, arguments, declaration)
    else:
        session, turn = await _continue(call, arguments, arguments.session_id, declaration)
    warnings = [*(declaration.warnings if declaration else ()), *(() if arguments.session_id else session.warnings)]
    text: str | UnsetType = UNSET
    if turn is not None and arguments.wait:
        await turn.done.wait()
        if turn.error is not None:
            raise turn.error
        text = turn.text
    return view(call, session, text=text, warnings=warnings or UNSET)


@tool("session.list", access="read", target="project")
async def session_list(call: Call, arguments: ListArguments) -> SessionPage:
    """Lists sessions, newest first."""
    sessions = await call.services.sessions.page(
        projects=_projects(call, arguments.project_id),
        status=arguments.status,
        # One more than fits tells whether there is another page.
        limit=arguments.limit + 1,
        before=None if arguments.cursor is None else _from_cursor(arguments.cursor),
    )
    page = sessions[: arguments.limit]
    return SessionPage(
        sessions=[view(call, session) for session in page],
        next_cursor=_to_cursor(page[-1]) if len(sessions) > len(page) else UNSET,
    )


@tool("session.get", access="read", target="project")
async def session_get(call: Call, arguments: OneSession) -> SessionView:
    """Returns one session."""
    session = await call.session(arguments.session_id)
    _name(call, session)
    return view(call, session)


@tool("session.events", access="read", target="project", holds=True)
async def session_events(call: Call, arguments: EventsArguments) -> EventsPage:
    """Returns a session's events after an index; may wait for one, or for the session's end."""
    if arguments.session_id is None:
        return await _follow_all(call, arguments)
    session = await call.session(arguments.session_id)
    _name(call, session)
    if arguments.follow:
        call.follow(session, arguments.since_index)
        await session.over.wait()
    found = await _poll(call, session, arguments)
    return EventsPage(
        session_id=session.id,
        status=session.status,
        last_index=session.log.last_index,
        events=found,
        completed=session.completed,
        failed=session.failed,
    )


async def _follow_all(call: Call, arguments: EventsArguments) -> NoReturn:
    """ "or without `session_id` of all sessions of the principal": only a stream of its own can carry those."""
    if not arguments.follow or call.follower is None:
        raise InvalidParams(
            "session_events: session_id is missing; only a request of MCP 2026-07-28 with follow and a logLevel of "
            "info or lower does without",
            field="session_id",
        )
    await call.follower.everything()
    raise ShuttingDown("the daemon is stopping")


@tool("session.end", access="write", target="project", destructive=True)
async def session_end(call: Call, arguments: OneSession) -> SessionView:
    """Ends a session and its agent; may be repeated."""
    session = await call.session(arguments.session_id)
    await call.services.sessions.end(session)
    return view(call, session)


@tool("session.cleanup", access="write", target="project", destructive=True)
async def session_cleanup(call: Call, arguments: CleanupArguments) -> Removed:
    """Removes ended sessions with their events, for good."""
    projects = _projects(call, arguments.project_id)
    until = clock.seconds_from_now(-arguments.max_age_hours * 3600)
    removed = await call.services.sessions.clean_up(projects, until)
    if removed:
        call.services.changes.announce("resources")
    return Removed(removed=removed)


def view(
    call: Call, session: Session, *, text: str | UnsetType = UNSET, warnings: list[str] | UnsetType = UNSET
) -> SessionView:
    """Returns what the asker may see of a session."""
    caller = session.caller
    # "With the profile `external`, `session_message` returns the socket's path as `socket` (admin scope only)".
    scope = call.principal.scope
    shows_socket = session.is_external and scope.allows("admin", "global") and not session.ending.is_set()
    return SessionView(
        session_id=session.id,
        project_id=session.project_id,
        workspace_id=session.workspace_id,
        status=session.status,
        agent=session.agent_name,
        runtime=session.runtime,
        owner=session.owner,
        parent_id=session.parent_id,
        depth=session.depth,
        caller_id=caller.caller_id,
        caller_tools=[tool.name for tool in caller.caller_tools],
        created_at=session.created_at,
        last_index=session.log.last_index,
        socket=str(session.socket) if shows_socket else UNSET,
        warnings=warnings,
        text=text,
    )


async def _declaration(call: Call, arguments: NewMessage) -> Declaration | None:
    if arguments.context is UNSET or bytes(arguments.context) == b"null":
        return None
    if len(arguments.context) <= MAX_PARSED_AT_ONCE:
        return parse_declaration(arguments.context, call.services.declaration_limits)
    return await trio.to_thread.run_sync(parse_declaration, arguments.context, call.services.declaration_limits)


async def _start(
    call: Call, arguments: NewMessage, declaration: Declaration | None
) -> tuple[Session, TurnInLine | None]:
    services = call.services
    project, workspace = call.place(arguments.project_id, arguments.workspace_id)
    agent = arguments.agent or project.agent or services.default_agent
    new = NewSession(
        owner=call.principal.token_id,
        project=project,
        workspace=workspace,
        agent=agent,
        message=arguments.message,
        declaration=declaration,
    )
    _check_wait(arguments, is_external=services.sessions.is_external(agent))

    def started(session: Session) -> None:
        call.name(session, 0)
        if arguments.wait:
            call.follow(session, 0)

    return await services.sessions.start(new, started)


async def _continue(
    call: Call, arguments: NewMessage, session_id: str, declaration: Declaration | None
) -> tuple[Session, TurnInLine | None]:
    session = await call.session(session_id)
    _check_same(arguments, session)
    if declaration is not None and session.owner != call.principal.token_id:
        raise Forbidden(f"session {session.id!r} belongs to another token, which alone may declare tools")
    _check_wait(arguments, is_external=session.is_external)
    if arguments.wait and call.inside == session.id:
        raise InvalidParams("an agent cannot wait for the turn that comes after its own", field="wait")
    _name(call, session, session.log.last_index)
    if arguments.wait:
        call.follow(session)
    turn = await call.services.sessions.message(
        session, arguments.message, declaration=declaration, interrupt=arguments.interrupt
    )
    return session, turn


def _name(call: Call, session: Session, after: int | None = None) -> None:
    """WIRE section 4.1: "named in `session_events` or `session_get`, and of their descendants"."""
    call.name(session, after)
    for descendant in session.descendants:
        call.name(descendant)


def _check_wait(arguments: NewMessage, *, is_external: bool) -> None:
    if arguments.wait and is_external:
        raise InvalidParams("an external session has no turns to wait for", field="wait")


def _check_same(arguments: NewMessage, session: Session) -> None:
    """What a session was started with cannot change with a message."""
    for field, value in (("project_id", session.project_id), ("workspace_id", session.workspace_id)):
        asked = getattr(arguments, field)
        if asked not in (None, value):
            # HAZARDS T12: what is named by one project's id is looked for there, and nowhere else.
            raise NotFound(f"there is no session {session.id!r} with the {field} {asked!r}", field=field)
    if arguments.agent not in (None, session.agent_name):
        raise InvalidParams(f"session {session.id!r} has the agent {session.agent_name!r}", field="agent")


async def _poll(call: Call, session: Session, arguments: EventsArguments) -> list[Raw]:
    """WIRE section 3, "Polling counts": while it waits the owner is connected, and for a while after."""
    waits = arguments.wait_seconds > 0
    stream = Stream(call.principal.token_id, call.services.events, counts=waits)
    try:
        stream.cover(session, arguments.since_index)
        entries = await stream.ready(arguments.limit)
        if not entries and waits:
            # Whoever falls behind here is told nothing, asks again, and gets it all from the records.
            with trio.move_on_after(arguments.wait_seconds), suppress(FellBehindError):
                entries = await stream.batch(arguments.limit)
    finally:
        stream.close(linger=call.services.poll_grace if waits else 0)
    return [Raw(entry.data) for entry in entries]


def _projects(call: Call, project_id: str | None) -> list[str] | None:
    """The projects whose sessions are listed, None for all: a scope sees its own only."""
    if project_id is None and call.principal.scope.project_id is None:
        return None
    return [call.project(project_id).project_id]


def _to_cursor(session: Session) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((session.created_at, session.id))).decode()


def _from_cursor(cursor: str) -> tuple[str, str]:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor.encode()), type=tuple[str, str])
    except (binascii.Error, msgspec.MsgspecError, UnicodeError):
        raise InvalidParams("cursor is not one that session_list returned", field="cursor") from None
