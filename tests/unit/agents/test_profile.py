"""Agents that are a command line, whichever: `cat` is one, whose stream is the message that it is given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from oubliette.agents import profile
from oubliette.agents.base import ToolOutcome, ToolUse, TurnResult
from oubliette.agents.known import AGENTS
from oubliette.agents.profile import (
    MAX_CALLS,
    MAX_MESSAGE,
    MAX_REASON,
    Begun,
    Calls,
    CliAgent,
    Ended,
    Heard,
    Options,
    Permissions,
    Profile,
    Said,
    Start,
    Used,
    is_ours,
    our_name,
)
from tests.helpers.sandbox import HostSandbox, Told
from tests.helpers.waiting import LIMIT, until, until_gone

SECRET = "canary-secret"  # what must be nowhere


class SmallParser:
    """{"say": …}, {"name": …}, {"use": …}, {"used": …}, {"answer": …}, {"failure": …}; anything else is unknown."""

    def hear(self, line: bytes) -> Iterator[Heard]:
        event = msgspec.json.decode(line, type=dict[str, Any])
        for key, value in event.items():
            match key:
                case "say":
                    yield Said(value)
                case "name":
                    yield Begun(value)
                case "use":
                    yield ToolUse(tool=value, arguments=Raw(b"{}"))
                case "used":
                    yield Used({"input_tokens": value})
                case "answer" | "failure":
                    yield Ended(**{key: value})


def files(start: Start) -> dict[str, bytes]:
    return {"etc/config.json": json.dumps({"free": start.free_hand, "client": start.client}).encode()}


def arguments(start: Start) -> list[str]:
    return ["--first"] if start.is_first else ["--resume", start.conversation]


def environment(start: Start) -> dict[str, str]:
    return {"TIMER": "1", **start.variables, "HOME": start.place.home}


SMALL = Profile(files=files, arguments=arguments, environment=environment, parser=SmallParser)
# It ignores its arguments, and says what it is told.
CAT = ("sh", "-c", "cat", "x")


async def converse(folder: Path, *prompts: Any, command: tuple[str, ...] = CAT) -> tuple[list[TurnResult], Told]:
    """Has one conversation. A prompt that is no text becomes lines of JSON."""
    told, sandbox = Told(), HostSandbox(folder)
    lines = [item if isinstance(item, str) else "\n".join(json.dumps(line) for line in item) for item in prompts]
    with trio.fail_after(LIMIT):
        async with CliAgent(SMALL, Options(command=command)).converse(sandbox) as conversation:
            return [await conversation.turn(told.turn(text)) for text in lines], told


async def test_a_turn(tmp_path: Path) -> None:
    lines = [{"say": "one"}, {"use": "look"}, {"used": 2}, {"say": " "}, {"of later": 1}, {"say": "two"}, {"used": 3}]
    [result], told = await converse(tmp_path, lines)
    assert told.all == ["one", ToolUse(tool="look", arguments=Raw(b"{}")), "two"]
    assert result == TurnResult(text="two", usage={"input_tokens": 5})


async def test_an_answer_of_its_own_is_the_turns_text(tmp_path: Path) -> None:
    [first, second], _ = await converse(tmp_path, [{"say": "x"}, {"answer": "the answer"}], [{"say": "x"}])
    assert (first.text, second.text, second.usage) == ("the answer", "x", None)


async def test_lines_that_are_no_json_are_counted(tmp_path: Path) -> None:
    prompt = 'Warning: x\n\n  \n{"say": "y"}\n{"say": 7\n[1]\n"text"\n' + "z" * 1000
    [result], told = await converse(tmp_path, prompt)
    assert told.all == ["y"]
    assert result.complaint == f"3 lines of its output were no JSON, the last: {'z' * 200}"
    assert result.exit_code == 0


async def test_what_nests_too_deep_is_ignored(tmp_path: Path) -> None:
    deep = '{"say": ' + "[" * 100_000
    [result], told = await converse(tmp_path, f'{deep}\n{{"say": "still here"}}')
    assert (told.all, result.complaint) == (["still here"], "")


async def test_of_a_line_that_is_too_long_a_note_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "MAX_LINE", 1000)
    [result], told = await converse(tmp_path, [{"say": "before"}, {"say": "x" * 1000}, {"say": "after"}])
    assert told.all == ["before", "[a line of more than 1000 bytes was left out]", "after"]
    assert (result.text, result.exit_code) == ("after", 0)


async def test_a_line_may_hold_the_result_of_a_tool(tmp_path: Path) -> None:
    """The relay's largest result has 4 MiB."""
    [result], told = await converse(tmp_path, [{"of later": "x" * 4 * 2**20}, {"say": "after"}])
    assert (told.all, result.text) == (["after"], "after")


