"""Arithmetic on spans of time: how long transfers took, and how much of that hid behind computing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ("Interval", "merge", "overlap", "total")


class Interval(NamedTuple):
    """From ``start`` to ``stop``, in seconds."""

    start: float
    stop: float


def merge(spans: Iterable[Interval]) -> list[Interval]:
    """The same moments as disjoint intervals in order."""
    merged: list[Interval] = []
    for span in sorted(spans):
        if merged and span.start <= merged[-1].stop:
            merged[-1] = Interval(merged[-1].start, max(merged[-1].stop, span.stop))
        else:
            merged.append(span)
    return merged


def total(spans: Iterable[Interval]) -> float:
    """How long at least one of them lasted."""
    return sum(span.stop - span.start for span in merge(spans))


def overlap(one: Iterable[Interval], two: Iterable[Interval]) -> float:
    """How long one of the first and one of the second lasted at the same time."""
    left, right = merge(one), merge(two)
    seconds, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        seconds += max(0.0, min(left[i].stop, right[j].stop) - max(left[i].start, right[j].start))
        if left[i].stop < right[j].stop:
            i += 1
        else:
            j += 1
    return seconds
