"""What real agents have said, recorded with the scripted model (tests/unit/agents/streams), and variations of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from oubliette.agents.base import Place, ToolOutcome, ToolUse

FOLDER = Path(__file__).parent.parent / "unit" / "agents" / "streams"
CLAUDE, CODEX, OPENCODE, ACP = "claude-2.1.197", "codex-0.169.0", "opencode-1.18.33", "acp-opencode-1.18.33"
# Where agents of unit tests are.
PLACE = Place(
    workspace="/workspace",
    home="/home/agent",
    socket="/mcp/relay.sock",
    client=("python3", "/opt/oubliette/client"),
    variables={},
)
# The calls of each recording: one, two in parallel, and one that fails.
USED = [
    ("myapp_look", b'{"at":"1.10"}'),
    ("myapp_look", b'{"at":"left"}'),
    ("myapp_look", b'{"at":"right"}'),
    ("myapp_fail", b"{}"),
]
ENDED = [(tool, tool == "myapp_fail") for tool, _ in USED]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def recorded(name: str) -> list[bytes]:
    """Returns the lines of a recording."""
    return (FOLDER / f"{name}.jsonl").read_bytes().splitlines()


def uses(told: Iterable[object]) -> list[tuple[str, bytes]]:
    """Returns which tools were used, with which arguments; of those in parallel, in the order of the script."""
    found = [(report.tool, bytes(report.arguments)) for report in told if isinstance(report, ToolUse)]
    return [*found[:1], *sorted(found[1:3]), *found[3:]]


def ends(told: Iterable[object]) -> list[tuple[str, bool]]:
    """Returns how the calls of tools ended."""
    return [(report.tool, report.is_error) for report in told if isinstance(report, ToolOutcome)]


@st.composite
def varied(draw: st.DrawFn, name: str) -> bytes:
    """A line of a recording in which one value, somewhere, is another one."""
    whole = json.loads(draw(st.sampled_from(recorded(name))))
    holder, key = draw(st.sampled_from(list(_places(whole))))
    holder[key] = draw(JSON)
    return json.dumps(whole).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for key, inner in pairs:
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)
