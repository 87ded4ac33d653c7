"""Every tool, and the one place where a call is allowed or refused, whatever door it came through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from oubliette.audit import Action
from oubliette.errors import Forbidden, NotFound
from oubliette.scopes import Scope
from oubliette.toolbox import caller_tool, project, session, token, workspace
from oubliette.toolbox.call import Call
from oubliette.toolbox.declare import AnyTool

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
    )
}
# A caller's answers are the relay's traffic, which the session's events tell already; those are noted that were none of
# the asker's business (HAZARDS T7).
ANSWERS_NOTED: Final = frozenset({Forbidden.kind, NotFound.kind})
PACKS: Final = frozenset({"project", "workspace", "session", "caller_tool", "token", "ot"})


def offered(scope: Scope) -> Sequence[AnyTool]:
    """Returns the tools that a scope may call, in a fixed order."""
    return [declared for declared in TOOLS.values() if scope.allows(declared.access, declared.target)]


def find(name: str) -> AnyTool:
    """Returns a tool by its MCP name. Raises `NotFound`."""
    if name not in TOOLS:
        raise NotFound(f"unknown tool {name!r}; there are: {', '.join(TOOLS)}", field="name")
    return TOOLS[name]


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
