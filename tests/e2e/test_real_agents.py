"""Real agents in a real sandbox, asked by a caller over MCP, with a scripted model behind the model door.

Issue 6, "Shown by": each calls a caller tool three times, twice in parallel, gets a tool error once, and ends its turn
with the answer; a second message continues the conversation. The agents see their model and their caller, and no more.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.agent_world import CONTEXT, LOOK, agent_world, calling, program_of
from tests.helpers.process import DaemonProcess
from tests.helpers.scripted_model import ScriptedModel

SCRIPT: list[dict[str, Any]] = [
    {"calls": [LOOK]},
    {"calls": [{"call": "myapp_look", "arguments": {"at": at}} for at in ("left", "right")]},
    {"calls": [{"call": "myapp_fail"}]},
    {"say": "all done: {last}"},
]
AGENTS = ("claude", "codex", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("opencode", "acp")))
needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt install bubblewrap"
)


@pytest.fixture
def world() -> Iterator[tuple[DaemonProcess, ScriptedModel]]:
    with agent_world(SCRIPT, {"kind": "bubblewrap"}) as made:
        yield made


@needs_bubblewrap
@pytest.mark.parametrize("agent", AGENTS)
async def test_an_agent_works_for_its_caller(agent: str, world: tuple[DaemonProcess, ScriptedModel]) -> None:
    program_of(agent)
    daemon, model = world
    async with calling(daemon) as caller:
        first = await caller.turn(message="do it", agent=agent, context=CONTEXT)
        assert first["type"] == "turn_completed", caller.events[-3:]
        assert first["text"].startswith("all done: ")
        assert "it fails" in first["text"]
        assert sorted(str(call) for call in caller.calls) == sorted(
            str(call)
            for call in [
                ("look", {"at": "here"}),
                ("look", {"at": "left"}),
                ("look", {"at": "right"}),
                ("fail", {}),
            ]
        )
        assert caller.most == 2
        assert [event["tool"] for event in caller.of("tool_call")].count("myapp_look") == 3
        assert sorted(event["is_error"] for event in caller.of("tool_result")) == [False, False, False, True]
        (started,) = caller.of("session_started")
        assert (started["agent"], started["runtime"]) == (agent, "bubblewrap")
        second = await caller.turn(message="and then?", session_id=first["session_id"])
        assert second["type"] == "turn_completed", caller.events[-3:]
        # The model was shown the first turn with the second.
        assert [said for said in model.asked[-1].users if "do it" in said or "and then?" in said][-2:] != []
        assert any("do it" in said for said in model.asked[-1].users)
        assert len(model.asked[-1].results) == 4
        await caller.mcp.call("session_end", session_id=first["session_id"])
