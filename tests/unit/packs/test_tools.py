"""Tools of local packs: functions in threads or under trio.

Issue 5, 5: "Sync ones run in a worker thread with a limit and a deadline".
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from ot_pack.local import describe
from oubliette.errors import InvalidParams, LimitExceeded, ToolTimeout
from oubliette.packs import tools
from oubliette.packs.tools import LOCAL_SECONDS, LocalPackTool
from oubliette.protocol.nesting import too_deep


def tool_of(function: Callable[..., Any], threads: int = 4) -> LocalPackTool:
    return LocalPackTool(
        "demo", describe("demo", function.__name__, function, "demo.py:1"), trio.CapacityLimiter(threads)
    )


def ignore(done: float, total: float | None, message: str | None) -> None:
    """No local tool reports."""


async def call(function: Callable[..., Any] | LocalPackTool, **arguments: Any) -> Any:
    """Calls a function as a tool; returns its `CallToolResult`, read."""
    tool = function if isinstance(function, LocalPackTool) else tool_of(function)
    return json.loads(await tool.call(Raw(json.dumps(arguments).encode()), ignore))


async def failure(function: Callable[..., Any], **arguments: Any) -> str:
    """Calls a function as a tool, which must fail; returns its words."""
    result = await call(function, **arguments)
    [block] = result["content"]
    assert (result.keys(), result["isError"], block["type"]) == ({"content", "isError"}, True, "text")
    return str(block["text"])


@pytest.fixture
def hanging() -> Iterator[Callable[[], str]]:
    """A function that does not return before the end of the test."""
    over = threading.Event()

    def hang() -> str:
        over.wait(30)
        return "late"

    yield hang
    over.set()


# What is returned


@dataclasses.dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "text", "structured"),
    [
        ("plain", "plain", None),
        ("", "", None),
        ('quotes " and\nlines ☃', 'quotes " and\nlines ☃', None),
        (None, "null", None),
        (True, "true", None),
        (7, "7", None),
        (2**70, str(2**70), None),
        (float("nan"), "null", None),
        ([1, "two"], '[1,"two"]', None),
        ((), "[]", None),
        ({}, "{}", {}),
        ({"a": {"b": [1]}}, '{"a":{"b":[1]}}', {"a": {"b": [1]}}),
        ({"content": "no list"}, '{"content":"no list"}', {"content": "no list"}),
        (Point(3), '{"x":3}', {"x": 3}),
        (b"\0", '"AA=="', None),
    ],
)
async def test_a_value_is_text_and_an_object_structured_content_too(value: Any, text: str, structured: Any) -> None:
    def give() -> Any:
        return value

    result = await call(give)
    assert result.pop("content") == [{"type": "text", "text": text}]
    assert result == ({} if structured is None else {"structuredContent": structured})


@pytest.mark.parametrize(
    "whole",
    [
        {"content": [{"type": "text", "text": "as it is"}]},
        {"content": [{"type": "image", "data": "AA==", "mimeType": "image/png"}], "isError": True},
        {"content": [], "structuredContent": {"a": 1}, "_meta": {"k": "v"}},
    ],
)
async def test_a_whole_result_passes_as_it_is(whole: Any) -> None:
    def give() -> dict[str, Any]:
        return dict(whole)

    assert await call(give) == whole


class Broken:
    def __str__(self) -> str:
        raise ValueError("not even that")


async def test_what_json_cannot_say_is_an_error_in_words() -> None:
    circle: list[Any] = []
    circle.append(circle)
    for value in (object(), circle, {(1, 2): 3}, "\udc80", {"a": [Broken()]}):

        def give(value: Any = value) -> Any:
            return value

        assert (await failure(give)).startswith("demo.give returned what JSON cannot say: ")


async def test_a_result_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "MAX_RESULT_BYTES", 100)

    def give(count: int) -> str:
        return "ü" * count

    async def give_async(count: int) -> list[str]:
        return ["x" * count]

    assert (await call(give, count=49))["content"][0]["text"] == "ü" * 49
    for function, count in ((give, 50), (give_async, 97)):
        with pytest.raises(LimitExceeded, match=r"the result of demo\.give(_async)? has 10[12] bytes; 100 may be"):
            await call(function, count=count)


async def test_a_result_that_a_client_would_not_read_is_refused() -> None:
    """WIRE section 1: "nested deeper than 128: -32700" is what a client would make of the whole line."""

    def nest(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = {"a": value}
        return value

    line = b'{"id":1,"result":%b}' % await tool_of(nest).call(Raw(b'{"depth":125}'), ignore)
    assert not too_deep(line)
    with pytest.raises(LimitExceeded, match="nested deeper than 125 levels"):
        await call(nest, depth=126)


# Arguments


async def test_arguments_are_checked_and_decoded() -> None:
    seen: list[Any] = []

    def take(point: Point, names: list[str], count: int = 2, anything=None) -> None:  # type: ignore[no-untyped-def]  # that is the case
        seen.append((point, names, count, anything))

    await call(take, point={"x": 1}, names=["a"])
    await call(take, point={"x": 1}, names=[], count=5, anything={"k": [1]})
    assert seen == [(Point(1), ["a"], 2, None), (Point(1), [], 5, {"k": [1]})]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("{}", "missing required field `name`"),
        ('{"name": 5}', r"Expected `str`, got `int` - at `\$.name`"),
        ('{"name": "x", "nmae": 1}', "unknown field `nmae`"),
        ("[]", "Expected `object`, got `array`"),
        ("{", "demo.greet: "),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_by_name(arguments: str, told: str) -> None:
    def greet(name: str) -> None:
        raise AssertionError("is not called")

    with pytest.raises(InvalidParams, match=told) as refused:
        await tool_of(greet).call(Raw(arguments.encode()), ignore)
    assert refused.value.field == "arguments"
    assert refused.value.message.startswith("demo.greet: ")


async def test_a_default_belongs_to_one_call() -> None:
    def collect(item: int, items: list[int] = []) -> list[int]:  # noqa: B006  # that is the case
        items.append(item)
        return items

    tool = tool_of(collect)
    assert [(await call(tool, item=item))["content"][0]["text"] for item in (1, 2)] == ["[1]", "[2]"]


def test_a_tool_is_what_its_function_says() -> None:
    def greet(name: str) -> None:
        """Greets somebody.

        And says more.
        """

    tool = tool_of(greet)
    assert (tool.identity, tool.mcp_name, tool.pack, tool.name) == ("demo.greet", "demo_greet", "demo", "greet")
    assert tool.entry["description"] == "Greets somebody.\n\nAnd says more."
    assert tool.entry["inputSchema"]["required"] == ["name"]
    assert (tool.shown.description, tool.shown.source) == ("Greets somebody.", "local")


# What is raised


class NoWordsError(Exception):
    def __str__(self) -> str:
        raise ValueError("not even that")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("as it says"), "ValueError: as it says"),
        (KeyError("k"), "KeyError: 'k'"),
        (FileNotFoundError(2, "No such file", "a\udc80b"), "FileNotFoundError: [Errno 2] No such file: 'a\\udc80b'"),
        (ValueError("half a \ud800"), "ValueError: half a \ufffd"),
        (SystemExit(3), "SystemExit: 3"),
        (StopIteration("x"), "RuntimeError: "),
        (trio.TooSlowError(), "TooSlowError: "),
        (NoWordsError(), "NoWordsError"),
        (MemoryError(), "MemoryError: "),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_what_a_function_raises_is_told_in_words(error: BaseException, words: str, is_async: bool) -> None:
    def fail() -> None:
        raise error

    async def fail_async() -> None:
        await trio.lowlevel.checkpoint()
        raise error

    assert (await failure(fail_async if is_async else fail)).startswith(words)


async def test_words_without_end_are_cut() -> None:
    def fail() -> None:
        raise ValueError("x" * 10**6)

    assert len(await failure(fail)) == tools.MAX_ERROR_CHARACTERS


async def test_all_that_a_nursery_raised_is_told() -> None:
    async def fail() -> None:
        async def one() -> None:
            await trio.sleep_forever()

        async def two(words: str) -> None:
            raise ValueError(words)

        async with trio.open_nursery() as outer:
            outer.start_soon(one)
            async with trio.open_nursery() as inner:
                inner.start_soon(two, "first")
                inner.start_soon(two, "second")

    assert sorted((await failure(fail)).split("; ")) == ["ValueError: first", "ValueError: second"]


async def test_a_task_that_ends_the_process_ends_the_call_alone() -> None:
    async def leave_in_a_thread() -> None:
        await trio.to_thread.run_sync(lambda: sys.exit())

    async def leave() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(leave_in_a_thread)

    assert await failure(leave) == "SystemExit: "


# Deadlines and cancellation


async def test_a_function_that_waits_is_given_up_after_its_deadline(autojump_clock: MockClock) -> None:
    left: list[float] = []

    async def wait() -> None:
        try:
            await trio.sleep_forever()
        finally:
            left.append(trio.current_time())

    with pytest.raises(ToolTimeout, match=r"demo\.wait had not returned after 60 s"):
        await call(wait)
    assert left == [trio.current_time()] == [LOCAL_SECONDS]


async def test_a_function_that_blocks_is_given_up_after_its_deadline(
    autojump_clock: MockClock, hanging: Callable[[], str]
) -> None:
    with pytest.raises(ToolTimeout, match="it may still be running"):
        await call(hanging)
    assert trio.current_time() == LOCAL_SECONDS


async def test_what_is_raised_at_the_deadline_does_not_hide_it(autojump_clock: MockClock) -> None:
    async def untidy() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while it was taken down")

    with pytest.raises(ToolTimeout):
        await call(untidy)


async def test_hanging_functions_leave_the_daemons_other_threads_alone(
    autojump_clock: MockClock, hanging: Callable[[], str]
) -> None:
    blocked = tool_of(hanging, threads=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_times_out, blocked)
        await wait_all_tasks_blocked()
        # The second call waits for a thread, and its time runs.
        nursery.start_soon(_times_out, blocked)
        assert await trio.to_thread.run_sync(lambda: "free") == "free"
    assert trio.current_time() == LOCAL_SECONDS


async def _times_out(tool: LocalPackTool) -> None:
    with pytest.raises(ToolTimeout):
        await call(tool)


async def test_a_thread_is_free_again_when_its_function_returns() -> None:
    def name() -> str:
        return threading.current_thread().name

    tool = tool_of(name, threads=1)
    names = [(await call(tool))["content"][0]["text"] for _ in range(3)]
    assert len(names) == 3
    assert threading.main_thread().name not in names


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_call_that_is_cancelled_ends_at_once(
    is_async: bool, autojump_clock: MockClock, hanging: Callable[[], str]
) -> None:
    async def wait() -> None:
        await trio.sleep_forever()

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, wait if is_async else hanging)
            await wait_all_tasks_blocked()
            scope.cancel()
    assert (scope.cancelled_caught, trio.current_time()) == (True, 0)


async def test_what_comes_with_a_cancellation_does_not_hide_it() -> None:
    async def untidy() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while it was taken down")

    answers: list[Any] = []
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_note_answer, untidy, answers)
            await wait_all_tasks_blocked()
            scope.cancel()
    assert (scope.cancelled_caught, answers) == (True, [])


async def _note_answer(function: Callable[..., Any], answers: list[Any]) -> None:
    answers.append(await call(function))
