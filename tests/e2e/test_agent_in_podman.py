"""A real agent in a container: asked by a caller, it asks its model by the model door and its caller by the link.

Claude Code, as its program is one file. All agents are tried in bubblewrap (`test_real_agents.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.agent_world import CONTEXT, KEY, LOOK, agent_world, calling, program_of
from tests.helpers.process import DaemonProcess
from tests.helpers.runtimes import image, podman_environment
from tests.helpers.scripted_model import ScriptedModel

pytestmark = pytest.mark.heavy
SCRIPT: list[dict[str, Any]] = [{"calls": [LOOK]}, {"say": "all done: {last}"}]


@pytest.fixture
def world() -> Iterator[tuple[DaemonProcess, ScriptedModel]]:
    program, environ = program_of("claude"), podman_environment()
    with agent_world(SCRIPT, {"kind": "podman", "image": image(program)}, environ) as made:
        yield made


async def test_claude_code_works_for_its_caller_in_a_container(world: tuple[DaemonProcess, ScriptedModel]) -> None:
    daemon, model = world
    async with calling(daemon) as caller:
        ended = await caller.turn(message="do it", agent="claude", context=CONTEXT)
        assert ended["type"] == "turn_completed", caller.events[-3:]
        assert ended["text"].startswith("all done: ")
        assert '"saw":"here"' in ended["text"].replace(" ", "")
        assert caller.calls == [("look", {"at": "here"})]
        (started,) = caller.of("session_started")
        assert (started["agent"], started["runtime"]) == ("claude", "podman")
        assert [event["tool"] for event in caller.of("tool_call")] == ["myapp_look"]
        assert [event["is_error"] for event in caller.of("tool_result")] == [False]
        second = await caller.turn(message="and then?", session_id=ended["session_id"])
        assert second["type"] == "turn_completed", caller.events[-3:]
        await caller.mcp.call("session_end", session_id=ended["session_id"])
    assert {asked.key for asked in model.asked} == {KEY}
    assert len(model.asked[-1].results) == 1, "the second turn goes on where the first one ended"
