"""Arithmetic on spans of time."""

from __future__ import annotations

from hixl_aio.demo.intervals import Interval, merge, overlap, total


def test_merge() -> None:
    """Overlapping, touching and contained spans become one; others stay, in order."""
    spans = [Interval(5, 6), Interval(0, 2), Interval(1, 3), Interval(3, 4), Interval(1.5, 1.7)]
    assert merge(spans) == [Interval(0, 4), Interval(5, 6)]
    assert merge([]) == []


def test_total() -> None:
    """Moments that several spans share count once."""
    assert total([Interval(0, 2), Interval(1, 3), Interval(10, 11)]) == 4


def test_overlap() -> None:
    """Only moments that both sides share count, and each once."""
    transfers = [Interval(0, 2), Interval(1, 3), Interval(8, 9), Interval(20, 21)]
    computing = [Interval(2, 4), Interval(2.5, 5), Interval(8, 20)]
    assert overlap(transfers, computing) == 2
    assert overlap(transfers, []) == 0
    assert overlap(transfers, transfers) == total(transfers)
