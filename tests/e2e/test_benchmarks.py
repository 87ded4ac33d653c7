"""The benchmarks run, check every answer, print every row, and leave no process. What they measure is not asserted."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from benchmarks import agents, crowd
from benchmarks.followers import Follower
from benchmarks.http1 import ChunkReader, EventReader, ResponseReader, request
from benchmarks.load import DAEMON_SOCKET, FLOOR_SOCKET, SDK
from benchmarks.meters import percentile
from benchmarks.relay import BUSY, verdicts
from benchmarks.rounds import Row
from benchmarks.websocket import FrameReader, text_frame
from oubliette.protocol import frames

# Long enough for a machine under load; a benchmark in quick mode takes a few seconds.
PATIENCE_SECONDS = 60
MISSING = [name for name in ("mcp", "uvicorn") if importlib.util.find_spec(name) is None]
needs_the_sdk = pytest.mark.skipif(bool(MISSING), reason=f"the SDK relay needs {', '.join(MISSING)}")


async def run_quickly(module: str, *options: str) -> str:
    """Returns what a benchmark prints in quick mode."""
    command = [sys.executable, "-m", f"benchmarks.{module}", "--quick", *options]
    with trio.fail_after(PATIENCE_SECONDS):
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.heavy
@needs_the_sdk
async def test_relay_prints_a_row_for_every_system() -> None:
    rows = [line.split() for line in (await run_quickly("relay")).splitlines() if line]
    figures = {" ".join(row[:-8]): [float(cell.rstrip("%")) for cell in row[-8:]] for row in rows[2:]}
    over_http = ["floor", "SDK relay", "daemon, MCP", "daemon, HTTP"]
    assert list(figures) == [*over_http, "floor, WebSocket", "daemon, WebSocket"]
    assert all(rate > 0 and 0 < p50 <= p99 and cpu > 0 for rate, p50, p99, cpu, *_ in figures.values())


@pytest.mark.heavy
async def test_parallel_prints_each_system_beside_the_one_that_takes_turns() -> None:
    rates = json.loads(await run_quickly("parallel", "--json"))
    assert list(rates) == ["one by one", "daemon, MCP"]
    # Each tool takes 50 ms: one after the other that is 20 a second on any machine.
    assert 0 < rates["one by one"] <= 20.5


@pytest.mark.heavy
async def test_fanout_gives_every_stream_every_event() -> None:
    rows = json.loads(await run_quickly("fanout", "--json"))
    assert sorted(rows) == ["SSE, 3 streams", "WebSocket, 3 streams"]
    assert all(row["calls_per_second"] > 0 and row["cpu_us_per_call"] > 0 for row in rows.values())


@pytest.mark.heavy
async def test_crowd_prints_the_busy_among_the_idle() -> None:
    heading, row = (await run_quickly("crowd", "--door", "ws")).splitlines()
    assert heading.split()[0] == "calls/s"
    assert row.startswith("20 sessions, 2 busy")


@pytest.mark.heavy
async def test_idle_prints_memory_and_cpu_beside_their_aims() -> None:
    first, memory, cpu = (await run_quickly("idle")).splitlines()
    assert first.startswith("20 idle sessions")
    assert "KiB of at most 100" in memory
    assert "of one core" in cpu


@pytest.mark.heavy
async def test_startup_prints_daemon_and_client() -> None:
    result = json.loads(await run_quickly("startup", "--json"))
    assert {name: len(runs) for name, runs in result.items()} == {"daemon_ms": 1, "client_ms": 1, "client_mib": 1}
    assert all(value > 0 for runs in result.values() for value in runs)


@pytest.mark.heavy
async def test_agents_prints_the_starts_beside_those_by_hand_and_a_crowd() -> None:
    result = json.loads(await run_quickly("agents", "--json"))
    assert list(result["starts"]) == ["process"]
    assert all(len(runs) == 1 and runs[0] > 0 for runs in result["starts"]["process"].values())
    seen = result["crowd"]
    assert (seen["sessions"], seen["finished"]) == (3, 3)
    assert len(seen["call_ms"]) == len(seen["relay_ms"]) == 6
    assert 0 < seen["first_listed"] <= seen["last_listed"] < seen["seconds"]


async def test_a_benchmark_that_is_terminated_leaves_no_process() -> None:
    command = [sys.executable, "-m", "benchmarks.relay", "--systems", "floor"]
    with trio.fail_after(PATIENCE_SECONDS):
        process = await trio.lowlevel.open_process(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            children = await until_it_has_children(process.pid, 3)  # the floor, the callers and the agents
        finally:
            process.send_signal(signal.SIGTERM)
            await process.wait()
    assert not [pid for pid in children if is_running(pid)]


async def until_it_has_children(pid: int, number: int) -> list[int]:
    """Returns the ids of the processes that process `pid` has started, as soon as there are `number`."""
    while len(children := children_of(pid)) < number:  # noqa: ASYNC110 - there is no event for another process's state
        await trio.sleep(0.01)
    return children


def children_of(pid: int) -> list[int]:
    """Returns the ids of the processes that any thread of process `pid` has started and that still run."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


def is_running(pid: int) -> bool:
    """Tells whether there is a process `pid`."""
    return Path(f"/proc/{pid}").exists()


