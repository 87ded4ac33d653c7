"""Every tool, and the one place where a call is allowed or refused, whatever door it came through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

import msgspec
import trio

from ot_pack.nearest import nearest
from oubliette.audit import Action
from oubliette.errors import Forbidden, NotFound, OublietteError
from oubliette.log import span
from oubliette.packs.tools import PackTool, Progress
from oubliette.relay import QUOTED
from oubliette.scopes import Scope
from oubliette.toolbox import caller_tool, ot, project, session, token, workspace
from oubliette.toolbox.call import Call, Reports, Services
from oubliette.toolbox.declare import AnyTool

Report: TypeAlias = tuple[float, float | None, str | None]

TOOLS: Final[dict[str, AnyTool]] = {
    declared.name: declared
    for declared in (
        project.project_create,
        project.project_list,
        project.project_options,
        project.project_get,
        project.project_delete,
        workspace.workspace_create,
        workspace.workspace_delete,
        workspace.workspace_list,
        session.session_message,
        session.session_list,
        session.session_get,
        session.session_events,
        session.session_end,
        session.session_cleanup,
        caller_tool.caller_tool_response,
        caller_tool.caller_tool_progress,
        token.token_create,
        token.token_list,
        token.token_revoke,
        ot.ot_tools,
        ot.ot_packs,
        ot.ot_aliases,
        ot.ot_snippets,
        ot.ot_config,
        ot.ot_health,
        ot.ot_notify,
        ot.ot_reload,
    )
}
# A caller's answers are the relay's traffic, which the session's events tell already; those are noted that were none of
# the asker's business (HAZARDS T7).
ANSWERS_NOTED: Final = frozenset({Forbidden.kind, NotFound.kind})
_BY_IDENTITY: Final = {declared.identity: declared for declared in TOOLS.values()}
PACKS: Final = frozenset({"project", "workspace", "session", "caller_tool", "token", "ot"})


def offered(scope: Scope) -> Sequence[AnyTool]:
    """Returns the tools that a scope may call, in a fixed order."""
    return [declared for declared in TOOLS.values() if scope.allows(declared.access, declared.target)]


def own(services: Services, name: str) -> AnyTool | None:
    """Returns a tool of the daemon's own by its MCP name, its identity or an alias."""
    return TOOLS.get(name) or _BY_IDENTITY.get(services.packs.offer.target(name))


def find(call: Call, name: str) -> AnyTool | PackTool:
    """Returns a tool by its MCP name or an alias: one of the daemon's own, or of a pack that the asker may use.

    Raises `NotFound`.
    """
    tool = own(call.services, name) or call.pack_tool(name)
    if tool is None:
        known = ", ".join(nearest(name, [*TOOLS, *(tool.mcp_name for tool in call.pack_tools())]))
        raise NotFound(f"unknown tool {name[:QUOTED]!r}; nearest: {known}", field="name")
    return tool


async def run_pack_tool(call: Call, tool: PackTool, arguments: msgspec.Raw | bytes) -> bytes:
    """Runs a pack's tool and returns its `CallToolResult`, JSON text. Raises an `OublietteError`."""
    who, name = call.principal, tool.identity
    noted = call.services.audit.action(
        name, None, token_id=who.token_id, token=who.name, door=call.door, inside=call.inside
    )
    with span("pack_tool", tool=name), noted:
        return await _with_reports(call.reports, partial(tool.call, msgspec.Raw(arguments)))


async def _with_reports(reports: Reports, work: Callable[[Progress], Awaitable[bytes]]) -> bytes:
    """Does work whose reports are sent by a task beside it, which ends by itself: a write that is cut off would take
    the connection with it. Reports that come while one is being sent are dropped but for the first.
    """
    send, receive = trio.open_memory_channel[Report](1)

    def note(done: float, total: float | None, message: str | None) -> None:
        with suppress(trio.WouldBlock):
            send.send_nowait((done, total, message))

    failure: OublietteError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_pass_on, receive, reports)
        with send:
            try:
                result = await work(note)
            except OublietteError as error:
                failure = error
    if failure is not None:
        raise failure
    return result


async def _pass_on(receive: trio.MemoryReceiveChannel[Report], reports: Reports) -> None:
    async for done, total, message in receive:
        await reports.progress(done, total, message)


async def run(call: Call, declared: AnyTool, arguments: msgspec.Raw | bytes) -> bytes:
    """Runs a tool on JSON arguments and returns its result as JSON text. Raises an `OublietteError`.

    Whatever may change something is noted in the audit log, allowed or not.
    """
    if declared.access == "read":
        check(call, declared)
        return msgspec.json.encode(await declared.run(call, declared.decode(arguments)))
    with _audited(call, declared) as action:
        check(call, declared)
        decoded = declared.decode(arguments)
        action.concerns(decoded)
        result = await declared.run(call, decoded)
        action.concerns(result)
    return msgspec.json.encode(result)


def _audited(call: Call, declared: AnyTool) -> Action:
    who = call.principal
    only = ANSWERS_NOTED if declared.pack == "caller_tool" else None
    return call.services.audit.action(
        declared.name, only, token_id=who.token_id, token=who.name, door=call.door, inside=call.inside
    )


def check(call: Call, declared: AnyTool) -> None:
    """Raises `Forbidden` where the asker's scope may not call a tool.

    Things outside the asker's scope are `not_found` before they are `forbidden`: the handler looks them up through
    `call`, so what a scope may never do is refused first and tells nothing of what exists.
    """
    if not call.principal.scope.allows(declared.access, declared.target):
        raise Forbidden(f"the scope of this token does not allow {declared.name} ({declared.access} access)")
