"""Targets and how they are judged, quantities in words."""

from __future__ import annotations

import pytest

from hixl_aio.bench.measure import Measurement
from hixl_aio.bench.statistics import Summary
from hixl_aio.bench.workload import Target, Unit, judge, quantity_text, size_text

from .support import summary


def measured(work: Summary, **floors: Summary) -> Measurement:
    return Measurement(work, floors, {}, {})


def test_the_fastest_floor_counts() -> None:
    """The limit is a factor times the fastest of those that the target names, and something on top."""
    found = measured(summary(10.0), slow=summary(8.0), fast=summary(4.0), other=summary(1.0))
    verdict = judge(Target(2.0, 1.0, against=("slow", "fast", "absent")), found, "s")
    assert (verdict.met, verdict.limit, verdict.floor) == (False, 9.0, "fast")
    assert verdict.text == "at most 2 x fast + 1 s"
    assert judge(Target(12.0), found, "s").floor == "other"


def test_without_a_factor_no_floor_counts() -> None:
    """A plain limit."""
    verdict = judge(Target(0.0, 5e-3), measured(summary(0.004), floor=summary(1.0)), "s")
    assert (verdict.met, verdict.limit, verdict.floor, verdict.text) == (True, 5e-3, "", "at most 5 ms")


@pytest.mark.parametrize(
    ("work", "met", "clear"),
    [
        (summary(1.0, 0.1), True, True),
        (summary(1.95, 0.1), True, False),
        (summary(2.05, 0.1), False, False),
        (summary(3.0, 0.1), False, True),
    ],
)
def test_a_verdict_says_whether_noise_decided(work: Summary, met: bool, clear: bool) -> None:
    """It is clear where the quartiles would say the same."""
    verdict = judge(Target(2.0), measured(work, floor=summary(1.0, 0.1)), "s")
    assert (verdict.met, verdict.clear) == (met, clear)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (2.5e-6, "s", "2.5 µs"),
        (5.2e-9, "s", "5.2 ns"),
        (0.03, "s", "30 ms"),
        (1.5, "s", "1.5 s"),
        (0.0, "s", "0 ns"),
        (1536.0, "B", "1.5KiB"),
        (0.001, "cores", "0.100% of a core"),
    ],
)
def test_quantities_read_well(value: float, unit: Unit, expected: str) -> None:
    """With a unit that fits."""
    assert quantity_text(value, unit) == expected


@pytest.mark.parametrize(
    ("nbytes", "expected"), [(8, "8B"), (2048, "2KiB"), (1 << 30, "1GiB"), (-5, "-5B"), (1 << 20, "1MiB")]
)
def test_sizes_are_exact_where_they_are_round(nbytes: int, expected: str) -> None:
    """They are parts of names."""
    assert size_text(nbytes) == expected
