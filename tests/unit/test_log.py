"""Logs: what a line holds, in both formats, and what may never be in one."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import pytest
import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.logging import Logger as HypercornLogger
from hypothesis import given
from hypothesis import strategies as st
from quart_trio import QuartTrio

from oubliette import log
from oubliette.config import AgentsConfig, CommandProfile, Environment
from oubliette.errors import CallerTimeout

TOKEN = "oub_k3Jd9_9fQz7Yt2LmX0canary"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("oubliette")
    before = root.level, ours.level, root.handlers[:]
    yield
    root.setLevel(before[0])
    ours.setLevel(before[1])
    root.handlers[:] = [handler for handler in root.handlers if handler in before[2]]


def set_up(level: str, format: str, stream: io.StringIO) -> io.StringIO:
    logging.getLogger().handlers[:] = []  # pytest's own handlers render each record their way, and raise where it fails
    log.setup(level, format, stream)
    return stream


def json_log(level: str = "debug") -> io.StringIO:
    return set_up(level, "json", io.StringIO())


def console_log() -> io.StringIO:
    return set_up("debug", "console", io.StringIO())


def terminal_log() -> io.StringIO:
    return set_up("debug", "auto", Terminal())


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def only(stream: io.StringIO) -> dict[str, Any]:
    [line] = lines(stream)
    return line


class Clock:
    """Stands in for perf_counter."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(log, "perf_counter", clock)
    return clock


# --- setup -------------------------------------------------------------------------------------------------------


