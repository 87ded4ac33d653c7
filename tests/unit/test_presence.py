"""Who counts as connected, and for how long (WIRE section 3). All times are the test's own."""

from __future__ import annotations

from math import inf

import pytest

from oubliette.presence import Presence

ATTACH, GRACE, LINGER = 10.0, 3.0, 15.0


def make(*, grace: float = GRACE) -> Presence:
    return Presence(attach_grace=ATTACH, grace=grace)


def test_before_the_first_stream_a_request_waits_for_the_attach_grace() -> None:
    presence = make()
    assert not presence.was_ever
    assert not presence.is_open(100.0)
    assert presence.gone_at(100.0) == 110.0


def test_an_open_stream_is_never_given_up() -> None:
    presence = make()
    presence.attach()
    assert presence.was_ever
    assert presence.is_open(100.0)
    assert presence.gone_at(100.0) == inf


@pytest.mark.parametrize("grace", [0.0, GRACE])
def test_after_the_last_stream_the_grace_counts_from_its_loss(grace: float) -> None:
    presence = make(grace=grace)
    presence.attach()
    presence.detach(100.0)
    assert not presence.is_open(100.0)
    assert presence.gone_at(100.0) == presence.gone_at(101.5) == 100.0 + grace


def test_only_the_last_of_several_streams_counts_as_a_loss() -> None:
    presence = make()
    presence.attach()
    presence.attach()
    presence.detach(100.0)
    assert (presence.streams, presence.is_open(200.0), presence.gone_at(200.0)) == (1, True, inf)
    presence.detach(300.0)
    assert (presence.streams, presence.is_open(300.0), presence.gone_at(300.0)) == (0, False, 300.0 + GRACE)


@pytest.mark.parametrize(("now", "is_open"), [(100.0, True), (114.999, True), (115.0, False), (200.0, False)])
def test_a_poll_counts_until_its_grace_is_over(now: float, is_open: bool) -> None:
    presence = make()
    presence.attach()
    presence.detach(100.0, LINGER)
    assert presence.is_open(now) is is_open
    assert presence.gone_at(now) == 115.0 + GRACE


def test_a_second_poll_prolongs_the_first_and_never_shortens_it() -> None:
    presence = make()
    for returned, linger in ((100.0, LINGER), (104.0, LINGER), (105.0, 1.0)):
        presence.attach()
        presence.detach(returned, linger)
    assert presence.is_open(118.9)
    assert not presence.is_open(119.0)
    assert presence.gone_at(110.0) == 119.0 + GRACE


def test_a_stream_that_closes_within_a_polls_grace_leaves_the_poll_counting() -> None:
    presence = make()
    presence.attach()
    presence.attach()
    presence.detach(100.0, LINGER)
    presence.detach(101.0)
    assert presence.is_open(114.9)
    assert presence.gone_at(102.0) == 115.0 + GRACE


def test_a_stream_that_outlives_the_polls_grace_counts_from_its_own_loss() -> None:
    presence = make()
    presence.attach()
    presence.attach()
    presence.detach(100.0, LINGER)
    presence.detach(120.0)
    assert not presence.is_open(120.0)
    assert presence.gone_at(120.0) == 120.0 + GRACE


def test_a_new_stream_ends_every_grace() -> None:
    presence = make()
    presence.attach()
    presence.detach(100.0)
    presence.attach()
    assert presence.gone_at(102.0) == inf
    presence.detach(110.0)
    assert presence.gone_at(110.0) == 110.0 + GRACE


@pytest.mark.parametrize("linger", [0.0, LINGER])
def test_an_owner_who_cannot_come_back_is_gone_at_once(linger: float) -> None:
    """HAZARDS G12: streams that are still there, a poll that lingers and every grace count for nothing."""
    presence = make()
    presence.attach()
    presence.attach()
    presence.detach(100.0, linger)
    presence.end()
    assert not presence.is_open(100.0)
    assert presence.gone_at(100.0) == -inf
    presence.detach(100.0, linger)
    presence.attach()
    assert not presence.is_open(100.0)


def test_one_who_never_came_is_not_waited_for() -> None:
    presence = make()
    presence.end()
    assert presence.was_ever
    assert presence.gone_at(100.0) == -inf
