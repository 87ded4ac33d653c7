"""Short commands in bounded time."""

from __future__ import annotations

from oubliette.runtimes import asking
from oubliette.runtimes.asking import TIMED_OUT, Answer, ask
from tests.helpers.waiting import until_gone


async def test_an_answer_is_all_of_it() -> None:
    answer = await ask(["sh", "-c", "cat; echo said; echo bad >&2; exit 3"], 20)
    assert answer == Answer(exit_code=3, text="said\n", complaint="bad")


async def test_of_a_long_answer_the_beginning_is_kept() -> None:
    answer = await ask(["head", "-c", str(2 * asking.MAX_ANSWER), "/dev/zero"], 20)
    assert len(answer.text) == asking.MAX_ANSWER


async def test_what_does_not_answer_is_ended() -> None:
    answer = await ask(["sh", "-c", "echo $$; exec sleep 1000"], 0.2)
    assert answer.exit_code == TIMED_OUT
    assert answer.complaint == "sh did not answer within 0.2 s"
    await until_gone(int(answer.text))
