"""Offsets of every kind become int64 arrays, and blocks are checked without native code."""

from __future__ import annotations

import array
from typing import Any

import numpy
import pytest

from hixl_aio import InvalidArgumentError, NotContiguousError
from hixl_aio._batching import checked_copy, plan_batch
from hixl_aio.batch import int64_array


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        array.array("q", [1, 2, 3]),
        array.array("i", [1, 2, 3]),
        memoryview(array.array("q", [1, 2, 3])),
        memoryview(array.array("h", [1, 2, 3])),
        numpy.array([1, 2, 3]),
        numpy.array([1, 2, 3], dtype=numpy.uint8),
        numpy.array([1, 0, 2, 0, 3], dtype=numpy.int64)[::2],
        numpy.array([1, 2, 3], dtype=">i8"),
    ],
    ids=lambda values: f"{type(values).__name__}",
)
def test_integers_of_every_kind_are_taken(values: Any) -> None:
    """As native int64 in one run."""
    found = memoryview(int64_array(values, "offsets"))
    assert found.itemsize == 8
    assert found.contiguous
    assert list(found.cast("B").cast("q")) == [1, 2, 3]


def test_what_is_int64_already_is_not_copied() -> None:
    """A hundred thousand offsets stay where they are."""
    for values in (array.array("q", [1]), numpy.array([1], dtype=numpy.int64)):
        assert int64_array(values, "offsets") is values


@pytest.mark.parametrize(
    "values",
    [
        [1.5],
        ["a"],
        None,
        3,
        [2**63],
        numpy.array([1.0]),
        numpy.array([[1]]),
        numpy.array([2**64 - 1], dtype=numpy.uint64),
        array.array("d", [1.0]),
    ],
    ids=repr,
)
def test_anything_else_is_refused(values: Any) -> None:
    """With the name of the argument."""
    with pytest.raises(InvalidArgumentError) as refused:
        int64_array(values, "src_offsets")
    assert refused.value.argument == "src_offsets"


def test_a_memoryview_with_gaps_is_refused() -> None:
    """It would have to be copied; that is for the caller to decide."""
    with pytest.raises(NotContiguousError):
        int64_array(memoryview(array.array("q", [1, 2, 3]))[::2], "offsets")


@pytest.mark.parametrize("sizes", [4, array.array("q", [4, 4])], ids=["one", "each"])
def test_blocks_that_wait_are_checked_and_copied(sizes: Any) -> None:
    """A later change of the caller's arrays does not reach an operation that was called before."""
    local, remote = array.array("q", [0, 4]), array.array("q", [12, 0])
    copied = checked_copy([(0, 0, 8, 1, 1, 0, 16, local, remote, sizes)])[0]
    local[0] = 99
    kept = copied[7]
    assert isinstance(kept, array.array)
    assert kept[0] == 0
    for bad in (array.array("q", [-1, 0]), array.array("q", [0, 5])):
        with pytest.raises(InvalidArgumentError, match="part 0"):
            checked_copy([(0, 0, 8, 1, 1, 0, 16, bad, remote, sizes)])


def test_parts_must_be_parts() -> None:
    """A single part, a generator, or something else in the list."""
    parts: list[Any] = [3, iter([]), ["x"]]
    for bad in parts:
        with pytest.raises(InvalidArgumentError):
            plan_batch(bad)
