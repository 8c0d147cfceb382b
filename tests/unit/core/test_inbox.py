"""Who gets which signal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from hixl_aio._core.inbox import Inbox, Taker


@dataclass(frozen=True)
class Arrival:
    """A signal, as far as the inbox sees it."""

    name: str
    source: int
    arrival: int


def arrivals(*places: tuple[str, int]) -> Iterator[Arrival]:
    for number, (name, source) in enumerate(places):
        yield Arrival(name, source, number)


def filled(*places: tuple[str, int]) -> Inbox:
    inbox = Inbox(lambda _: None)
    for signal in arrivals(*places):
        inbox.deliver(signal)
    return inbox


def test_first_in_first_out_by_name_and_by_peer() -> None:
    """From any peer by arrival, from one peer by its own order."""
    inbox = filled(("a", 1), ("a", 2), ("b", 1), ("a", 1))
    assert inbox.take("a", 2).arrival == 1  # type: ignore[union-attr]
    assert inbox.take("a", None).arrival == 0  # type: ignore[union-attr]
    assert inbox.take("a", None).arrival == 3  # type: ignore[union-attr]
    assert inbox.take("a", None) is None
    assert inbox.take("c", 1) is None
    assert inbox.unread == 1
    assert inbox.take(None, None).name == "b"  # type: ignore[union-attr]
    assert inbox.take(None, None) is None


def test_waiters_by_name_come_before_those_who_take_any() -> None:
    """And among themselves in the order in which they came."""
    woken: list[str] = []
    inbox = Inbox(woken.append)
    inbox.wait(Taker(None, None, "any"))
    inbox.wait(Taker("a", 2, "a from 2"))
    inbox.wait(Taker("a", None, "a"))
    for signal in arrivals(("a", 1), ("a", 2), ("b", 1), ("b", 1)):
        inbox.deliver(signal)
    assert woken == ["a", "a from 2", "any"]
    assert inbox.unread == 1


def test_a_signal_put_back_lies_where_it_lay() -> None:
    """Whatever the order in which takers give up, the next one gets the first signal."""
    for seed in range(50):
        inbox = Inbox(lambda _: None)
        takers = [Taker("a" if n % 3 else None, None, n) for n in range(6)]
        for taker in takers:
            inbox.wait(taker)
        for signal in arrivals(*[("a", 1)] * 10):
            inbox.deliver(signal)
        random.Random(seed).shuffle(takers)
        for taker in takers:
            inbox.leave(taker)
        assert [inbox.take("a" if n % 2 else None, None).arrival for n in range(10)] == list(range(10))  # type: ignore[union-attr]
        assert inbox.unread == 0


def test_a_signal_put_back_goes_to_the_next_who_waits() -> None:
    """It does not lie there while somebody wants it."""
    woken: list[str] = []
    inbox = Inbox(woken.append)
    first, second = Taker("a", None, "first"), Taker("a", None, "second")
    inbox.wait(first)
    inbox.wait(second)
    inbox.deliver(Arrival("a", 1, 0))
    inbox.leave(first)
    assert woken == ["first", "second"]
    assert second.signal is not None
    assert inbox.unread == 0


def test_who_leaves_empty_handed_is_forgotten() -> None:
    """Its signal is kept for others."""
    inbox = Inbox(lambda _: None)
    for taker in (Taker("a", None, 0), Taker(None, None, 1)):
        inbox.wait(taker)
        inbox.leave(taker)
        inbox.leave(taker)
    inbox.deliver(Arrival("a", 1, 0))
    assert inbox.unread == 1
    inbox.clear()
    assert inbox.take(None, None) is None


def test_the_end_of_a_peer_fails_those_who_wait_for_it_alone() -> None:
    """What it sent stays, and so do those who wait for anybody."""
    woken: list[str] = []
    inbox = Inbox(woken.append)
    takers = [Taker("a", 1, "a1"), Taker("a", None, "a"), Taker("b", 2, "b2"), Taker(None, None, "any")]
    for taker in takers:
        inbox.wait(taker)
    inbox.fail_source(1, lambda: KeyError("gone"))
    assert woken == ["a1"]
    assert isinstance(takers[0].failure, KeyError)
    inbox.fail_all(lambda: KeyError("closed"))
    assert sorted(woken) == ["a", "a1", "any", "b2"]
    inbox.deliver(Arrival("a", 2, 5))
    assert inbox.unread == 1


def test_thousands_of_names_are_taken_in_order_of_arrival() -> None:
    """Taking any signal does not look at all names."""
    inbox = filled(*[(f"n{n}", n % 3) for n in range(20_000)])
    assert [inbox.take(None, None).arrival for _ in range(20_000)] == list(range(20_000))  # type: ignore[union-attr]


def test_an_iteration_that_is_served_forgets_nobody_who_waits_by_name() -> None:
    """Serving the last taker of any signal leaves those who wait for the same name from another peer."""
    woken: list[str] = []
    inbox = Inbox(woken.append)
    named, anybody = Taker("a", 1, "named"), Taker(None, None, "any")
    inbox.wait(named)
    inbox.wait(anybody)
    inbox.deliver(Arrival("a", 2, 0))
    assert woken == ["any"]
    inbox.deliver(Arrival("a", 1, 1))
    assert woken == ["any", "named"]
    assert named.signal == Arrival("a", 1, 1)


def test_signals_that_go_back_lie_in_the_order_in_which_they_came() -> None:
    """Whatever the order in which cancelled takers leave, an iteration sees the order of arrival."""
    for seed in range(20):
        inbox = Inbox(lambda _: None)
        takers = [Taker(name, None, name) for name in "abcdef"]
        for taker in takers:
            inbox.wait(taker)
        for signal in arrivals(*((name, 1) for name in "abcdefgh")):
            inbox.deliver(signal)
        random.Random(seed).shuffle(takers)
        for taker in takers:
            inbox.leave(taker)
        assert [inbox.take(None, None).name for _ in "abcdefgh"] == list("abcdefgh")  # type: ignore[union-attr]
