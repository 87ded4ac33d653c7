"""The profile `command`: a program is an agent (WIRE section 5, "A session's life"; section 8, the environment)."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from oubliette.agents.base import MAX_TEXT, Transcript, TurnResult
from oubliette.agents.command import CommandAgent
from oubliette.agents.environment import agent_environment
from oubliette.runtimes.base import Settings
from oubliette.runtimes.process import ProcessRuntime
from tests.helpers.domain import OWNER, open_domain
from tests.helpers.sandbox import HostSandbox, Told
from tests.helpers.waiting import LIMIT, until_gone


async def run(folder: Path, *command: str, prompt: str = "hello", **environment: str) -> tuple[TurnResult, list[str]]:
    """Runs one turn; returns its result and what was said on the way."""
    told, sandbox = Told(), HostSandbox(folder, variables={"WHO": "place"})
    with trio.fail_after(LIMIT):
        async with CommandAgent(command, environment).converse(sandbox) as conversation:
            result = await conversation.turn(told.turn(prompt, NEAREST="workspace"))
    assert told.reports == []
    return result, told.texts


async def test_the_prompt_comes_on_stdin(tmp_path: Path) -> None:
    result, said = await run(tmp_path, "sh", "-c", "tr a-z A-Z; echo; echo again", prompt="hello\nwörld")
    assert result.text == "HELLO\nWöRLD\nagain"
    assert said == ["HELLO", "WöRLD", "again"]


async def test_paragraphs_stay_apart_in_the_text(tmp_path: Path) -> None:
    result, said = await run(tmp_path, "cat", prompt="# Title\n\nOne.\n\n\nTwo.\n")
    assert result.text == "# Title\n\nOne.\n\n\nTwo."
    assert said == ["# Title", "One.", "Two."]


async def test_nothing_is_said_of_a_program_that_is_silent(tmp_path: Path) -> None:
    result, said = await run(tmp_path, "true")
    assert (result.text, said, result.exit_code, result.usage) == ("", [], 0, None)


async def test_the_prompt_comes_as_an_argument_where_one_asks_for_it(tmp_path: Path) -> None:
    script = 'printf "%s|" "$0" "$1"; cat'
    result, _ = await run(tmp_path, "sh", "-c", script, "--ask={prompt}", "{prompt}", prompt="a b; $(exit 3)")
    assert result.text == "--ask=a b; $(exit 3)|a b; $(exit 3)|"


@pytest.mark.parametrize("prompt", ["", "-x", "--help", "a\nb", "'\"", "{prompt}"])
async def test_a_hostile_prompt_is_an_argument_like_any_other(tmp_path: Path, prompt: str) -> None:
    """HAZARDS T20."""
    result, _ = await run(tmp_path, "printf", "%s|", "{prompt}", prompt=prompt)
    assert result.text == f"{prompt}|"


async def test_an_exit_code_comes_with_its_complaint(tmp_path: Path) -> None:
    result, said = await run(tmp_path, "sh", "-c", "echo half; echo no model >&2; exit 3")
    assert (result.exit_code, result.complaint, result.text, said) == (3, "no model", "half", ["half"])


async def test_the_profiles_environment_goes_over_the_runtimes_and_the_workspaces_over_both(tmp_path: Path) -> None:
    result, _ = await run(tmp_path, "sh", "-c", "echo $WHO $MODEL $NEAREST", WHO="profile", MODEL="m", NEAREST="no")
    assert result.text == "profile m workspace"


async def test_each_turn_starts_it_anew(tmp_path: Path) -> None:
    sandbox = HostSandbox(tmp_path)
    async with CommandAgent(["sh", "-c", "echo $$; cat"], {}).converse(sandbox) as conversation:
        first = await conversation.turn(Told().turn("one"))
        second = await conversation.turn(Told().turn("two"))
    assert [result.text.splitlines()[1] for result in (first, second)] == ["one", "two"]
    assert first.text.splitlines()[0] != second.text.splitlines()[0]
    assert "canary" not in repr(CommandAgent(["true"], {"KEY": "canary"}).program(Told().turn("x", OTHER="canary")))


async def test_a_program_of_the_operators_own_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is meant from where the daemon was started, and the agent starts in its workspace."""
    (tmp_path / "bin").mkdir()
    agent = tmp_path / "bin" / "agent"
    agent.write_text("#!/bin/sh\npwd\n")
    agent.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    result, _ = await run(tmp_path, "bin/agent")
    assert result.text == str((tmp_path / "workspace").resolve())


