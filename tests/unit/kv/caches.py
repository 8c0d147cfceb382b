"""Caches of real arrays, read one row at a time by logical coordinates: what plans are held against."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hixl_aio.kv import BlockTable, KVLayout, Plan, from_tensors

Bytes = npt.NDArray[np.uint8]

DTYPES = {1: "float8_e4m3", 2: "bfloat16", 4: "float32"}


@dataclass(frozen=True)
class Form:
    """How a cache is laid out.

    Attributes:
        separate: axes along which it has a tensor each: some of L and C.
        inside: the others, from the outside, D the last.
        block_size: tokens in a block.
        padding: elements left free behind each axis.
    """

    separate: str
    inside: str
    block_size: int
    padding: Mapping[str, int]


class Cache:
    """The arrays of one engine, and the layout that our code reads off them."""

    def __init__(
        self,
        form: Form,
        *,
        layers: Sequence[int],
        heads: Sequence[int],
        head_dim: int,
        value_dim: int,
        itemsize: int,
        num_blocks: int,
        latent: bool,
        generator: np.random.Generator,
        window: int | None = None,
    ) -> None:
        self.form = form
        self.layers, self.heads = tuple(layers), tuple(heads)
        self.kinds = 1 if latent else 2
        self.counts = {
            "L": len(self.layers),
            "C": self.kinds,
            "N": num_blocks,
            "T": form.block_size,
            "H": len(self.heads),
        }
        self.whole: list[Any] = []  # with the padding
        self.tensors: list[Any] = []
        self.keys: list[dict[str, int]] = []
        for places in itertools.product(*(range(self.counts[axis]) for axis in form.separate)):
            key = dict(zip(form.separate, places, strict=True))
            counts = {**self.counts, "D": value_dim if key.get("C") else head_dim}
            shape = [counts[axis] + form.padding.get(axis, 0) for axis in form.inside]
            random = generator.integers(0, 256, size=(*shape[:-1], shape[-1] * itemsize), dtype=np.uint8)
            whole = random.view(f"u{itemsize}")
            self.whole.append(whole)
            self.tensors.append(whole[tuple(slice(counts[axis]) for axis in form.inside)])
            self.keys.append(key)
        self.layout = self._layout(latent, DTYPES[itemsize], window)

    def _layout(self, latent: bool, dtype: str, window: int | None) -> KVLayout:
        """As `from_tensors` reads it: keys before values, each in the order of the layers."""
        every = range(len(self.keys))
        self.order = sorted(every, key=lambda index: [self.keys[index].get(axis, 0) for axis in "CL"])
        keys = [self.tensors[index] for index in self.order if not self.keys[index].get("C")]
        values = [self.tensors[index] for index in self.order if self.keys[index].get("C")]
        held = from_tensors(
            keys,
            self.form.inside,
            values=values or None,
            latent=latent,
            layers=self.layers,
            heads=self.heads,
            dtype=dtype,
            window=window,
        )
        return held.layout

    def row(self, layer: int, kind: int, block: int, token: int, head: int) -> Any:
        """The elements of one head of one token: a view."""
        at = {
            "L": self.layers.index(layer),
            "C": kind,
            "N": block,
            "T": token,
            "H": self.heads.index(head),
        }
        for tensor, key in zip(self.tensors, self.keys, strict=True):
            if all(at[axis] == place for axis, place in key.items()):
                return tensor[tuple(at[axis] for axis in self.form.inside[:-1])]
        raise AssertionError(f"no tensor has {at}")

    def at(self, blocks: BlockTable, token: int) -> tuple[int, int]:
        """The block and the place in it of a token of a request."""
        place, inside = divmod(token - blocks.first_token, self.form.block_size)
        return int(blocks.blocks[place]), inside

    def memory(self, tensor: int) -> Bytes:
        """The bytes of one tensor of the layout."""
        array = self.tensors[self.order[tensor]]
        nbytes = self.layout.tensor_nbytes[tensor]
        start: Any = (ctypes.c_ubyte * nbytes).from_address(array.ctypes.data)
        found: Bytes = np.frombuffer(start, dtype=np.uint8)
        return found

    def snapshot(self) -> list[Any]:
        """All bytes, padding too."""
        return [whole.copy() for whole in self.whole]


def move_rows(
    source: Cache,
    destination: Cache,
    tables: tuple[BlockTable, BlockTable],
    tokens: range,
    layers: Sequence[tuple[int, int]],
    heads: Sequence[int],
) -> None:
    """The oracle: one row after the other, by what it means."""
    for (mine, other), kind, head, token in itertools.product(layers, range(source.kinds), heads, tokens):
        row = destination.row(other, kind, *destination.at(tables[1], token), head)
        row[:] = source.row(mine, kind, *source.at(tables[0], token), head)


def carry_out(plan: Plan, source: Cache, destination: Cache) -> None:
    """What the engine does with a plan: copies of bytes."""
    for move in plan.moves:
        there, here = source.memory(move.src_tensor), destination.memory(move.dst_tensor)
        assert move.src_offsets.dtype == move.dst_offsets.dtype == move.nbytes.dtype == np.int64
        for start, to, nbytes in runs(move.src_offsets, move.dst_offsets, move.nbytes):
            assert nbytes > 0
            assert 0 <= start <= len(there) - nbytes
            assert 0 <= to <= len(here) - nbytes
            here[to : to + nbytes] = there[start : start + nbytes]


def check_form(plan: Plan) -> None:
    """Each byte is written once, nothing adjacent is left apart, and the counts are right."""
    total = 0
    assert len({(move.src_tensor, move.dst_tensor) for move in plan.moves}) == len(plan.moves)
    for move in plan.moves:
        ends = move.dst_offsets + move.nbytes
        assert (ends[:-1] <= move.dst_offsets[1:]).all()
        adjacent = (ends[:-1] == move.dst_offsets[1:]) & (
            move.src_offsets[:-1] + move.nbytes[:-1] == move.src_offsets[1:]
        )
        assert not adjacent.any()
        total += int(move.nbytes.sum())
    assert plan.nbytes == total
    assert plan.descriptors == sum(len(move.nbytes) for move in plan.moves) <= plan.unmerged


def runs(*arrays: Any) -> Iterator[tuple[int, ...]]:
    """Arrays side by side, as plain numbers."""
    return zip(*(array.tolist() for array in arrays), strict=True)
