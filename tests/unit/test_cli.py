"""The command line's parts that need no daemon: where it finds one, how it follows, and what it prints."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import click
import pytest

from oubliette.cli.client import DaemonClient, RefusedError, UnreachableError
from oubliette.cli.main import COMMANDS, main
from oubliette.cli.places import Address, AddressError, find_daemon
from oubliette.cli.show import visible
from oubliette.cli.watch import TRIES, Watch, line_of
from oubliette.protocol.sse import ServerSentEvent, encode
from oubliette.tokens import ADMIN_TOKEN_FILE

TOKEN = "oub_0123_" + "ab" * 32


# Where the daemon is


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "daemon.url").write_text("http://127.0.0.1:4711\n")
    (tmp_path / ADMIN_TOKEN_FILE).write_text("oub_local_1\n")
    return tmp_path


def test_the_environment_goes_over_the_data_directory(data_dir: Path) -> None:
    environ = {"OUBLIETTE_URL": "https://far.example/oubliette", "OUBLIETTE_TOKEN": TOKEN}
    assert find_daemon(data_dir, environ) == Address("https://far.example/oubliette", TOKEN)


def test_the_data_directory_says_both(data_dir: Path) -> None:
    empty = {"OUBLIETTE_URL": "", "OUBLIETTE_TOKEN": ""}
    assert find_daemon(data_dir, empty) == Address("http://127.0.0.1:4711", "oub_local_1")


def test_without_a_daemon_yet_the_address_is_the_default(tmp_path: Path) -> None:
    assert find_daemon(tmp_path, {"OUBLIETTE_TOKEN": TOKEN}) == Address("http://127.0.0.1:8080", TOKEN)


def test_the_local_token_goes_to_this_machine_alone(data_dir: Path) -> None:
    assert find_daemon(data_dir, {"OUBLIETTE_URL": "http://localhost:1"}).token == "oub_local_1"
    with pytest.raises(AddressError, match="OUBLIETTE_TOKEN is not set"):
        find_daemon(data_dir, {"OUBLIETTE_URL": "http://far.example:8080"})


def test_a_missing_token_is_said_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match=r"set OUBLIETTE_TOKEN, or .*--data-dir.* no admin\.token in"):
        find_daemon(tmp_path, {})


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://", "http://x:99999", "http://[::1", "http://x:0"])
def test_what_is_no_address_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(AddressError, match="is not the address of a daemon"):
        find_daemon(tmp_path, {"OUBLIETTE_URL": url, "OUBLIETTE_TOKEN": TOKEN})


@pytest.mark.parametrize("token", ["oub_1_2\nX-Header: 1", "oub 1", "oub_ä"])
def test_a_token_that_fits_no_header_is_refused_unseen(tmp_path: Path, token: str) -> None:
    with pytest.raises(AddressError) as refused:
        find_daemon(tmp_path, {"OUBLIETTE_TOKEN": token})
    assert token not in str(refused.value)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / ADMIN_TOKEN_FILE).mkdir()
    with pytest.raises(AddressError, match=r"cannot read .*admin\.token"):
        find_daemon(tmp_path, {})


# What is printed


def test_what_would_steer_a_terminal_is_escaped() -> None:
    assert visible("a\x1b[2Jb\r\n\x9b\u202e\u2028\ud800") == r"a\x1b[2Jb\r\n\x9b\u202e\u2028\ud800"
    assert visible("Grüße, 世界 👋 [bold]") == "Grüße, 世界 👋 [bold]"


def test_an_event_is_one_line() -> None:
    common = {"session_id": "ses_1", "ts": "2026-01-02T03:04:05.678Z"}
    said = {"type": "message", **common, "index": 7, "role": "assistant", "text": "two\nlines\x1b[0m"}
    assert line_of(said) == r"03:04:05.678     7  message                assistant: two\nlines\x1b[0m"
    request = {"type": "caller_tool_request", **common, "index": 8, "tool": "send", "arguments": {"a": 1}, "none": None}
    assert line_of(request) == '03:04:05.678     8  caller_tool_request    tool=send  arguments={"a": 1}'


def test_what_has_no_index_is_a_line_too() -> None:
    assert line_of({"type": "events_purged", "session_id": "s", "since_index": 0, "first_index": 9}).split() == [
        "events_purged",
        "since_index=0",
        "first_index=9",
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_imported(name: str) -> None:
    context = click.Context(main)
    command = main.get_command(context, name)
    assert isinstance(command, click.Command)
    assert command.name == name


# Following


class Daemon:
    """Plays one script a connection: events, then what ends it, an exception or a clean end."""

    url = "http://daemon"

    def __init__(self, *connections: list[Any], status: str = "running") -> None:
        self._connections = list(connections)
        self._status = status
        self.resumed_at: list[str] = []

    @contextmanager
    def events(self, path: str, last_id: str = "") -> Iterator[Iterator[ServerSentEvent]]:
        assert path == "/sessions/ses%2F1/events"
        self.resumed_at.append(last_id)
        script = self._connections.pop(0) if self._connections else [UnreachableError("refused")]
        if script and isinstance(script[0], Exception):
            raise script[0]
        yield self._play(script)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        assert (method, path) == ("GET", "/sessions/ses%2F1")
        return {"status": self._status}

    def _play(self, script: list[Any]) -> Iterator[ServerSentEvent]:
        for step in script:
            if isinstance(step, Exception):
                raise step
            yield step


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr("time.sleep", made.append)
    return made


def event(index: int, kind: str = "message") -> ServerSentEvent:
    return ServerSentEvent(data="{}", type=kind, id=str(index))


def follow(daemon: Daemon, since: int = 0) -> tuple[list[str], list[str]]:
    """Returns the ids of the events, and what was said of lost connections."""
    lost: list[str] = []
    watch = Watch(daemon, "ses/1", since, lambda error: lost.append(str(error)))  # type: ignore[arg-type]  # a double
    return [event.id for event in watch.events()], lost


def test_a_broken_connection_is_resumed_after_the_last_event(pauses: list[float]) -> None:
    broken = UnreachableError("broken")
    daemon = Daemon([event(1), event(2), broken], [broken], [event(3), event(4, "session_ended")])
    assert follow(daemon) == (["1", "2", "3", "4"], ["broken", "broken"])
    assert daemon.resumed_at == ["0", "2", "2"]
    assert pauses == [0.2, 0.4]


def test_tries_are_bounded_and_counted_anew_after_an_event(pauses: list[float]) -> None:
    broken = UnreachableError("broken")
    daemon = Daemon([event(1), broken], [broken], [event(2), broken])
    with pytest.raises(UnreachableError, match="refused"):
        follow(daemon)
    assert daemon.resumed_at == ["0", "1", "1", *["2"] * TRIES]
    assert pauses == [0.2, 0.4, *(0.2 * 2**n for n in range(TRIES))]


def test_a_first_connection_that_fails_is_final(pauses: list[float]) -> None:
    daemon = Daemon([UnreachableError("refused")])
    with pytest.raises(UnreachableError, match="refused"):
        follow(daemon)
    assert pauses == []


def test_a_refusal_is_final(pauses: list[float]) -> None:
    daemon = Daemon([event(1), UnreachableError("broken")], [RefusedError("unauthorized", "revoked")])
    with pytest.raises(RefusedError, match="revoked"):
        follow(daemon)
    assert pauses == [0.2]


def test_a_session_that_had_ended_before_the_index_is_over(pauses: list[float]) -> None:
    assert follow(Daemon([], status="completed"), since=9) == ([], [])
    assert pauses == []


def test_a_stream_that_ends_before_the_session_is_opened_again(pauses: list[float]) -> None:
    daemon = Daemon([event(1)], [event(2, "session_ended")])
    assert follow(daemon) == (["1", "2"], ["the daemon at http://daemon has ended the stream"])


# The client, against servers that are no daemon or take long


class Server(http.server.BaseHTTPRequestHandler):
    """Answers as its script says: (status, content type, body) by method and path."""

    answers: ClassVar[dict[str, tuple[int, str, bytes]]] = {}
    heard: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        method = json.loads(self.rfile.read(length))["method"] if length else self.path
        self.heard.append(f"{self.command} {method}")
        status, kind, body = self.answers[method]
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Mcp-Session-Id", "1234")
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    Server.answers, Server.heard = {}, []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


INITIALIZED = (200, "application/json", b'{"id": 0, "result": {"protocolVersion": "2025-06-18"}}')


def test_an_answer_that_takes_long_is_an_event_of_a_stream(server: str) -> None:
    answer = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"structuredContent": {"text": "done"}}})
    Server.answers = {
        "initialize": INITIALIZED,
        "notifications/initialized": (202, "text/plain", b""),
        "tools/call": (200, "text/event-stream; charset=utf-8", b": keep-alive\n\n" + encode(answer, type="message")),
        "/mcp": (204, "text/plain", b""),
    }
    assert DaemonClient(server, TOKEN).call_tool("session_message", {"message": "x", "wait": True}) == {"text": "done"}
    assert Server.heard == ["POST initialize", "POST notifications/initialized", "POST tools/call", "DELETE /mcp"]


def test_an_error_of_json_rpc_is_a_refusal(server: str) -> None:
    error = {"code": -32602, "message": "unknown tool", "data": {"kind": "invalid_params"}}
    Server.answers = {
        "initialize": INITIALIZED,
        "notifications/initialized": (202, "text/plain", b""),
        "tools/call": (200, "application/json", json.dumps({"id": 1, "error": error}).encode()),
        "/mcp": (204, "text/plain", b""),
    }
    with pytest.raises(RefusedError, match="unknown tool") as refused:
        DaemonClient(server, TOKEN).call_tool("nope", {})
    assert refused.value.kind == "invalid_params"


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("body", [b"<html>", b"\xff", b"[" * 100_000, b'{"detail": "Not Found"}'])
def test_another_server_is_told_from_a_daemon(server: str, status: int, body: bytes) -> None:
    Server.answers = {"initialize": (status, "text/html", body)}
    with pytest.raises(UnreachableError, match="is not an Oubliette daemon"):
        DaemonClient(server, TOKEN).call_tool("token_list", {})


def test_the_beginning_of_an_event_is_no_event(server: str) -> None:
    Server.answers = {"/events": (200, "text/event-stream", b"id: 1\ndata: {}\n\nid: 2\nda")}
    with DaemonClient(server, TOKEN).events("/events") as events:
        assert [event.id for event in events] == ["1"]


def test_a_host_name_that_is_none_is_unreachable() -> None:
    with pytest.raises(UnreachableError, match="cannot reach the daemon at http://a\\.\\.b"):
        DaemonClient("http://a..b", TOKEN).request("GET", "/sessions/x")
