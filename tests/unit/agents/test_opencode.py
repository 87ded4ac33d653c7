"""The profile `opencode`, on what OpenCode 1.18.33 has said."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.agents.base import ToolOutcome, ToolUse
from oubliette.agents.opencode import OPENCODE
from oubliette.agents.profile import Begun, Ended, Heard, Options, Said, Start, Used
from tests.helpers import streams_of_agents as streams

ENDPOINT = {"model": "qwen/qwen3", "base_url": "http://127.0.0.1:1/v1", "api_key_env": "MODEL_KEY"}


def start(free_hand: bool = True, options: dict[str, str] | None = None, **members: Any) -> Start:
    chosen = msgspec.convert({"command": ["opencode"], **(options or {})}, Options)
    return Start(options=chosen, place=streams.PLACE, free_hand=free_hand, **members)


def heard(name: str) -> list[Heard]:
    parser = OPENCODE.parser()
    return [found for line in streams.recorded(name) for found in parser.hear(line)]


def test_a_turn() -> None:
    told = heard(streams.OPENCODE)
    assert len({found for found in told if isinstance(found, Begun)}) == 1
    assert (streams.uses(told), streams.ends(told)) == (streams.USED, streams.ENDED)
    assert [found for found in told if isinstance(found, Said)] == [Said("all done: the disk is full")]
    assert [found for found in told if isinstance(found, Used)] == [Used({"input_tokens": 1, "output_tokens": 1})] * 4


def test_a_refusal_of_its_model_is_the_turns_failure() -> None:
    assert heard(f"{streams.OPENCODE}-refused")[-1] == Ended(failure="no such key")


def test_a_step_that_ends_well_makes_up_for_a_failure() -> None:
    parser = OPENCODE.parser()
    [failed] = parser.hear(b'{"type":"error","error":{"name":"UnknownError","data":{}}}')
    assert failed == Ended(failure="UnknownError")
    tokens = {"input": 1, "output": 2, "reasoning": 3, "cache": {"read": 4, "write": 5}}
    line = json.dumps({"type": "step_finish", "part": {"tokens": tokens}}).encode()
    counts = {"input_tokens": 1, "output_tokens": 2, "reasoning_output_tokens": 3}
    assert list(parser.hear(line)) == [
        Used({**counts, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 5}),
        Ended(),
    ]


@given(st.binary() | streams.varied(streams.OPENCODE))
def test_whatever_it_says_is_understood_or_is_not(line: bytes) -> None:
    try:
        found = list(OPENCODE.parser().hear(line))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    assert all(isinstance(one, Said | Begun | Used | Ended | ToolUse | ToolOutcome) for one in found)


# How it is started


def config(given: Start) -> Any:
    return json.loads(OPENCODE.files(given)["opencode.json"])


def test_its_server_is_ours() -> None:
    assert config(start())["mcp"] == {
        "oubliette": {
            "type": "local",
            "command": ["python3", "/opt/oubliette/client", "--socket", "/mcp/relay.sock"],
            "enabled": True,
            "timeout": 86400000,
        }
    }
    assert (config(start())["autoupdate"], config(start())["share"]) == (False, "disabled")


def test_it_finds_the_package_that_it_would_install() -> None:
    files = OPENCODE.files(start())
    assert files[".config/opencode/node_modules/.keep"] == b""
    assert (
        "@opencode-ai/plugin" in json.loads(files[".config/opencode/package-lock.json"])["packages"][""]["dependencies"]
    )


def test_without_a_free_hand_it_has_our_tools_alone() -> None:
    assert config(start())["permission"] == "allow"
    assert config(start(free_hand=False))["permission"] == {"*": "deny", "oubliette_*": "allow"}
    assert OPENCODE.environment(start(free_hand=False))["OPENCODE_DISABLE_PROJECT_CONFIG"] == "1"


def test_its_endpoint_names_the_variable_of_its_key() -> None:
    given = start(options=ENDPOINT, variables={"MODEL_KEY": "canary"})
    found = config(given)
    endpoint = {"baseURL": "http://127.0.0.1:1/v1", "apiKey": "{env:MODEL_KEY}"}
    assert found["provider"]["oubliette"]["options"] == endpoint
    assert found["model"] == found["small_model"] == "oubliette/qwen/qwen3"
    assert found["enabled_providers"] == ["oubliette"]
    assert "canary" not in str(OPENCODE.files(given))
    with pytest.raises(ValueError, match="has to be told of a model"):
        config(start(options={**ENDPOINT, "model": ""}))


def test_its_own_model_is_named_as_it_names_it() -> None:
    assert config(start(options={"model": "anthropic/claude"}))["model"] == "anthropic/claude"
    assert "model" not in config(start())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (start(), ["--title", "oubliette"]),
        (start(is_first=False, conversation="ses_1"), ["--session", "ses_1"]),
        (start(is_first=False), ["--continue"]),
    ],
)
def test_its_arguments(given: Start, expected: list[str]) -> None:
    assert OPENCODE.arguments(given) == ["run", "--format", "json", *expected]


def test_its_variables() -> None:
    environment = OPENCODE.environment(start(variables={"MODEL_KEY": "canary", "XDG_DATA_HOME": "/root"}))
    assert environment["MODEL_KEY"] == "canary"
    folders = {name: value for name, value in environment.items() if "HOME" in name}
    assert folders == {
        "HOME": "/home/agent",
        "XDG_CONFIG_HOME": "/home/agent/.config",
        "XDG_DATA_HOME": "/home/agent/.local/share",
        "XDG_CACHE_HOME": "/home/agent/.cache",
        "XDG_STATE_HOME": "/home/agent/.local/state",
    }
    assert environment["OPENCODE_CONFIG"] == "/home/agent/opencode.json"
    off = [name for name in environment if "DISABLE" in name]
    assert len(off) == 5
    assert "OPENCODE_DISABLE_PROJECT_CONFIG" not in off


def test_nobody_knows_the_password_of_its_server() -> None:
    """HAZARDS T37: also where a workspace says one."""
    passwords = {
        OPENCODE.environment(start(variables={"OPENCODE_SERVER_PASSWORD": "x"}))["OPENCODE_SERVER_PASSWORD"]
        for _ in range(3)
    }
    assert len(passwords) == 3
    assert all(len(password) > 32 for password in passwords)
