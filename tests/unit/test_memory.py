"""Descriptors of remote regions as bytes, and views of them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import random
from typing import Any

import pytest

from hixl_aio import Access, InvalidArgumentError, MemoryKind, RemoteRegion, RemoteView


def region(label: str = "kv") -> RemoteRegion:
    return RemoteRegion("ab" * 16, 2**32 - 1, 7, 2**64 - 1, MemoryKind.SHARED, Access.READ_WRITE, label)


@pytest.mark.parametrize("label", ["", "kv", "\N{SNOWMAN}" * 85, "x" * 255])
def test_a_descriptor_comes_back_as_it_was(label: str) -> None:
    """Through bytes in every form, pickle and copy; equal and with the same hash."""
    made = region(label)
    data = made.to_bytes()
    for form in (data, bytearray(data), memoryview(data)):
        again = RemoteRegion.from_bytes(form)
        assert again == made
        assert hash(again) == hash(made)
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made


def test_what_is_no_descriptor_is_refused() -> None:
    """Cut, lengthened, of another version or magic, or with values that do not exist."""
    good = region().to_bytes()
    for length in range(len(good)):
        with pytest.raises(InvalidArgumentError):
            RemoteRegion.from_bytes(good[:length])
    for bad in (good + b"x", good + b"x" * 300, b"XXXX" + good[4:], good[:4] + b"\x02" + good[5:]):
        with pytest.raises(InvalidArgumentError):
            RemoteRegion.from_bytes(bad)
    for place, value in ((5, 9), (6, 9), (7, 1)):
        changed = bytearray(good)
        changed[place] = value
        with pytest.raises(InvalidArgumentError):
            RemoteRegion.from_bytes(changed)
    with pytest.raises(InvalidArgumentError):
        RemoteRegion.from_bytes(good[:-2] + b"\xff\xfe")


def test_noise_never_raises_anything_else() -> None:
    """Nothing from the wire is trusted (INV-12)."""
    noise = random.Random(5)
    good = region().to_bytes()
    for _ in range(3000):
        data = bytearray(good) if noise.random() < 0.7 else bytearray(noise.randbytes(noise.randrange(400)))
        for _ in range(noise.randrange(4)):
            if data:
                data[noise.randrange(len(data))] = noise.randrange(256)
        try:
            RemoteRegion.from_bytes(data)
        except InvalidArgumentError:
            continue


@pytest.mark.parametrize(
    "bad",
    [
        {"id": -1},
        {"id": 2**32},
        {"generation": "x"},
        {"nbytes": 2**64},
        {"incarnation": "ab"},
        {"incarnation": 5},
    ],
    ids=str,
)
def test_fields_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    """A descriptor that was made by hand reaches native code as little as one that was forged."""
    with pytest.raises(InvalidArgumentError):
        dataclasses.replace(region(), **bad)
    for offset, nbytes in ((-1, 4), (2**64, 1), (4, -1)):
        with pytest.raises(InvalidArgumentError):
            RemoteView(region(), offset, nbytes)


def test_views_of_views_keep_their_place() -> None:
    """Offsets add up, and nothing is clamped."""
    view = region()[100:200][10:20]
    assert (view.offset, view.nbytes) == (110, 10)
    assert "kv" in repr(view)
    with pytest.raises(InvalidArgumentError):
        view[0:11]
