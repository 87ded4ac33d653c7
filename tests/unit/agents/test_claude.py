"""The profile `claude`, on what Claude Code 2.1.197 has said."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.agents.base import ToolOutcome, ToolUse
from oubliette.agents.claude import CLAUDE
from oubliette.agents.profile import TOOL_SECONDS, Begun, Ended, Heard, Options, Said, Start, Used
from tests.helpers import streams_of_agents as streams


def start(free_hand: bool = True, **members: Any) -> Start:
    options = Options(command=("claude",), model=members.pop("model", ""))
    return Start(options=options, place=streams.PLACE, free_hand=free_hand, **members)


def heard(*names: str) -> list[Heard]:
    """What one conversation says in these recordings."""
    parser = CLAUDE.parser()
    return [found for name in names for line in streams.recorded(name) for found in parser.hear(line)]


def test_a_turn() -> None:
    begun, *told, used, ended = heard(streams.CLAUDE)
    assert begun == Begun("ba052028-e07a-4cec-b59c-37971fc9087d")
    assert (streams.uses(told), streams.ends(told)) == (streams.USED, streams.ENDED)
    assert [type(found) for found in told[:2]] == [ToolUse, ToolOutcome]
    assert told[-1] == Said("all done: the disk is full")
    assert used == Used({"input_tokens": 4, "output_tokens": 4})
    assert ended == Ended(answer="all done: the disk is full")


def test_a_following_turn_goes_by_the_same_name() -> None:
    assert {found for found in heard(streams.CLAUDE, f"{streams.CLAUDE}-resumed") if isinstance(found, Begun)} == {
        Begun("ba052028-e07a-4cec-b59c-37971fc9087d")
    }


def test_a_refusal_of_its_model_is_the_turns_failure() -> None:
    assert heard(f"{streams.CLAUDE}-refused")[-1] == Ended(failure="Failed to authenticate. API Error: 401 no such key")


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"type": "result", "subtype": "error_max_turns", "is_error": True}, [Ended(failure="error_max_turns")]),
        ({"type": "result", "is_error": True, "errors": ["a", "b"]}, [Ended(failure="a; b")]),
        ({"type": "result", "result": None, "usage": None}, [Ended()]),
        (
            {"type": "result", "result": "x", "usage": {"input_tokens": 2, "of_later": {}}},
            [Used({"input_tokens": 2, "output_tokens": 0}), Ended(answer="x")],
        ),
        ({"type": "system", "subtype": "api_retry", "attempt": 1}, []),
        ({"type": "stream_event", "message": 7}, []),
        ({"type": "user", "message": {"content": "a prompt"}}, []),
        # A result of a call that nobody has heard of, and the words of a subagent.
        ({"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "x"}]}}, []),
        ({"type": "assistant", "parent_tool_use_id": "x", "message": {"content": [{"type": "text", "text": "y"}]}}, []),
        ({"type": "assistant", "message": {"content": [{"type": "thinking", "thinking": "hm"}]}}, []),
    ],
)
def test_events_by_themselves(event: dict[str, Any], expected: list[Heard] | None) -> None:
    found = list(CLAUDE.parser().hear(json.dumps(event).encode()))
    assert found == (
        [Used({"input_tokens": 2, "output_tokens": 0}), Ended(answer="x")] if expected is None else expected
    )


@given(st.binary() | streams.varied(streams.CLAUDE))
def test_whatever_it_says_is_understood_or_is_not(line: bytes) -> None:
    try:
        found = list(CLAUDE.parser().hear(line))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    assert all(isinstance(one, Said | Begun | Used | Ended | ToolUse | ToolOutcome) for one in found)


# How it is started


def test_its_server_is_ours_alone_and_is_waited_for() -> None:
    [(name, data)] = CLAUDE.files(start()).items()
    assert name == ".claude/mcp.json"
    assert json.loads(data) == {
        "mcpServers": {
            "oubliette": {
                "type": "stdio",
                "command": "python3",
                "args": ["/opt/oubliette/client", "--socket", "/mcp/relay.sock"],
                "env": {},
                "alwaysLoad": True,
                "timeout": TOOL_SECONDS * 1000,
            }
        }
    }


COMMON = ["-p", "--output-format", "stream-json", "--verbose", "--mcp-config", "/home/agent/.claude/mcp.json"]
COMMON += ["--strict-mcp-config"]
OURS_ALONE = ["--tools", "", "--allowedTools", "mcp__oubliette__*", "--setting-sources", "user"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (start(), ["--dangerously-skip-permissions"]),
        (start(free_hand=False), OURS_ALONE),
        (start(model="opus"), ["--dangerously-skip-permissions", "--model", "opus"]),
        (start(is_first=False), ["--dangerously-skip-permissions"]),
        (start(is_first=False, conversation="c-1"), ["--dangerously-skip-permissions", "--resume", "c-1"]),
    ],
)
def test_its_arguments(given: Start, expected: list[str]) -> None:
    assert CLAUDE.arguments(given) == COMMON + expected


def test_its_variables() -> None:
    """What keeps its files apart is not for a workspace to say; its timers are."""
    environment = CLAUDE.environment(
        start(variables={"ANTHROPIC_API_KEY": "canary", "MCP_TIMEOUT": "1", "HOME": "/root", "IS_SANDBOX": "0"})
    )
    assert environment == {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "MCP_TIMEOUT": "1",
        "MCP_CONNECT_TIMEOUT_MS": "30000",
        "MCP_TOOL_TIMEOUT": "86400000",
        "ANTHROPIC_API_KEY": "canary",
        "HOME": "/home/agent",
        "CLAUDE_CONFIG_DIR": "/home/agent/.claude",
        "IS_SANDBOX": "1",
    }
    assert "IS_SANDBOX" not in CLAUDE.environment(start(free_hand=False))
    assert b"canary" not in b"".join(CLAUDE.files(start(variables={"ANTHROPIC_API_KEY": "canary"})).values())