async def test_of_a_long_text_the_beginning_is_told(tmp_path: Path) -> None:
    [result], told = await converse(tmp_path, [{"say": "x" * (MAX_MESSAGE + 7)}])
    assert told.all == ["x" * MAX_MESSAGE + "\n[7 more characters were left out]"]
    assert result.text == told.all[0]


async def test_a_failure_is_one_whatever_the_exit_code(tmp_path: Path) -> None:
    [result], _ = await converse(tmp_path, [{"failure": "no model" + "!" * MAX_REASON}])
    assert (result.exit_code, len(result.complaint)) == (1, MAX_REASON)
    [recovered], _ = await converse(tmp_path, [{"failure": "no model"}, {"answer": "x"}])
    assert (recovered.exit_code, recovered.text) == (0, "x")


async def test_an_exit_code_comes_with_all_that_was_said_of_it(tmp_path: Path) -> None:
    command = ("sh", "-c", "echo on stdout; echo on stderr >&2; cat; exit 3")
    [result], _ = await converse(tmp_path, [{"failure": "in words"}], command=command)
    complaint = "in words\non stderr\n1 lines of its output were no JSON, the last: on stdout"
    assert (result.exit_code, result.complaint) == (3, complaint)


# The conversation


async def test_the_second_turn_goes_on_with_the_first(tmp_path: Path) -> None:
    sandbox = HostSandbox(tmp_path)
    async with CliAgent(SMALL, Options(command=CAT)).converse(sandbox) as conversation:
        config = json.loads((tmp_path / "home" / "etc" / "config.json").read_text())
        assert config == {"free": True, "client": [*sandbox.place.client, "--socket", sandbox.place.socket]}
        for prompt in ('{"name": "c-1"}', '{"say": "x"}', '{"name": "c_2"}', "{}"):
            await conversation.turn(Told().turn(prompt))
    assert [ran.argv[len(CAT) :] for ran in sandbox.programs] == [
        ("--first",),
        ("--resume", "c-1"),
        ("--resume", "c-1"),
        ("--resume", "c_2"),
    ]


@pytest.mark.parametrize("name", ["--help", "-x", "", "a b", "../x", "a\nb", "x" * 129])
async def test_a_name_that_could_be_something_else_is_none(tmp_path: Path, name: str) -> None:
    """HAZARDS T20: it becomes an argument."""
    sandbox = HostSandbox(tmp_path)
    async with CliAgent(SMALL, Options(command=CAT)).converse(sandbox) as conversation:
        await conversation.turn(Told().turn(json.dumps({"name": name})))
        await conversation.turn(Told().turn(""))
    assert sandbox.programs[-1].argv[len(CAT) :] == ("--resume", "")


@pytest.mark.parametrize("prompt", ["-x", "$(exit 3)", "a'b\"c", "{prompt}", "x" * 300_000])
async def test_a_message_is_never_an_argument(tmp_path: Path, prompt: str) -> None:
    """HAZARDS T20."""
    sandbox, told = HostSandbox(tmp_path), Told()
    async with CliAgent(SMALL, Options(command=CAT)).converse(sandbox) as conversation:
        await conversation.turn(told.turn(json.dumps({"say": prompt})))
    assert sandbox.programs[0].argv == (*CAT, "--first")
    assert told.texts[0].startswith(prompt[:MAX_MESSAGE])