RESPONSES = {
    "counted": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello"),
    "chunked": (b"HTTP/1.1 200 \r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", 200, b"hello"),
    "no content": (b"HTTP/1.1 204 \r\ndate: now\r\n\r\n", 204, b""),
}


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_is_read_however_it_is_cut(name: str, size: int) -> None:
    data, status, body = RESPONSES[name]
    reader = ResponseReader()
    *earlier, last = [reader.feed(data[start : start + size]) for start in range(0, len(data), size)]
    assert earlier == [None] * len(earlier)
    assert last is not None
    assert (last.status, last.body) == (status, body)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_are_read_however_they_are_cut(size: int) -> None:
    text = b'id: 1\nevent: a\ndata: {"n":1}\n\n: keep-alive\n\ndata: {"n":2}\r\n\r\n'
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (text[:20], text[20:]))
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    reader = EventReader()
    events = [event for start in range(0, len(data), size) for event in reader.feed(data[start : start + size])]
    assert reader.status == 200
    assert events == [b'{"n":1}', b'{"n":2}']


def row(p99_ms: float = 1.0, cpu_us_per_call: float = 1.0) -> Row:
    return Row(100, 1, p99_ms, cpu_us_per_call, 0, 0)


def test_a_crowd_is_held_against_the_few_at_the_same_rate() -> None:
    few, many, *_ = crowd.cases(2000, 100, rate=3)
    assert (few.level.calls_per_second, many.level.calls_per_second, many.idle) == (3, 3, 1900)
    *_, met = crowd.table({few: row(p99_ms=2), many: row(p99_ms=9)})
    *_, missed = crowd.table({few: row(p99_ms=2), many: row(p99_ms=10)})
    assert met.endswith("4.50 times as long, of less than 5: met")
    assert missed.endswith("5.00 times as long, of less than 5: MISSED")


def test_what_the_daemon_adds_is_judged_round_by_round() -> None:
    # The machine was slow in the second round: both were.
    starts = agents.Starts(daemon_ms=[250, 900, 251], hand_ms=[100, 700, 99])
    _, within, beyond = agents.table(agents.Result({"podman": starts, "process": starts}, {}, None))
    assert (within.split()[3:], beyond.split()[3:]) == (["152", "300", "met"], ["152", "150", "MISSED"])


def test_a_crowd_of_agents_is_held_to_its_p99() -> None:
    def lines(call_ms: float) -> list[str]:
        seen = agents.Crowd(3, 3, 0.1, 0.2, 0.3, 0.1, [1.0] * 98 + [call_ms] * 2, [1.0])
        return list(agents.table(agents.Result({}, {"podman": "there is none"}, seen)))

    missing, first, *_, met = lines(249.0)
    assert missing == "podman: not measured: there is none"
    assert first.startswith("3 of 3 sessions finished in 0.3 s")
    assert met.endswith("met")
    assert lines(250.0)[-1].endswith("MISSED")


def test_a_socket_is_judged_beside_the_sdk_relay_and_its_own_floor() -> None:
    rows = {
        SDK: row(cpu_us_per_call=100),
        FLOOR_SOCKET: row(cpu_us_per_call=30),
        DAEMON_SOCKET: row(cpu_us_per_call=39),
    }
    verdict = [line.rpartition(" is ")[2] for line in verdicts({BUSY: rows})]
    assert verdict == ["0.39 × SDK relay, of at most 0.4: met", "1.30 × floor, WebSocket, of at most 1.25: MISSED"]


@pytest.mark.parametrize("indexes", [(4, 6), (4, 4), (4, 3)])
def test_a_stream_that_is_not_given_every_event_in_order_is_an_error(indexes: tuple[int, int]) -> None:
    follower = Follower()
    with pytest.raises(ValueError, match="behind event 4"):
        follower.take([b'{"type":"caller_tool_request","index":%d,"ts":""}' % index for index in indexes])


SWITCHED = (
    b"HTTP/1.1 101 \r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
    + frames.text_frame(b"{}")
    + frames.ping_frame(b"?")
    + frames.text_frame(b"x" * 300)
    + b"\x81\x7f\0\0\0\0\0\0\1\x2c"
    + b"y" * 300
)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_messages_are_read_however_they_are_cut(size: int) -> None:
    reader = FrameReader()
    read = [
        message for start in range(0, len(SWITCHED), size) for message in reader.feed(SWITCHED[start : start + size])
    ]
    assert reader.status == 101
    assert read == [b"{}", b"x" * 300, b"y" * 300]
    assert read_by_the_daemon(reader.reply) is frames.NOTHING_YET, "a pong"


@pytest.mark.parametrize("length", [0, 1, 125, 126, 1000, 65_535])
def test_the_daemon_reads_the_frames_of_the_load(length: int) -> None:
    text = b"0123456789" * 6554
    assert read_by_the_daemon(text_frame(text[:length])) == text[:length]


def read_by_the_daemon(data: bytes) -> frames.Event:
    reader = frames.FrameReader(70_000)
    reader.receive_data(data)
    return reader.next_event()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n", ValueError),
        (SWITCHED + frames.close_frame(1001), ConnectionError),
        (SWITCHED + b"\x82\x00", ValueError),
    ],
)
def test_what_ends_a_websocket_is_an_error(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        FrameReader().feed(data)


def test_an_answer_that_is_no_stream_is_shown() -> None:
    with pytest.raises(ValueError, match="404"):
        EventReader().feed(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")


def test_nothing_is_read_behind_the_last_chunk() -> None:
    chunks = ChunkReader()
    assert chunks.feed(b"1\r\na\r\n0\r\n\r\n5\r\nhello\r\n") == b"a"
    assert chunks.ended


def test_a_request_says_how_long_its_body_is() -> None:
    assert request("POST", "/x", {"host": "h"}, b"12") == b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n12"
    assert request("GET", "/x", {"host": "h"}) == b"GET /x HTTP/1.1\r\nhost: h\r\n\r\n"


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.01, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_percentiles_are_nearest_ranks(share: float, expected: float) -> None:
    assert percentile([float(value) for value in range(1, 101)], share) == expected
