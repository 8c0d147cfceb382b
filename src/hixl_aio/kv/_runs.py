"""From two sets of strides to runs of bytes: arrays, a Python step for each layer but none for a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ("Ints", "PlaneSet", "Runs", "Segments", "joined", "runs_of", "segments")

Ints: TypeAlias = npt.NDArray[np.int64]
Runs: TypeAlias = tuple[Ints, Ints, Ints]
"""Source offsets, destination offsets, sizes."""


@dataclass(frozen=True, slots=True, eq=False)
class PlaneSet:
    """Planes between the same two tensors, with the same strides, that share each block of the destination.

    Attributes:
        offsets: of each plane, at the source and at the destination.
        blocks, tokens: strides at the source and at the destination.
        heads: offsets of groups of heads, at the source and at the destination, with the bytes of each
            group's token.
    """

    offsets: tuple[Ints, Ints]
    blocks: tuple[int, int]
    tokens: tuple[int, int]
    heads: Runs


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Runs of equally many tokens that leave neither a block of the source nor one of the destination.

    Attributes:
        blocks: the number of the block at the source and at the destination.
        firsts: the token in the block, likewise; one number where it is the same for all.
        count: how many tokens each has.
    """

    blocks: tuple[Ints, Ints]
    firsts: tuple[Ints | int, Ints | int]
    count: int


def segments(
    tables: tuple[Ints, Ints], sizes: tuple[int, int], firsts: tuple[int, int], count: int
) -> list[Segments]:
    """Cut tokens where a block ends; those of the same length are together.

    Args:
        tables: numbers of blocks, beginning with the one that holds the first token.
        sizes: tokens in a block.
        firsts: where in its block the first token is, below the size.
        count: tokens, above zero.
    """
    if sizes[0] == sizes[1] and firsts[0] == firsts[1]:
        return _block_by_block(tables, sizes[0], firsts[0], count)
    ends = [
        np.arange(size - first, count, size, dtype=np.int64)
        for size, first in zip(sizes, firsts, strict=True)
    ]
    one, other = (0, 1) if len(ends[0]) >= len(ends[1]) else (1, 0)
    nested = sizes[other] % sizes[one] == 0 and (firsts[other] - firsts[one]) % sizes[one] == 0
    cuts = ends[one] if nested else np.union1d(ends[0], ends[1])
    starts = np.concatenate((np.zeros(1, np.int64), cuts))
    lengths = np.diff(starts, append=count)
    places = [starts + first for first in firsts]
    numbers = [place // size for place, size in zip(places, sizes, strict=True)]
    blocks = [table[number] for table, number in zip(tables, numbers, strict=True)]
    inside = [place - number * size for place, number, size in zip(places, numbers, sizes, strict=True)]
    found = []
    for length in _distinct(lengths):
        chosen = lengths == length
        pairs = (blocks[0][chosen], blocks[1][chosen]), (inside[0][chosen], inside[1][chosen])
        found.append(Segments(*pairs, length))
    return found


def _block_by_block(tables: tuple[Ints, Ints], size: int, first: int, count: int) -> list[Segments]:
    """Blocks that correspond: at most the first and the last are partial."""
    found = []
    start = 0
    if first:
        head = min(size - first, count)
        found.append(Segments((tables[0][:1], tables[1][:1]), (first, first), head))
        start, count = 1, count - head
    stop = start + count // size
    if stop > start:
        ordered = _by_destination(tables[0][start:stop], tables[1][start:stop])
        found.append(Segments(ordered, (0, 0), size))
    if count % size:
        last = slice(stop, stop + 1)
        found.append(Segments((tables[0][last], tables[1][last]), (0, 0), count % size))
    return found


def _by_destination(sources: Ints, destinations: Ints) -> tuple[Ints, Ints]:
    """In the order of the destination's blocks, each of which is there once: neighbours are then adjacent."""
    if bool((destinations[1:] > destinations[:-1]).all()):
        return sources, destinations
    lowest, highest = int(destinations.min()), int(destinations.max())
    if highest - lowest < 16 * len(destinations):  # by counting: a fifth of the time of sorting
        placed = np.full(highest - lowest + 1, -1, dtype=np.int64)
        placed[destinations - lowest] = sources
        places = np.flatnonzero(placed >= 0)
        return placed[places], places + lowest
    order = np.argsort(destinations)
    return sources[order], destinations[order]


def _distinct(lengths: Ints) -> list[int]:
    """The lengths that occur: few, whatever the number of blocks."""
    if int(lengths.max()) <= 1 << 20:
        return [int(each) for each in np.flatnonzero(np.bincount(lengths))]  # without sorting
    return [int(each) for each in np.unique(lengths)]


def runs_of(planes: PlaneSet, tokens: Segments) -> Runs:
    """The runs of these planes for these tokens, adjacent ones joined within a segment."""
    inner = _inner(planes, tokens.count)
    starts = []
    for side in (0, 1):
        start = tokens.blocks[side] * planes.blocks[side]
        start += tokens.firsts[side] * planes.tokens[side]
        starts.append(start)
    if len(inner[2]) == 1:
        starts[0] += inner[0][0]
        starts[1] += inner[1][0]
        return starts[0], starts[1], np.full(len(starts[0]), inner[2][0], np.int64)
    sources = (starts[0][:, None] + inner[0]).ravel()
    destinations = (starts[1][:, None] + inner[1]).ravel()
    return sources, destinations, np.tile(inner[2], len(starts[0]))


def _inner(planes: PlaneSet, count: int) -> Runs:
    """The runs of so many tokens at offset zero."""
    sources, destinations, sizes = planes.heads
    size = int(sizes[0])
    steps = np.arange(count, dtype=np.int64)
    if planes.tokens == (
        size,
        size,
    ):  # tokens of each head, or of all heads at once, lie one behind the other
        steps, sizes = steps[:1], sizes * count
    parts = [
        (own[:, None, None] + steps[None, :, None] * step + heads).ravel()
        for own, step, heads in zip(planes.offsets, planes.tokens, (sources, destinations), strict=True)
    ]
    return joined([(parts[0], parts[1], np.tile(sizes, len(parts[0]) // len(sizes)))])


def joined(found: Sequence[Runs]) -> Runs:
    """All of them in the order of the destination, with those joined that are adjacent on both sides."""
    sources, destinations, sizes = (
        found[0] if len(found) == 1 else tuple(np.concatenate(each) for each in zip(*found, strict=True))
    )
    if not bool((destinations[1:] > destinations[:-1]).all()):
        order = np.argsort(destinations)
        sources, destinations, sizes = sources[order], destinations[order], sizes[order]
    ends = destinations[:-1] + sizes[:-1] != destinations[1:]
    ends |= sources[:-1] + sizes[:-1] != sources[1:]
    if bool(ends.all()):
        return sources, destinations, sizes
    firsts = np.concatenate(([0], np.flatnonzero(ends) + 1))
    return sources[firsts], destinations[firsts], np.add.reduceat(sizes, firsts)