async def test_a_cancelled_turn_ends_its_process_and_is_gone_on_with(tmp_path: Path) -> None:
    begun = 'read line; echo $$ > pid; echo "$line"; [ "$line" = "{}" ] && exit; '
    script = begun + """echo '{"say": "on it"}'; exec sleep 1000"""
    sandbox, told = HostSandbox(tmp_path), Told()
    agent = CliAgent(SMALL, Options(command=("sh", "-c", script)))
    pid = tmp_path / "workspace" / "pid"
    async with agent.converse(sandbox) as conversation:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(conversation.turn, told.turn('{"name": "c-1"}\n'))
            await until(lambda: told.texts)
            nursery.cancel_scope.cancel()
        await until_gone(int(pid.read_text()))
        assert (await conversation.turn(Told().turn("{}\n"))).exit_code == 0
    assert sandbox.programs[-1].argv[-2:] == ("--resume", "c-1")


async def test_a_program_that_is_missing_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await converse(tmp_path, "hello", command=("/nowhere/agent",))


# What it is given


async def test_variables_go_the_nearest_first_and_are_shown_by_name_alone(tmp_path: Path) -> None:
    options = Options(command=("sh", "-c", "env >&2; exit 1"), environment={"TIMER": "2", "A": "profile", "B": SECRET})
    sandbox = HostSandbox(tmp_path)
    async with CliAgent(SMALL, options).converse(sandbox) as conversation:
        result = await conversation.turn(Told().turn("", A="workspace", HOME="/root"))
    found = dict(line.split("=", 1) for line in result.complaint.splitlines() if "=" in line)
    assert (found["TIMER"], found["A"], found["B"], found["HOME"]) == ("2", "workspace", SECRET, sandbox.place.home)
    assert SECRET not in repr(sandbox.programs)


@pytest.mark.parametrize(
    ("permissions", "confined", "expected"),
    [
        ("sandbox", True, True),
        ("sandbox", False, False),
        ("all", True, True),
        ("all", False, True),
        ("tools", True, False),
        ("tools", False, False),
    ],
)
def test_who_has_a_free_hand(tmp_path: Path, permissions: Permissions, confined: bool, expected: bool) -> None:
    options = Options(command=CAT, permissions=permissions)
    assert options.gives_free_hand(HostSandbox(tmp_path, confined=confined)) is expected


@pytest.mark.parametrize("kind", list(AGENTS))
def test_every_known_agent_can_be_made(kind: str) -> None:
    assert AGENTS[kind](Options(command=("x",))).converse is not None


# Tools


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mcp__oubliette__myapp_look", "myapp_look"),
        ("oubliette_myapp_look", "myapp_look"),
        ("oubliette_oubliette_project_create", "oubliette_project_create"),
        ("oubliette.myapp_look", "myapp_look"),
        ("oubliette/myapp_look", "myapp_look"),
        ("mcp__other__look", None),
        ("Bash", None),
        ("oubliettes_look", None),
        ("rm -rf / # oubliette_look", None),
        ("oubliette_look; rm -rf /", None),
        ("oubliette_look\n", None),
        ("", None),
    ],
)
def test_a_tool_of_ours_has_one_name(name: str, expected: str | None) -> None:
    assert our_name(name) == (name if expected is None else expected)
    assert is_ours(name) is (expected is not None)


def test_a_result_is_that_of_its_call() -> None:
    calls = Calls()
    assert calls.begin("1", "mcp__oubliette__look", b'{"x":\r 1.10}').arguments == Raw(b'{"x":1.10}')
    assert calls.end("1", is_error=True) == [ToolOutcome(tool="look", is_error=True)]
    assert calls.end("1", is_error=False) == []


def test_calls_that_never_end_are_forgotten() -> None:
    calls = Calls()
    for number in range(MAX_CALLS + 1):
        calls.begin(str(number), "look", b"{}")
    assert ("0" in calls, "1" in calls, str(MAX_CALLS) in calls) == (False, True, True)


class StrictParser:
    """Takes what it knows, and raises what decoding raises for anything else."""

    def hear(self, line: bytes) -> Iterator[Heard]:
        yield Said(msgspec.json.decode(line, type=dict[str, str]).get("say", ""))


@given(st.lists(st.text() | st.sampled_from(["{", '{"say": "x"}', "[" * 1000, '{"say": null}', '{"\\ud800": 1}'])))
async def test_no_output_ends_a_turn(lines: list[str]) -> None:
    told = Told()
    hearing = profile._Hearing(told.turn(""), StrictParser(), "")
    for line in lines:
        await hearing.on_line(line)
    assert hearing.result(0, "").exit_code == 0
