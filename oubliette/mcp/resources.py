"""Resources: those that stand alone, and the events of each session, `oubliette://sessions/{id}/events`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from oubliette.errors import NotFound, OublietteError, ResourceNotFound
from oubliette.events import EventLog
from oubliette.mcp.envelope import params_of
from oubliette.mcp.exchange import Exchange
from oubliette.protocol.jsonrpc import Message
from oubliette.protocol.mcp import PageParams, ResourceParams
from oubliette.protocol.mcp_results import list_result
from oubliette.session import Session
from oubliette.toolbox import box
from oubliette.toolbox.call import Call
from oubliette.toolbox.session import EventsArguments, ListArguments, SessionPage, session_events, session_list

# What one reading of a session's events returns at the most, the newest ones: a page of `session_events`.
MAX_EVENTS: Final = 1000
_JSON: Final = "application/json"
_EVENTS: Final = re.compile(r"oubliette://sessions/([^/]+)/events\Z")


class Resource(Struct, frozen=True, kw_only=True):
    """A resource that stands alone: its entry of `resources/list`, and its contents without their `uri`."""

    entry: dict[str, Any]
    contents: dict[str, Any]


class Template(Struct, frozen=True, kw_only=True):
    """Resources of one form: their entry of `resources/templates/list`, the form, and what is done with one."""

    entry: dict[str, Any]
    pattern: re.Pattern[str]
    read: Callable[[Call, str], Awaitable[dict[str, Any]]]
    complete: Callable[[Call, str, str], Awaitable[list[str]]]


async def _read_events(call: Call, session_id: str) -> dict[str, Any]:
    session = await call.session(session_id)
    since = max(0, session.log.last_index - MAX_EVENTS)
    arguments = EventsArguments(session_id=session_id, since_index=since, limit=MAX_EVENTS)
    page = await box.run(call, session_events, msgspec.json.encode(arguments))
    return {"mimeType": _JSON, "text": page.decode()}


async def _complete_session(call: Call, variable: str, begun: str) -> list[str]:
    if variable != "id":
        return []
    return [id for id in await _visible(call) if id.startswith(begun)]


async def _visible(call: Call) -> list[str]:
    return [session.session_id for session in (await _sessions(call, ListArguments(limit=1000))).sessions]


async def _sessions(call: Call, arguments: ListArguments) -> SessionPage:
    box.check(call, session_list)
    return await session_list.run(call, arguments)


RESOURCES: Final[dict[str, Resource]] = {}
SESSION_EVENTS: Final = Template(
    entry={
        "uriTemplate": "oubliette://sessions/{id}/events",
        "name": "session_events",
        "title": "Events of a session",
        "description": "The newest events of a session; a subscription tells when there are more",
        "mimeType": _JSON,
    },
    pattern=_EVENTS,
    read=_read_events,
    complete=_complete_session,
)
TEMPLATES: Final = [SESSION_EVENTS]


async def list_resources(exchange: Exchange, message: Message) -> bytes:
    """Answers `resources/list`: what stands alone with the first page, then the sessions, newest first."""
    cursor = params_of(PageParams, message).cursor
    page = await _sessions(exchange.call, ListArguments(cursor=cursor))
    alone = [resource.entry for resource in RESOURCES.values()] if cursor is None else []
    sessions = [_entry(session.session_id, session.agent, session.created_at) for session in page.sessions]
    return list_result("resources", [*alone, *sessions], page.next_cursor or None)


async def list_templates(exchange: Exchange, message: Message) -> bytes:
    """Answers `resources/templates/list`."""
    return list_result("resourceTemplates", [template.entry for template in TEMPLATES])


async def read_resource(exchange: Exchange, message: Message) -> bytes:
    """Answers `resources/read`. Raises `ResourceNotFound`, also for what the asker's scope does not cover."""
    uri = params_of(ResourceParams, message).uri
    contents = RESOURCES[uri].contents if uri in RESOURCES else await _read(exchange.call, uri)
    return msgspec.json.encode({"contents": [{"uri": uri, **contents}]})


async def _read(call: Call, uri: str) -> dict[str, Any]:
    for template in TEMPLATES:
        if match := template.pattern.match(uri):
            try:
                return await template.read(call, match[1])
            except NotFound as error:
                raise _unknown(uri, error) from None
    raise _unknown(uri)


async def log_of(call: Call, uri: str) -> EventLog | None:
    """Returns what changes when a resource does, None for one that does not change. Raises `ResourceNotFound`."""
    if uri in RESOURCES:
        return None
    match = _EVENTS.match(uri)
    try:
        session: Session | None = await call.session(match[1]) if match else None
    except NotFound as error:
        raise _unknown(uri, error) from None
    if session is None:
        raise _unknown(uri)
    return session.log


async def subscribe(exchange: Exchange, message: Message) -> bytes:
    """Answers `resources/subscribe` of the earlier revisions; updates come on the MCP session's stream."""
    uri = params_of(ResourceParams, message).uri
    log = await log_of(exchange.call, uri)
    assert exchange.session is not None
    if log is not None:
        exchange.session.watch.follow(uri, log)
    return b"{}"


async def unsubscribe(exchange: Exchange, message: Message) -> bytes:
    """Answers `resources/unsubscribe`."""
    assert exchange.session is not None
    exchange.session.watch.unfollow(params_of(ResourceParams, message).uri)
    return b"{}"


def _entry(session_id: str, agent: str, created_at: str) -> dict[str, Any]:
    return {
        "uri": f"oubliette://sessions/{session_id}/events",
        "name": f"events of {session_id}",
        "description": f"Events of the session of {agent!r} that was started at {created_at}",
        "mimeType": _JSON,
    }


def _unknown(uri: str, reason: OublietteError | None = None) -> ResourceNotFound:
    because = f": {reason.message}" if reason else "; resources/list and resources/templates/list tell what there is"
    error = ResourceNotFound(f"unknown resource {uri!r}{because}", field="uri")
    # MCP, resources, "Error Handling": the example's data.
    error.extra = {"uri": uri}
    return error
