"""One heap of deadlines: order, lazy deletion, compaction."""

from __future__ import annotations

import random
import weakref

from hixl_aio._core.deadlines import Deadlines


class Target:
    """Something that is due."""


def test_what_is_due_comes_in_order_and_once() -> None:
    """Earliest first; what is not due stays."""
    deadlines: Deadlines[int] = Deadlines()
    for when in random.Random(1).sample(range(100), 100):
        deadlines.add(float(when), when)
    assert deadlines.next_due() == 0.0
    assert deadlines.expired(49.5) == list(range(50))
    assert deadlines.expired(49.5) == []
    assert deadlines.next_due() == 50.0
    assert len(deadlines) == 50
    deadlines.clear()
    assert deadlines.next_due() is None
    assert len(deadlines) == 0


def test_a_cancelled_deadline_keeps_nothing_alive() -> None:
    """Its target goes at once, although its place in the heap goes later."""
    deadlines: Deadlines[Target] = Deadlines()
    target = Target()
    reference = weakref.ref(target)
    entry = deadlines.add(1.0, target)
    later = deadlines.add(2.0, Target())
    del target
    deadlines.cancel(entry)
    deadlines.cancel(entry)
    assert reference() is None
    assert deadlines.next_due() == 2.0
    assert len(deadlines) == 1
    deadlines.expired(3.0)
    deadlines.cancel(later)
    assert len(deadlines) == 0


def test_the_heap_does_not_grow_with_what_was_cancelled() -> None:
    """A hundred thousand operations that end before their deadline leave a small heap."""
    deadlines: Deadlines[int] = Deadlines()
    for number in range(100_000):
        deadlines.cancel(deadlines.add(float(number), number))
    assert len(deadlines._heap) < 200
    assert len(deadlines) == 0
    assert deadlines.next_due() is None
