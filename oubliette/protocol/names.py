"""Names of callers and tools (WIRE, "Words" and section 2)."""

from __future__ import annotations

import re
from typing import Final

# `$` would allow a trailing newline: \Z does not.
_CALLER_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}\Z")
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
# "agents break on longer ones"
MAX_MCP_NAME: Final = 64
RESERVED_CALLER_ID: Final = "oubliette"


def is_caller_id(value: str) -> bool:
    """Says whether `value` is well formed as a `caller_id`. Reserved ones are not this function's business."""
    return _CALLER_ID.match(value) is not None


def is_tool_name(value: str) -> bool:
    """Says whether `value` is well formed as a caller tool's name."""
    return _TOOL_NAME.match(value) is not None


def mcp_name(pack: str, tool: str) -> str:
    """Returns the one MCP name of `pack.tool`: `pack_tool`, a `.` of the tool's own name as `_`."""
    return f"{pack}_{tool.replace('.', '_')}"
