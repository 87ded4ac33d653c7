"""The profile `codex`, on what Codex 0.169.0 has said."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.agents.base import ToolOutcome, ToolUse
from oubliette.agents.codex import CODEX
from oubliette.agents.profile import Begun, Ended, Heard, Options, Said, Start, Used
from tests.helpers import streams_of_agents as streams

ENDPOINT = {"model": "gpt-5", "base_url": "http://127.0.0.1:1/v1", "api_key_env": "MODEL_KEY"}


def start(free_hand: bool = True, options: dict[str, str] | None = None, **members: Any) -> Start:
    chosen = msgspec.convert({"command": ["codex"], **(options or {})}, Options)
    return Start(options=chosen, place=streams.PLACE, free_hand=free_hand, **members)


def heard(*names: str) -> list[Heard]:
    parser = CODEX.parser()
    return [found for name in names for line in streams.recorded(name) for found in parser.hear(line)]


def test_a_turn() -> None:
    begun, *told, said, used = heard(streams.CODEX)
    assert isinstance(begun, Begun)
    assert (streams.uses(told), streams.ends(told)) == (streams.USED, streams.ENDED)
    assert isinstance(said, Said)
    assert said.text.startswith("all done: ")
    assert used == Used({"input_tokens": 4, "output_tokens": 4})


def test_of_a_following_turn_its_own_usage_is_told() -> None:
    """Codex counts since the thread began."""
    names = {
        found.conversation for found in heard(streams.CODEX, f"{streams.CODEX}-resumed") if isinstance(found, Begun)
    }
    assert len(names) == 1
    assert heard(streams.CODEX, f"{streams.CODEX}-resumed")[-1] == Used({"input_tokens": 1, "output_tokens": 1})


def test_a_count_that_began_anew_is_the_turns_own() -> None:
    parser = CODEX.parser()
    counts = [{"input_tokens": 5, "output_tokens": 5}, {"input_tokens": 2, "output_tokens": 9}]
    lines = [json.dumps({"type": "turn.completed", "usage": count}).encode() for count in counts]
    assert [used for line in lines for used in parser.hear(line)] == [Used(count) for count in counts]


def test_a_refusal_of_its_model_is_the_turns_failure() -> None:
    [begun, ended] = heard(f"{streams.CODEX}-refused")
    assert isinstance(begun, Begun)
    assert isinstance(ended, Ended)
    assert ended.failure.startswith("unexpected status 401 Unauthorized: no such key")


def item(kind: str, **members: Any) -> bytes:
    return json.dumps({"type": kind, "item": {"id": "item_1", **members}}).encode()


def test_tools_of_its_own() -> None:
    parser = CODEX.parser()
    [begun] = parser.hear(item("item.started", type="command_execution", command="ls  -l", status="in_progress"))
    assert begun == ToolUse(tool="command_execution", arguments=msgspec.Raw(b'{"command":"ls  -l"}'))
    [ended] = parser.hear(item("item.completed", type="command_execution", command="ls", exit_code=2, status="failed"))
    assert ended == ToolOutcome(tool="command_execution", is_error=True)
    # Some are told of when they are over.
    both = list(parser.hear(item("item.completed", type="file_change", changes=[{"path": "x"}], status="completed")))
    assert both == [
        ToolUse(tool="file_change", arguments=msgspec.Raw(b'{"changes":[{"path": "x"}]}')),
        ToolOutcome(tool="file_change", is_error=False),
    ]
    [declined] = list(parser.hear(item("item.completed", type="web_search", query="q", status="declined")))[1:]
    assert declined == ToolOutcome(tool="web_search", is_error=True)


@pytest.mark.parametrize(
    "line",
    [
        item("item.completed", type="reasoning", text="hm"),
        item("item.completed", type="error", message="a warning"),
        item("item.updated", type="todo_list", items=[]),
        b'{"type":"error","message":"Reconnecting... 1/5"}',
        b'{"type":"item.completed"}',
        b'{"type":"of later"}',
    ],
)
def test_nothing_is_heard_of_what_is_no_word_and_no_tool(line: bytes) -> None:
    assert list(CODEX.parser().hear(line)) == []


def test_a_thread_that_did_not_come_to_its_turn_has_no_name() -> None:
    parser = CODEX.parser()
    assert list(parser.hear(b'{"type":"thread.started","thread_id":"t-1"}')) == []
    assert list(parser.hear(b'{"type":"turn.started"}')) == [Begun("t-1")]


def test_ids_begin_anew_with_each_turn() -> None:
    parser = CODEX.parser()
    list(parser.hear(item("item.started", type="mcp_tool_call", server="oubliette", tool="myapp_cut_off")))
    list(parser.hear(b'{"type":"turn.started"}'))
    told = list(
        parser.hear(item("item.completed", type="mcp_tool_call", server="other", tool="find", status="completed"))
    )
    assert [report.tool for report in told if isinstance(report, ToolUse | ToolOutcome)] == ["other.find", "other.find"]


@given(st.binary() | streams.varied(streams.CODEX))
def test_whatever_it_says_is_understood_or_is_not(line: bytes) -> None:
    try:
        found = list(CODEX.parser().hear(line))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    assert all(isinstance(one, Said | Begun | Used | Ended | ToolUse | ToolOutcome) for one in found)


# How it is started


def config(given: Start) -> dict[str, Any]:
    [(name, data)] = CODEX.files(given).items()
    assert name == ".codex/config.toml"
    return tomllib.loads(data.decode())


def test_its_server_is_ours_is_waited_for_and_asks_nobody() -> None:
    assert config(start())["mcp_servers"] == {
        "oubliette": {
            "command": "python3",
            "args": ["/opt/oubliette/client", "--socket", "/mcp/relay.sock"],
            "env_vars": ["OUBLIETTE_SOCKET", "OUBLIETTE_API_KEY"],
            "required": True,
            "startup_timeout_sec": 30,
            "tool_timeout_sec": 86400,
            "default_tools_approval_mode": "approve",
            "supports_parallel_tool_calls": True,
        }
    }


def test_without_a_free_hand_it_has_no_tools_of_its_own() -> None:
    free, bound = config(start()), config(start(free_hand=False))
    assert "sandbox_mode" not in free
    assert free["features"] == {"plugins": False, "apps": False}
    assert (bound["sandbox_mode"], bound["approval_policy"], bound["web_search"]) == ("read-only", "never", "disabled")
    assert bound["features"] == {"plugins": False, "apps": False, "shell_tool": False, "view_image": False}
    assert (free["agents"], bound["agents"]) == ({"enabled": True}, {"enabled": False})


def test_its_endpoint_names_the_variable_of_its_key() -> None:
    given = start(options=ENDPOINT, variables={"MODEL_KEY": "canary"})
    assert config(given)["model_provider"] == "oubliette"
    assert config(given)["model_providers"] == {
        "oubliette": {
            "name": "oubliette",
            "base_url": "http://127.0.0.1:1/v1",
            "env_key": "MODEL_KEY",
            "wire_api": "responses",
        }
    }
    assert "canary" not in str(CODEX.files(given))
    assert "model_provider" not in config(start(options={"model": "gpt-5"}))


@given(st.text())
def test_any_text_is_a_value_of_its_configuration(text: str) -> None:
    if "\ud800" <= max(text, default="") <= "\udfff":
        return
    assert config(start(options={"model": text}))["model"] == text if text else "model" not in config(start())


ALL = "--dangerously-bypass-approvals-and-sandbox"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (start(), ["exec", "--json", "--skip-git-repo-check", ALL, "-"]),
        (start(free_hand=False), ["exec", "--json", "--skip-git-repo-check", "-"]),
        (start(is_first=False), ["exec", "--json", "--skip-git-repo-check", ALL, "-"]),
        (start(conversation="t-1"), ["exec", "--json", "--skip-git-repo-check", ALL, "resume", "t-1", "-"]),
    ],
)
def test_its_arguments(given: Start, expected: list[str]) -> None:
    assert CODEX.arguments(given) == expected


def test_its_variables() -> None:
    own = {"HOME": "/home/agent", "CODEX_HOME": "/home/agent/.codex"}
    variables = {"OPENAI_API_KEY": "canary", "HOME": "/root"}
    assert CODEX.environment(start(variables=variables)) == {
        "OPENAI_API_KEY": "canary",
        "CODEX_API_KEY": "canary",
        **own,
    }
    given = start(options=ENDPOINT, variables={"MODEL_KEY": "canary"})
    assert CODEX.environment(given) == {"MODEL_KEY": "canary", **own}
