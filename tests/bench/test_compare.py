"""What counts as slower."""

from __future__ import annotations

import dataclasses

import pytest

from hixl_aio.bench.compare import Change, compare
from hixl_aio.bench.report import Result

from .support import report_of, result


def only_change(old: Result, new: Result) -> Change:
    (change,) = compare(report_of(old), report_of(new)).changes
    return change


@pytest.mark.parametrize(
    ("old", "new", "spread", "kind"),
    [
        (2.0, 2.0, 0.02, "same"),
        (2.0, 2.15, 0.01, "same"),  # too little to speak of
        (2.0, 3.0, 0.3, "same"),  # within the noise
        (2.0, 3.0, 0.02, "slower"),
        (3.0, 2.0, 0.02, "faster"),
    ],
)
def test_slower_is_by_a_tenth_and_beyond_the_noise(old: float, new: float, spread: float, kind: str) -> None:
    """Ratios decide, with their quartiles."""
    change = only_change(result("put", old, spread=spread), result("put", new, spread=spread))
    assert change.kind == kind
    assert change.factor == pytest.approx(new / old)


def test_seconds_do_not_count() -> None:
    """On a machine that is three times slower at everything, nothing got slower."""
    slow = result("put", 2.0)
    assert slow.work is not None
    slow = dataclasses.replace(
        slow,
        work=dataclasses.replace(slow.work, median=6e-6),
        floors={"memcpy": dataclasses.replace(slow.floors["memcpy"], median=3e-6)},
    )
    assert only_change(result("put", 2.0), slow).kind == "same"


def test_ratios_to_different_floors_are_not_compared() -> None:
    """Nor is anything without one."""
    assert only_change(result("put", 2.0), result("put", 9.0, floor="other")).kind == "no floor"


def test_memory_is_compared_by_bytes() -> None:
    """It has no floor, and bytes are the same everywhere."""
    old, new = (result("memory.peer", ratio, unit="B", spread=0.0) for ratio in (1.0, 1.3))
    assert only_change(old, new).kind == "slower"
    assert only_change(new, new).kind == "same"


def test_what_is_missing_is_told() -> None:
    """New, gone, and broken since; of these a broken one makes the comparison bad."""
    broken = dataclasses.replace(result("b", 1.0), work=None, floors={}, ratios={}, failure="x")
    comparison = compare(report_of(result("a", 1.0), result("b", 1.0)), report_of(broken, result("c", 1.0)))
    assert {(change.name, change.kind) for change in comparison.changes} == {
        ("a", "gone"),
        ("b", "broke"),
        ("c", "new"),
    }
    assert comparison.worse
    assert not compare(report_of(result("a", 1.0)), report_of(result("c", 1.0))).worse


def test_the_worst_comes_first() -> None:
    """And one slower workload makes the whole worse."""
    old = report_of(result("a", 1.0), result("b", 1.0), result("c", 1.0))
    new = report_of(result("a", 1.0), result("b", 5.0), result("c", 2.0))
    comparison = compare(old, new)
    assert [change.name for change in comparison.changes] == ["b", "c", "a"]
    assert comparison.worse
    assert not compare(old, old).worse