async def test_of_a_long_text_the_end_is_kept(tmp_path: Path) -> None:
    """HAZARDS G9: an agent that never stops talking does not fill the memory."""
    script = "head -c 3000000 /dev/zero | tr '\\0' x | fold -w 1000; echo; echo end"
    result, said = await run(tmp_path, "sh", "-c", script)
    assert len(said) == 3001
    assert (len(result.text), result.text[-4:]) == (MAX_TEXT, "\nend")


@pytest.mark.parametrize("size", [1, 7, 1000, MAX_TEXT - 1, MAX_TEXT, MAX_TEXT + 1])
def test_a_transcript_is_bounded(size: int) -> None:
    transcript = Transcript()
    lines = [f"{number}" + "x" * size for number in range(3 + 5 * MAX_TEXT // (2 * (size + 2)) % 3000)]
    for line in lines:
        transcript.add(line)
    assert transcript.text == "\n".join(lines)[-MAX_TEXT:]
    assert sum(len(line) + 1 for line in transcript._lines) <= MAX_TEXT + len(lines[-1]) + 1


def test_a_transcript_of_nothing_is_empty() -> None:
    assert Transcript().text == ""


# The environment (WIRE section 8)


def test_the_environment_names_the_session_and_passes_on_no_secret(tmp_path: Path) -> None:
    environ = {"PATH": "/bin", "HOME": "/root", "LANG": "C", "OUBLIETTE_TOKEN": "canary", "API_KEY": "canary"}
    found = agent_environment(
        session_id="ses_1", project_id="p", folder=tmp_path, socket=Path("/run/x/relay.sock"), environ=environ
    )
    client = found.pop("OUBLIETTE_CLIENT")
    assert found == {
        "PATH": "/bin",
        "HOME": "/root",
        "LANG": "C",
        "OUBLIETTE_SOCKET": "/run/x/relay.sock",
        "OUBLIETTE_SESSION_ID": "ses_1",
        "OUBLIETTE_PROJECT_ID": "p",
        "OUBLIETTE_WORKSPACE": str(tmp_path),
    }
    assert shlex.split(client) == [sys.executable, "-m", "oubliette_client"]


def test_the_client_that_it_names_starts() -> None:
    found = agent_environment(session_id="s", project_id="p", folder=Path("/"), socket=Path("/x"))
    help_text = subprocess.run(
        [*shlex.split(found["OUBLIETTE_CLIENT"]), "--help"], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert "--socket" in help_text.stdout


# Within a session


def process(folder: Path) -> ProcessRuntime:
    return ProcessRuntime(Settings(data_dir=folder, bundle=folder / "bundle"))


async def test_a_session_of_a_command(tmp_path: Path) -> None:
    agent = CommandAgent(["sh", "-c", "read line; echo $OUBLIETTE_SESSION_ID; echo $line; [ $line != fail ]"], {})
    async with open_domain(tmp_path, agents={"command": agent}, runtime=process(tmp_path)) as domain:
        with trio.fail_after(LIMIT):
            view = await domain.run(OWNER, "session_message", message="hi", agent="command", wait=True)
            assert (view["text"], view["status"]) == (f"{view['session_id']}\nhi", "idle")
            session = await domain.sessions.find(view["session_id"])
            session.message("fail")
            await session.over.wait()
        assert session.status == "failed"


@pytest.mark.parametrize(
    ("command", "message", "words"),
    [
        (["/nowhere/agent"], "hi", "No such file or directory"),
        (["echo", "{prompt}"], "a\0b", "embedded null byte"),
        (["echo", "{prompt}"], "x" * 3_000_000, "Argument list too long"),
    ],
)
async def test_a_command_that_cannot_be_started_fails_its_session_in_words(
    tmp_path: Path, command: list[str], message: str, words: str
) -> None:
    agents = {"command": CommandAgent(command, {})}
    async with open_domain(tmp_path, agents=agents, runtime=process(tmp_path)) as domain:
        session = await domain.start(agent="command", message=message)
        with trio.fail_after(LIMIT):
            await session.over.wait()
        assert words in domain.records.stored[-2].data.decode()
        assert session.status == "failed"


async def test_the_end_of_a_session_ends_its_command(tmp_path: Path) -> None:
    agent = CommandAgent(["sh", "-c", "sleep 1000 & echo $!; wait"], {})
    async with open_domain(tmp_path, agents={"command": agent}, runtime=process(tmp_path)) as domain:
        session = await domain.start(agent="command")
        with domain.stream(session, after=2) as stream, trio.fail_after(LIMIT):
            (said,) = await stream.batch()
            await domain.sessions.end(session)
        pid = said.data.decode().partition('"text":"')[2].partition('"')[0]
        assert session.status == "ended"
        await until_gone(int(pid))
