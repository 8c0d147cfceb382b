"""Quantiles and spreads."""

from __future__ import annotations

import pytest

from hixl_aio.bench.statistics import Spread, quantile, spread_of, summarise


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([7.0], 0.99, 7.0),
        ([3, 1, 2], 0.5, 2.0),
        ([1, 2], 0.5, 1.5),
        ([0, 10], 0.25, 2.5),
        ([5, 9, 1], 1.0, 9.0),
    ],
)
def test_quantiles_are_interpolated(values: list[float], q: float, expected: float) -> None:
    """Between neighbours, whatever the order of the values."""
    assert quantile(values, q) == pytest.approx(expected)


def test_a_spread_has_the_middle_half() -> None:
    """Median and quartiles; one value is all three."""
    assert spread_of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3.0, 2.0, 4.0)
    assert spread_of([6.0]) == Spread(6.0, 6.0, 6.0)


def test_the_tail_comes_from_single_calls() -> None:
    """p99 is theirs; without any, the rounds stand in."""
    rounds = [1.0, 2.0, 3.0]
    found = summarise(rounds, [10.0] * 99 + [20.0])
    assert (found.median, found.best, found.rounds, found.samples) == (2.0, 1.0, 3, 100)
    assert 10.0 <= found.p99 < 20.0
    assert summarise(rounds, []).p99 == pytest.approx(2.98)