def test_a_json_line_has_time_level_logger_event_and_fields_in_this_order() -> None:
    stream = json_log()
    log.get("oubliette.relay").info("answered", tool="x", count=2)
    line = only(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
    assert list(line.items())[1:] == [
        ("level", "info"),
        ("logger", "oubliette.relay"),
        ("event", "answered"),
        ("tool", "x"),
        ("count", 2),
    ]


def test_a_console_line_reads_as_one() -> None:
    stream = console_log()
    log.get("oubliette.relay").warning("answered late", tool="x")
    assert re.fullmatch(r"\S+Z \[warning *\] answered late +\[oubliette\.relay\] tool=x\n", stream.getvalue())


def test_auto_is_console_in_a_terminal_and_json_otherwise() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        log.setup("info", "auto", stream)
        log.get("oubliette").info("hello")
    assert "\x1b[" in terminal.getvalue()
    assert only(file)["event"] == "hello"


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    log.setup("info", "auto", terminal)
    log.get("oubliette").info("hello")
    assert "hello" in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()


def test_the_log_goes_to_stderr_and_never_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup("info", "json")
    log.get("oubliette").info("hello")
    written = capsys.readouterr()
    assert json.loads(written.err)["event"] == "hello"
    assert written.out == ""


def test_setting_up_again_replaces_what_was(capsys: pytest.CaptureFixture[str]) -> None:
    logger = log.get("oubliette.early")  # made and used before the second setup, as a module's logger is
    first = json_log("error")
    logger.info("unheard")
    second = json_log("info")
    logger.info("heard")
    assert lines(first) == []
    assert [line["event"] for line in lines(second)] == ["heard"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("level", "heard"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_levels(level: str, heard: int) -> None:
    stream = json_log(level)
    logger = log.get("oubliette.x")
    for name in ("error", "warning", "info", "debug"):
        getattr(logger, name)(name)
    assert [line["level"] for line in lines(stream)] == ["error", "warning", "info", "debug"][:heard]


# --- other libraries ---------------------------------------------------------------------------------------------


def test_debug_lines_of_other_libraries_are_not_heard() -> None:
    stream = json_log("debug")
    logging.getLogger("hpack").debug("Authorization: Bearer x")
    logging.getLogger("other").info("%s of %d", "part", 2)
    assert (only(stream)["event"], only(stream)["logger"]) == ("part of 2", "other")


async def test_hypercorn_and_quart_go_through_the_same_handler() -> None:
    stream = json_log("info")
    config = HypercornConfig()
    config.errorlog = logging.getLogger("hypercorn.error")
    with log.span("serve", session="s1"):
        await HypercornLogger(config).error("bad %s", "request")
        QuartTrio("quart.app").logger.warning("odd")
    assert [(line["logger"], line["level"], line["event"], line["session"]) for line in lines(stream)] == [
        ("hypercorn.error", "error", "bad request", "s1"),
        ("quart.app", "warning", "odd", "s1"),
    ]


# --- spans -------------------------------------------------------------------------------------------------------


def test_lines_within_a_span_carry_it_and_its_end_is_a_line(clock: Clock) -> None:
    stream = json_log()
    with log.span("relay.call", session="s1", tool="x"):
        clock.now += 0.25
        log.get("oubliette.relay").info("given")
        clock.now += 1
    within, end = lines(stream)
    shared = {"span": "relay.call", "session": "s1", "tool": "x"}
    assert within.items() >= {"event": "given", "duration_ms": 250, **shared}.items()
    assert end.items() >= {"event": "relay.call ended", "level": "debug", "duration_ms": 1250, **shared}.items()


def test_outside_of_a_span_a_line_has_none() -> None:
    stream = json_log()
    with log.span("a", session="s1"):
        pass
    log.get("oubliette").info("after")
    assert set(lines(stream)[-1]) == {"ts", "level", "logger", "event"}


def test_the_inner_span_keeps_the_outer_fields_and_adds_its_own(clock: Clock) -> None:
    stream = json_log()
    with log.span("session", session="s1", agent="a"):
        clock.now += 1
        with log.span("relay.call", tool="x", agent="b"):
            clock.now += 1
    inner, outer = lines(stream)
    assert (
        inner.items() >= {"span": "relay.call", "session": "s1", "agent": "b", "tool": "x", "duration_ms": 1000}.items()
    )
    assert outer.items() >= {"span": "session", "agent": "a", "duration_ms": 2000}.items()
    assert "tool" not in outer


def test_a_line_may_say_its_own_duration_and_cannot_forge_its_head() -> None:
    stream = json_log()
    with log.span("a"):
        log.get("oubliette").info("x", duration_ms=7, ts="never", logger="other")
    line = lines(stream)[0]
    assert (line["duration_ms"], line["logger"]) == (7, "oubliette")
    assert line["ts"] != "never"


def test_fields_may_be_added_on_the_way() -> None:
    stream = json_log()
    with log.span("http", path="/mcp") as span:
        span.add(status=200)
    assert only(stream).items() >= {"path": "/mcp", "status": 200}.items()


def test_a_span_ends_at_its_own_level() -> None:
    stream = json_log("info")
    with log.span("quiet"), log.span("told", level="info"):
        pass
    assert [(line["span"], line["level"]) for line in lines(stream)] == [("told", "info")]


async def test_tasks_take_over_the_span_they_start_in_and_keep_their_own_apart() -> None:
    stream = json_log("info")
    ready = {name: trio.Event() for name in ("a", "b")}

    async def work(name: str, other: str) -> None:
        with log.span("work", session=name):
            ready[name].set()
            await ready[other].wait()
            log.get("oubliette").info("working")

    with trio.fail_after(5), log.span("outer", run=1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, "a", "b")
            nursery.start_soon(work, "b", "a")
        log.get("oubliette").info("done")
    *working, done = [(line["event"], line["span"], line.get("session"), line["run"]) for line in lines(stream)]
    assert sorted(working) == [("working", "work", "a", 1), ("working", "work", "b", 1)]
    assert done == ("done", "outer", None, 1)


@pytest.mark.parametrize(
    ("error", "kind", "level", "ending"),
    [
        (CallerTimeout("late"), "caller_timeout", "warning", "failed"),
        (ValueError("x"), "ValueError", "warning", "failed"),
        (KeyboardInterrupt(), "KeyboardInterrupt", "debug", "cancelled"),
        (
            ExceptionGroup("", [ValueError(), CallerTimeout("x"), ValueError()]),
            "ValueError, caller_timeout",
            "warning",
            "failed",
        ),
        (BaseExceptionGroup("", [KeyboardInterrupt(), OSError()]), "KeyboardInterrupt, OSError", "warning", "failed"),
        (BaseExceptionGroup("", [KeyboardInterrupt()]), "KeyboardInterrupt", "debug", "cancelled"),
    ],
)
def test_an_exception_goes_on_and_its_kind_is_told(error: BaseException, kind: str, level: str, ending: str) -> None:
    stream = json_log()

    def fail() -> None:
        with log.span("work", session="s1"):
            raise error

    with pytest.raises(type(error)) as caught:
        fail()
    assert caught.value is error
    assert only(stream).items() >= {"event": f"work {ending}", "level": level, "error": kind, "session": "s1"}.items()
    assert only(stream)["duration_ms"] >= 0


def test_a_failure_is_told_even_where_its_span_is_not() -> None:
    stream = json_log("warning")
    with pytest.raises(OSError, match="gone"), log.span("work"):
        raise OSError("gone")
    assert only(stream)["error"] == "OSError"


async def test_cancellation_passes_through_and_is_no_warning() -> None:
    stream = json_log()
    with trio.CancelScope() as scope, log.span("work"):
        scope.cancel()
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert only(stream).items() >= {"event": "work cancelled", "level": "debug", "error": "Cancelled"}.items()


class Counted:
    shown = 0

    def __repr__(self) -> str:
        Counted.shown += 1
        return "counted"


def test_nothing_is_rendered_for_a_level_that_is_off() -> None:
    stream = json_log("info")
    with log.span("work", value=Counted()):
        log.get("oubliette").debug("x", value=Counted())
        assert (Counted.shown, stream.getvalue()) == (0, "")
        log.get("oubliette").warning("y")  # what the silent span holds is there when it is needed
    assert (Counted.shown, only(stream)["value"]) == (1, "counted")


# --- log injection -----------------------------------------------------------------------------------------------

FORGED = "x\n2026-01-01T00:00:00.000Z [info] forged\r\x1b[31m\x9b31m\u2028\u202e\ud800\0"


def is_plain(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize(
    "value", [FORGED, [FORGED], {FORGED: FORGED}, FORGED.encode(errors="replace"), "\x1b[31m", "a\nb"]
)
def test_a_value_cannot_break_a_line_or_colour_a_terminal(value: object) -> None:
    console, as_json = console_log(), io.StringIO()
    log.get("oubliette").info("event", value=value)
    log.setup("info", "json", as_json)
    log.get("oubliette").info("event", value=value)
    for stream in (console, as_json):
        assert stream.getvalue().count("\n") == 1
        assert is_plain(stream.getvalue())
    assert as_json.getvalue().isascii()


@pytest.mark.parametrize("write", [console_log, json_log])
def test_neither_can_an_event_a_key_or_the_line_of_another_library(write: Any) -> None:
    stream = write()
    log.get("oubliette").info(FORGED, **{FORGED: 1})
    logging.getLogger("other").warning("%s", FORGED)
    assert stream.getvalue().count("\n") == 2
    assert is_plain(stream.getvalue())


def test_json_keeps_a_value_as_it_is() -> None:
    stream = json_log()
    log.get("oubliette").info("event", value=FORGED, nested={"a": [1, 1.5, None, True, "ä"]})
    assert only(stream).items() >= {"value": FORGED}.items()
    assert only(stream)["nested"] == {"a": [1, 1.5, None, True, "ä"]}


def test_an_exceptions_message_cannot_pass_for_a_line_of_the_log() -> None:
    stream = console_log()
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.get("oubliette").exception("failed")
    first, *trace = stream.getvalue().rstrip("\n").split("\n")
    assert "failed" in first
    assert all(line.startswith("    ") for line in trace)
    assert is_plain(stream.getvalue())


@given(st.text(), st.text(), st.dictionaries(st.text(), st.floats() | st.integers() | st.binary() | st.text()))
def test_any_line_is_one_line_of_json(event: str, value: str, nested: dict[str, object]) -> None:
    stream = json_log()
    log.get("oubliette").info(event, value=value, nested=nested)
    assert only(stream).keys() >= {"event", "value", "nested"}

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    json.loads(stream.getvalue(), parse_constant=refuse)


# --- secrets (HAZARDS T18, G17) ----------------------------------------------------------------------------------


class Holder:
    def __repr__(self) -> str:
        return f"Holder({TOKEN})"


@pytest.mark.parametrize("write", [console_log, json_log])
def test_a_token_is_masked_wherever_it_stands(write: Any) -> None:
    stream = write()
    logger = log.get("oubliette")
    with log.span("work", key=TOKEN):
        logger.info(
            f"with {TOKEN}.", a=f"Bearer {TOKEN}", b=[TOKEN], c={TOKEN: {"d": (TOKEN,)}}, e=Holder(), f=TOKEN.encode()
        )
        logging.getLogger("other").warning("got %s", TOKEN)
        try:
            raise ValueError(TOKEN)
        except ValueError:
            logger.exception("failed")
    text = stream.getvalue()
    assert text.count("oub_\\u2026" if write is json_log else "oub_…") >= 10
    assert "9fQz7Yt2LmX0canary" not in text
    assert "k3Jd9" not in text


def test_what_only_resembles_a_token_stays() -> None:
    stream = json_log()
    log.get("oubliette").info("x", a="oub_", b="oub__b", c="oub_a", d="oub_a_", e="oubliette_project_create")
    assert [only(stream)[key] for key in "abcde"] == ["oub_", "oub__b", "oub_a", "oub_a_", "oubliette_project_create"]


@pytest.mark.parametrize("hostile", ["oub_" * 1_000_000, "oub_" + "a" * 4_000_000, "oub_a" * 800_000, "_" * 4_000_000])
def test_masking_takes_linear_time_and_a_line_stays_bounded(hostile: str) -> None:
    stream = json_log()
    started = perf_counter()
    log.get("oubliette").info("x", value=hostile)
    # 4 MB take some 50 ms; a quadratic pattern would take hours.
    assert perf_counter() - started < 5
    assert len(stream.getvalue()) < 2 * log.MAX_CHARACTERS


@pytest.mark.parametrize("before", [0, 1, 8, 13, 28])
def test_a_cut_does_not_part_a_token(before: int) -> None:
    stream = json_log()
    half = log.MAX_CHARACTERS // 2
    log.get("oubliette").info("x", value=" " * (half - before) + TOKEN + " " * 2 * half)
    assert "canary" not in stream.getvalue()
    assert "characters left out" in stream.getvalue()


@pytest.mark.parametrize("write", [console_log, json_log])
def test_the_env_of_a_profile_is_never_logged(write: Any) -> None:
    stream = write()
    profile = CommandProfile(command=("a",), env=Environment({"KEY": "canary"}))
    agents = AgentsConfig(default="x", profiles={"x": profile})
    log.get("oubliette").info("config", agents=agents, profiles=agents.profiles, env=profile.env)
    assert "<Environment KEY>" in stream.getvalue()
    assert "canary" not in stream.getvalue()


# --- exceptions --------------------------------------------------------------------------------------------------


def fail_with_a_secret() -> None:
    password = "canary"  # noqa: F841 -- a local variable that no traceback may show
    raise LookupError("nothing there")


@pytest.mark.parametrize("write", [console_log, json_log, terminal_log])
def test_a_traceback_is_logged_without_local_variables(write: Any) -> None:
    stream = write()
    try:
        fail_with_a_secret()
    except LookupError:
        log.get("oubliette").exception("failed")
    assert "LookupError: nothing there" in stream.getvalue()
    assert "in fail_with_a_secret" in stream.getvalue()
    assert "'canary'" not in stream.getvalue()


def test_json_has_the_traceback_as_a_string() -> None:
    stream = json_log()
    try:
        raise LookupError("x")
    except LookupError as error:
        log.get("oubliette").warning("ours", exc_info=error)
        logging.getLogger("other").exception("theirs")
    for line in lines(stream):
        assert line["exception"].startswith("Traceback (most recent call last):\n")
        assert line["exception"].endswith("LookupError: x")
        assert "exc_info" not in line


# --- when logging itself fails -----------------------------------------------------------------------------------


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def test_a_value_that_cannot_be_shown_does_not_cost_the_line() -> None:
    endless: list[Any] = []
    endless.append(endless)
    stream = json_log()
    log.get("oubliette").info("x", a=Broken(), b=10**5000, c=float("nan"), d=endless, e={i: i for i in range(200_000)})
    line = only(stream)
    assert (line["a"], line["b"], line["c"]) == ("<Broken>", "<int>", "nan")
    assert len(stream.getvalue()) < 4 * log.MAX_CHARACTERS


def test_a_long_list_of_long_strings_stays_bounded() -> None:
    stream = json_log()
    log.get("oubliette").info("x", value=[["a" * 2000] * 50] * 50)
    assert "characters left out" in only(stream)["value"]
    assert len(stream.getvalue()) < 2 * log.MAX_CHARACTERS


def test_a_line_that_cannot_be_written_says_so_without_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    stream = json_log()
    logging.getLogger("other").warning("%d", "canary")
    assert only(stream) == {"level": "error", "logger": "oubliette.log", "event": "a line was lost", "of": "other"}
    assert capsys.readouterr() == ("", "")


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError("nobody reads")


def test_a_log_that_nobody_reads_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("debug", "json", Closed())
    with log.span("work"):
        log.get("oubliette").info("x")
    assert capsys.readouterr() == ("", "")


def test_before_setup_debug_costs_nothing_and_stdout_stays_clean(capsys: pytest.CaptureFixture[str]) -> None:
    with log.span("work"):
        log.get("oubliette.unset").debug("x")
    assert capsys.readouterr().out == ""
