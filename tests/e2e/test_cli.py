"""The command line as its user meets it: real commands as processes, against a real daemon."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.http import Api
from tests.helpers.link import open_link
from tests.helpers.process import DaemonProcess

# Far more than any command takes, on a machine under load; in seconds.
PATIENCE = 30
# What an agent says of the tools that it has without a caller's.
TOOLS = (
    "tools: session_message, project_list, ot_tools, ot_packs, ot_aliases, ot_snippets, ot_config, ot_health, ot_notify"
)
TOKEN = re.compile(r"oub_[a-z0-9]+_[0-9a-f]{64}")


class Cli:
    """Runs `oubliette` as a user with a token would."""

    def __init__(self, url: str, token: str | None) -> None:
        ours = {"OUBLIETTE_URL": url, **({"OUBLIETTE_TOKEN": token} if token is not None else {})}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OUBLIETTE_")}
        self.environ = {**kept, "PYTHONWARNINGS": "error", **ours}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "oubliette", *arguments]
        return subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL
        )

    def ok(self, *arguments: str) -> str:
        """Returns the stdout of a command that succeeds."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def refused(self, *arguments: str) -> str:
        """Returns what stderr says of a command that the daemon refuses: one line."""
        done = self.run(*arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        return done.stderr

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A command that runs on, killed at the end of the block where it still does."""
        command = [sys.executable, "-m", "oubliette", *arguments]
        with subprocess.Popen(
            command, env=self.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            try:
                yield process
            finally:
                process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.fixture
def cli(daemon: DaemonProcess) -> Cli:
    return Cli(daemon.url, daemon.admin_token)


# token


def test_a_token_is_created_listed_and_revoked(cli: Cli, daemon: DaemonProcess) -> None:
    created = cli.run("token", "create", "ci", "--scope", "project:default", "--expires-in", "3600")
    assert created.returncode == 0
    token = created.stdout.strip()
    assert TOKEN.fullmatch(token)
    token_id = token.split("_")[1]
    assert token not in created.stderr
    assert token_id in created.stderr
    listed = {entry["token_id"]: entry for entry in cli.json("token", "list")["tokens"]}
    assert (listed[token_id]["name"], listed[token_id]["scope"]) == ("ci", "project:default")
    assert listed[token_id]["expires_at"] > listed[token_id]["created_at"]
    owner = Cli(daemon.url, token)
    assert "forbidden" in owner.refused("token", "list")
    assert owner.json("session", "list", "--limit", "1").keys() >= {"sessions"}
    assert token_id in cli.ok("token", "revoke", token_id)
    assert "(unauthorized)" in owner.refused("session", "list")


def test_a_token_is_shown_once(cli: Cli) -> None:
    created = cli.json("token", "create", "once", "--scope", "admin:ro")
    assert TOKEN.fullmatch(created["token"])
    for options in ([], ["--json"]):
        listed = cli.ok("token", "list", *options)
        assert created["token_id"] in listed
        assert not TOKEN.search(listed)
    assert cli.json("token", "revoke", created["token_id"]) == {"revoked": True}


def test_what_the_daemon_refuses_of_tokens_is_said_with_its_kind(cli: Cli) -> None:
    assert "one of: admin, admin:ro" in cli.refused("token", "create", "x", "--scope", "root")
    assert "(invalid_params)" in cli.refused("token", "create", "x", "--scope", "admin", "--expires-in", "-1")
    assert cli.refused("token", "revoke", "nobody") == "error: no token 'nobody' (not_found)\n"


def test_a_wrong_token_is_refused_and_not_repeated(daemon: DaemonProcess) -> None:
    token = f"oub_0123456789ab_{'ab' * 32}"
    for command in (["token", "list"], ["session", "list"], ["session", "watch", "x"], ["session", "send", "x"]):
        said = Cli(daemon.url, token).refused(*command)
        assert "(unauthorized)" in said
        assert not TOKEN.search(said)


# session


def test_a_session_is_sent_to_listed_and_ended(cli: Cli) -> None:
    session_id = cli.ok("session", "send", "hello", "--agent", "external").strip()
    assert cli.ok("session", "send", session_id, "more").strip() == session_id
    rows = {row.split()[0]: row.split() for row in cli.ok("session", "list").splitlines()}
    assert rows["ID"][:4] == ["ID", "STATUS", "AGENT", "PROJECT"]
    assert rows[session_id][:4] == [session_id, "running", "external", "default"]
    ended = cli.ok("session", "end", session_id)
    assert ended == f"session {session_id} has ended: ended\n"
    assert cli.json("session", "end", session_id)["status"] == "ended"
    assert f"session '{session_id}' has ended" in cli.refused("session", "send", session_id, "again")


def test_sessions_are_listed_by_status_project_and_number(cli: Cli) -> None:
    ids = [cli.json("session", "send", "x", "--agent", "external")["session_id"] for _ in range(2)]
    cli.ok("session", "end", ids[0])
    ended = cli.json("session", "list", "--status", "ended", "--project", "default")["sessions"]
    assert ended[0]["session_id"] == ids[0]
    assert {entry["status"] for entry in ended} == {"ended"}
    newest = cli.run("session", "list", "--limit", "1")
    assert [row.split()[0] for row in newest.stdout.splitlines()] == ["ID", ids[1]]
    assert "--limit" in newest.stderr
    assert "(not_found)" in cli.refused("session", "list", "--project", "nowhere")
    cli.ok("session", "end", ids[1])


def test_waiting_prints_what_the_agent_said_and_nothing_else(cli: Cli) -> None:
    done = cli.run("session", "send", "--wait", "hello")
    assert (done.returncode, done.stdout) == (0, f"{TOOLS}\n")
    session_id = done.stderr.strip()
    again = cli.json("session", "send", session_id, "--wait", "hello again")
    assert (again["session_id"], again["text"], again["status"]) == (session_id, TOOLS, "idle")
    assert "no turns to wait for" in cli.refused("session", "send", "x", "--wait", "--agent", "external")
    assert "unknown agent 'nobody'" in cli.refused("session", "send", "x", "--agent", "nobody")
    cli.ok("session", "end", session_id)


def test_a_message_of_several_words_needs_quotes(cli: Cli) -> None:
    done = cli.run("session", "send", "a", "b", "c")
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs quotes" in done.stderr


def test_watching_prints_every_event_and_ends_with_the_session(cli: Cli) -> None:
    session_id = cli.ok("session", "send", "a\x1b[31mb", "--agent", "external").strip()
    with cli.started("session", "watch", session_id) as watching:
        first, second = line(watching).split(), line(watching).split(maxsplit=3)
        assert first[1:3] == ["1", "session_started"]
        assert second[1:] == ["2", "message", "user: a\\x1b[31mb\n"]
        cli.ok("session", "end", session_id)
        assert line(watching).split()[1:] == ["3", "session_ended", "reason=ended"]
        assert watching.wait(PATIENCE) == 0
    events = [
        json.loads(text) for text in cli.ok("session", "watch", session_id, "--json", "--since", "1").splitlines()
    ]
    assert [(event["index"], event["type"]) for event in events] == [(2, "message"), (3, "session_ended")]
    assert events[0]["text"] == "a\x1b[31mb"
    assert cli.ok("session", "watch", session_id, "--since", "3") == ""


@pytest.mark.parametrize("command", [["watch"], ["end"], ["send"]])
def test_an_unknown_session_is_not_found(cli: Cli, command: list[str]) -> None:
    said = cli.refused("session", *command, "ses_/../x", *(["hello"] if command == ["send"] else []))
    assert "(not_found)" in said


def test_ctrl_c_ends_watching_quietly(cli: Cli) -> None:
    session_id = cli.ok("session", "send", "x", "--agent", "external").strip()
    with cli.started("session", "watch", session_id) as watching:
        assert "session_started" in line(watching)
        watching.send_signal(signal.SIGINT)
        _, complaint = watching.communicate(timeout=PATIENCE)
        assert (watching.returncode, complaint) == (130, "")
    assert cli.json("session", "end", session_id)["status"] == "ended"


def test_watching_goes_on_when_the_daemon_comes_back() -> None:
    with DaemonProcess() as daemon:
        cli = Cli(daemon.url, daemon.admin_token)
        session_id = cli.ok("session", "send", "x", "--agent", "external").strip()
        with cli.started("session", "watch", session_id, "--json") as watching:
            seen = [json.loads(line(watching))["index"] for _ in range(2)]
            assert seen == [1, 2]
            port = daemon.port
            daemon.kill()
            daemon.start("--port", str(port))
            rest, complaint = watching.communicate(timeout=PATIENCE)
            assert watching.returncode == 0
            events = [json.loads(text) for text in rest.splitlines()]
            assert (events[-1]["type"], events[-1]["reason"]) == ("session_ended", "interrupted")
            assert all(event.get("index", 3) > 2 for event in events)
            assert "trying again" in complaint


# Addresses, and what is printed where


def test_the_data_directory_is_enough(daemon: DaemonProcess) -> None:
    cli = Cli("", None)
    listed = cli.ok("token", "list", "--data-dir", str(daemon.data_dir))
    assert "admin" in listed
    cli.environ["OUBLIETTE_DATA_DIR"] = str(daemon.data_dir)
    assert cli.ok("token", "list").splitlines()[0] == listed.splitlines()[0]


@pytest.mark.parametrize("command", [["token", "list"], ["session", "watch", "x"]])
def test_where_no_daemon_is_the_address_and_what_to_do_are_said(command: list[str]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, and not listening
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        done = Cli(url, "oub_secret").run(*command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: cannot reach the daemon at {url}: Connection refused")
    assert "start it with `oubliette serve`" in done.stderr
    assert "oub_secret" not in done.stderr


def test_without_a_token_what_to_do_is_said(tmp_path: Path) -> None:
    done = Cli("", None).run("session", "list", "--data-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "OUBLIETTE_TOKEN" in done.stderr


def test_a_terminal_gets_a_table_that_fits(cli: Cli) -> None:
    """In a pipe rows have no width; a terminal of 80 columns still shows every id whole."""
    session_id = cli.ok("session", "send", "x", "--agent", "external").strip()
    master, slave = pty.openpty()
    os.set_inheritable(slave, True)
    command = [sys.executable, "-m", "oubliette", "session", "list", "--limit", "1"]
    environ = {**cli.environ, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(command, env=environ, stdin=slave, stdout=slave, stderr=subprocess.DEVNULL) as process:
        os.close(slave)
        shown = _read_all(master)
        assert process.wait(PATIENCE) == 0
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip("\r") for text in shown.split("\n")]
    assert max(map(len, lines)) <= 80
    assert any(text.startswith(session_id) for text in lines)
    assert "\x1b[1m" in shown
    cli.ok("session", "end", session_id)


def _read_all(terminal: int) -> str:
    """Returns what comes until the other side is closed, which a terminal tells as an error."""
    chunks = []
    try:
        while chunk := os.read(terminal, 65536):
            chunks.append(chunk)
    except OSError:
        pass
    os.close(terminal)
    return b"".join(chunks).decode()


# The program itself


def test_help_names_every_command(cli: Cli) -> None:
    shown = cli.ok("--help")
    for command in ("serve", "demo", "session", "token"):
        assert re.search(rf"^  {command} ", shown, re.MULTILINE)
    assert cli.run("nonsense").returncode == 2
    assert cli.ok("--version").startswith("oubliette, version ")


def test_without_a_command_the_daemon_is_run(tmp_path: Path) -> None:
    with Cli("", None).started("--port", "0", "--data-dir", str(tmp_path / "d")) as process:
        assert line(process).startswith("listening on http://127.0.0.1:")
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_each_command_imports_only_what_it_needs() -> None:
    for command, unwanted in (
        ("serve", {"oubliette.cli.client", "oubliette.cli.show", "oubliette.demo.run"}),
        ("token", {"trio", "hypercorn", "quart", "rich", "oubliette.daemon"}),
        ("session", {"trio", "hypercorn", "quart", "rich", "oubliette.daemon"}),
    ):
        code = f"main.get_command(click.Context(main), {command!r}); print(*sys.modules)"
        whole = f"import sys, click; from oubliette.cli.main import main; {code}"
        done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        assert not unwanted & set(done.stdout.split())


async def test_who_watches_as_the_owner_counts_as_connected(cli: Cli, api: Api) -> None:
    """WIRE section 3: every stream of the owner counts, that of `session watch` too."""
    session = await api.start_session("send")
    async with open_link(session["socket"]) as link:
        with cli.started("session", "watch", session["session_id"], "--since", "2") as watching:
            await link.call("send", {"message": "hello"})
            assert 'tool=send  arguments={"message": "hello"}' in line(watching)
        assert (await link.receive())["error"]["code"] == -32003
    cli.ok("session", "end", session["session_id"])
