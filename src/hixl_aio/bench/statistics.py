"""Medians, quantiles and ratios of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ("Spread", "Summary", "quantile", "spread_of", "summarise")

_P99: Final = 0.99


def quantile(values: Sequence[float], q: float) -> float:
    """The `q`-th quantile, interpolated between neighbours.

    Args:
        values: at least one, in any order.
        q: from 0 to 1.
    """
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of some values, and the quarter below and above.

    Attributes:
        median, low, high: the quantiles 0.5, 0.25 and 0.75.
    """

    median: float
    low: float
    high: float


def spread_of(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    return Spread(quantile(values, 0.5), quantile(values, 0.25), quantile(values, 0.75))


@dataclass(frozen=True, slots=True)
class Summary:
    """What was measured of one thing.

    Attributes:
        median, low, high: of the rounds: the quantiles 0.5, 0.25 and 0.75.
        p99: of single calls.
        best: the least of the rounds.
        rounds: how many there were.
        samples: how many single calls stand behind `p99`.
    """

    median: float
    low: float
    high: float
    p99: float
    best: float
    rounds: int
    samples: int


def summarise(rounds: Sequence[float], singles: Sequence[float]) -> Summary:
    """Summarise at least one round. Without single calls the rounds stand in for them."""
    middle = spread_of(rounds)
    tail = singles or rounds
    return Summary(
        median=middle.median,
        low=middle.low,
        high=middle.high,
        p99=quantile(tail, _P99),
        best=min(rounds),
        rounds=len(rounds),
        samples=len(tail),
    )
