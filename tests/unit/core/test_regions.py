"""Turning buffers into addresses."""

from __future__ import annotations

import array
import mmap
from typing import Any

import numpy
import pytest

from hixl_aio._core.regions import pin_buffer
from hixl_aio.errors import InvalidArgumentError, NotContiguousError


@pytest.mark.parametrize(
    ("buffer", "readonly"),
    [
        (bytearray(8), False),
        (b"12345678", True),
        (array.array("q", [1]), False),
        (memoryview(bytearray(8)).toreadonly(), True),
        (numpy.zeros(8, dtype=numpy.uint8), False),
        (numpy.frombuffer(b"12345678", dtype=numpy.uint8), True),
        (numpy.zeros(1, dtype="timedelta64[s]"), False),
        (numpy.zeros((2, 4), dtype=numpy.uint8, order="F"), False),
        (numpy.zeros(1, dtype=[("a", "i4"), ("b", "f4")]), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_contiguous_memory_has_one_address(buffer: Any, readonly: bool) -> None:
    """Eight bytes, wherever they come from, and whether they may be written to."""
    pinned = pin_buffer(buffer)
    assert (pinned.nbytes, pinned.readonly) == (8, readonly)
    assert pinned.address
    assert any(each is buffer for each in pinned.keep)


def test_the_address_is_that_of_the_first_byte() -> None:
    """Of a slice of an array, of an array in reversed order of its axes."""
    matrix = numpy.arange(64, dtype=numpy.uint8).reshape(8, 8)
    whole = pin_buffer(matrix)
    assert whole.address == matrix.ctypes.data
    assert pin_buffer(matrix[3]).address == matrix.ctypes.data + 24
    assert pin_buffer(matrix.T).address == matrix.ctypes.data


def test_a_pinned_buffer_cannot_be_resized() -> None:
    """Until the pin goes."""
    buffer = bytearray(8)
    pinned = pin_buffer(buffer)
    with pytest.raises(BufferError):
        buffer.extend(b"x")
    del pinned
    buffer.extend(b"x")


def test_what_is_no_run_of_bytes_is_refused() -> None:
    """Gaps, nothing, no buffer, a closed one, Python objects."""
    matrix = numpy.zeros((4, 4))
    for gaps in (matrix[:, 0], matrix[::2, ::2], memoryview(b"12345678")[::2]):
        with pytest.raises(NotContiguousError):
            pin_buffer(gaps)
    closed = mmap.mmap(-1, 8)
    closed.close()
    released = memoryview(bytearray(8))
    released.release()
    for nothing in (b"", numpy.zeros((0, 4)), 5, "x", numpy.array([{}]), closed, released):
        with pytest.raises(InvalidArgumentError):
            pin_buffer(nothing)
