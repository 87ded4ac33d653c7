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

from benchmarks.agents import percentile
from benchmarks.http1 import ChunkReader, EventReader, ResponseReader, request

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


@needs_the_sdk
async def test_relay_prints_a_row_for_every_system() -> None:
    rows = [line.split() for line in (await run_quickly("relay")).splitlines() if line]
    figures = {" ".join(row[:-8]): [float(cell.rstrip("%")) for cell in row[-8:]] for row in rows[2:]}
    assert list(figures) == ["floor", "SDK relay", "daemon, MCP", "daemon, HTTP"]
    assert all(rate > 0 and 0 < p50 <= p99 and cpu > 0 for rate, p50, p99, cpu, *_ in figures.values())


async def test_parallel_prints_each_system_beside_the_one_that_takes_turns() -> None:
    rates = json.loads(await run_quickly("parallel", "--json"))
    assert list(rates) == ["one by one", "daemon, MCP", "daemon, HTTP"]
    # Each tool takes 50 ms: one after the other that is 20 a second on any machine.
    assert 0 < rates["one by one"] <= 20.5


async def test_idle_prints_memory_and_cpu_beside_their_aims() -> None:
    first, memory, cpu = (await run_quickly("idle")).splitlines()
    assert first.startswith("20 idle sessions")
    assert "KiB of at most 100" in memory
    assert "of one core" in cpu


async def test_startup_prints_daemon_and_client() -> None:
    result = json.loads(await run_quickly("startup", "--json"))
    assert {name: len(runs) for name, runs in result.items()} == {"daemon_ms": 1, "client_ms": 1, "client_mib": 1}
    assert all(value > 0 for runs in result.values() for value in runs)


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
