"""WIRE section 6 as data, copied by hand: which tool may be called with which scope, on whose things.

The tests compare the daemon with this page, never with its own declarations: a tool that is missing here fails them.
"""

from __future__ import annotations

from typing import Any, Final, Literal

Verdict = Literal["ok", "forbidden", "not_found"]
Where = Literal["own", "foreign", "missing"]

# The table of section 6, in its order: target and access of each tool. "owner" is "write, owner
# only", asked by principals who own nothing.
TABLE: Final[dict[str, tuple[str, str]]] = {
    "project_create": ("global", "write"),
    "project_list": ("global", "read"),
    "project_options": ("global", "read"),
    "project_get": ("project", "read"),
    "project_delete": ("project", "write"),
    "workspace_create": ("project", "write"),
    "workspace_delete": ("project", "write"),
    "workspace_list": ("project", "read"),
    "session_message": ("project", "write"),
    "session_list": ("project", "read"),
    "session_get": ("project", "read"),
    "session_events": ("project", "read"),
    "session_end": ("project", "write"),
    "session_cleanup": ("project", "write"),
    "caller_tool_response": ("project", "owner"),
    "caller_tool_progress": ("project", "owner"),
    "token_create": ("global", "admin"),
    "token_list": ("global", "admin"),
    "token_revoke": ("global", "admin"),
    "ot_tools": ("global", "read"),
    "ot_packs": ("global", "read"),
    "ot_aliases": ("global", "read"),
    "ot_snippets": ("global", "read"),
    "ot_config": ("global", "read"),
    "ot_health": ("global", "read"),
    "ot_notify": ("global", "write"),
    "ot_reload": ("global", "admin"),
}
# "`caller_tool_response` and `caller_tool_progress` are not offered over `oubliette_tools`".
NOT_ON_LINKS: Final = frozenset({"caller_tool_response", "caller_tool_progress"})

# `own` is a project, `foreign` another one: the first four scopes are asked from within the first, the last from
# within the second.
SCOPES: Final = ("admin", "admin:ro", "project:<own>", "project:<own>:ro", "project:<foreign>")
PLACES: Final[tuple[Where, ...]] = ("own", "foreign", "missing")
# The paragraph "Scopes" of section 6: for each scope what comes of a call on each place. y: ok, f: forbidden,
# n: not_found. What a scope may never do is forbidden, whatever it is asked for: that tells nothing of what exists.
_RULES: Final[dict[tuple[str, str], str]] = {
    ("global", "read"): "yyy yyy yyy yyy yyy",
    ("global", "write"): "yyy fff fff fff fff",
    ("global", "admin"): "yyy fff fff fff fff",
    ("project", "read"): "yyn yyn ynn ynn nyn",
    ("project", "write"): "yyn fff ynn fff nyn",
    ("project", "owner"): "ffn fff fnn fff nfn",
}
_WORDS: Final[dict[str, Verdict]] = {"y": "ok", "f": "forbidden", "n": "not_found"}


def verdict(tool: str, scope: str, where: Where) -> Verdict:
    """Returns what comes of calling `tool` with `scope`, one of `SCOPES`, on a thing of the project `where`."""
    row = _RULES[TABLE[tool]].split()[SCOPES.index(scope)]
    return _WORDS[row[PLACES.index(where)]]


def is_offered(tool: str, scope: str) -> bool:
    """Whether a tool is listed for a scope: "those that the key's scope may call"."""
    return {verdict(tool, scope, where) for where in PLACES} != {"forbidden"}


def scope_of(scope: str, own: str, foreign: str) -> str:
    """Returns one of `SCOPES` with the ids of the two projects put in."""
    return scope.replace("<own>", own).replace("<foreign>", foreign)


def kind_of_result(result: Any) -> str:
    """Returns `ok` or the kind of error that a `CallToolResult` tells of."""
    return result["_meta"]["oubliette/error"]["kind"] if result.get("isError") else "ok"
