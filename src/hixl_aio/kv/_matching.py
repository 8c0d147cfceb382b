"""What two layouts have in common, and how their strides meet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from hixl_aio.kv._runs import Ints, PlaneSet
from hixl_aio.kv.errors import KVMismatchError, KVMissingError, KVOverlapError, KVRangeError
from hixl_aio.kv.layout import KVLayout, KVPlane, shown

__all__ = ("Layers", "common", "layers_of", "plane_sets", "require")

Layers: TypeAlias = "Iterable[int] | tuple[range, range]"
"""Numbers of layers, the same at both sides; or a range of the source and one of the destination."""


def layers_of(source: KVLayout, destination: KVLayout, given: Layers | None) -> tuple[tuple[int, int], ...]:
    if given is None:
        return tuple((layer, layer) for layer in common("layers", source.layers, destination.layers))
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(each, range) for each in given):
        ours, theirs = (tuple(each) for each in given)  # type: ignore[arg-type]
        if len(ours) != len(theirs):
            raise KVMismatchError(field="layers", source=f"{given[0]}", destination=f"{given[1]}")
    else:
        ours = theirs = tuple(given)  # type: ignore[arg-type]
    require("layers", ours, source.layers, "source")
    require("layers", theirs, destination.layers, "destination")
    return tuple(zip(ours, theirs, strict=True))


def common(name: str, ours: Sequence[int], theirs: Sequence[int]) -> tuple[int, ...]:
    both = set(ours).intersection(theirs)
    if not both:
        raise KVMissingError(argument=name, side="source", wanted=shown(theirs), held=shown(ours))
    return tuple(sorted(both))


def require(name: str, wanted: Sequence[int], held: Sequence[int], side: str) -> None:
    if not wanted:
        raise KVRangeError(argument=name, value="none", expected=f"some of {shown(held)}")
    missing = set(wanted).difference(held)
    if missing:
        raise KVMissingError(argument=name, side=side, wanted=shown(wanted), held=shown(held))
    if len(set(wanted)) < len(wanted) and side == "destination":
        twice = next(each for place, each in enumerate(wanted) if each in wanted[:place])
        raise KVOverlapError(argument=name, value=twice, expected="once at the destination")


def plane_sets(
    source: KVLayout, destination: KVLayout, layers: Sequence[tuple[int, int]], heads: Sequence[int]
) -> dict[tuple[int, int], list[PlaneSet]]:
    """Planes between the same tensors, together where they alternate within the blocks of the destination."""
    ours = {(plane.layer, plane.kind): plane for plane in source.planes}
    theirs = {(plane.layer, plane.kind): plane for plane in destination.planes}
    pairs: dict[tuple[int, int], list[tuple[KVPlane, KVPlane]]] = {}
    for mine, other in layers:
        for kind in source.kinds:
            pair = ours[mine, kind], theirs[other, kind]
            pairs.setdefault((pair[0].tensor, pair[1].tensor), []).append(pair)
    places = _places(source.heads, destination.heads, heads)
    found: dict[tuple[int, int], list[PlaneSet]] = {}
    for tensors, between in pairs.items():
        sets: list[list[tuple[KVPlane, KVPlane]]] = []
        for pair in sorted(between, key=lambda each: each[1].offset):
            first = sets[-1][0] if sets else None
            if first is not None and _alternate(first, pair, source):
                sets[-1].append(pair)
            else:
                sets.append([pair])
        found[tensors] = [_plane_set(each, places, source.row_nbytes(each[0][0].kind)) for each in sets]
    return found


def _alternate(first: tuple[KVPlane, KVPlane], other: tuple[KVPlane, KVPlane], layout: KVLayout) -> bool:
    strides = [
        [(plane.block_stride, plane.token_stride, plane.head_stride) for plane in pair]
        for pair in (first, other)
    ]
    rows = [layout.row_nbytes(pair[0].kind) for pair in (first, other)]
    within = other[1].offset - first[1].offset < first[1].block_stride
    return within and strides[0] == strides[1] and rows[0] == rows[1]


def _places(ours: Sequence[int], theirs: Sequence[int], heads: Sequence[int]) -> tuple[Ints, Ints]:
    """Where the heads are at both sides, in the order of the destination."""
    mine = {head: place for place, head in enumerate(ours)}
    other = {head: place for place, head in enumerate(theirs)}
    pairs = sorted((other[head], mine[head]) for head in heads)
    places = np.array(pairs, dtype=np.int64)
    return places[:, 1], places[:, 0]


def _plane_set(pairs: Sequence[tuple[KVPlane, KVPlane]], places: tuple[Ints, Ints], row: int) -> PlaneSet:
    ours, theirs = pairs[0]
    strides = (ours.head_stride, theirs.head_stride)
    firsts = np.arange(len(places[0]))
    if strides == (row, row):  # heads that lie one behind the other at both sides go together
        apart = (np.diff(places[0]) != 1) | (np.diff(places[1]) != 1)
        firsts = np.concatenate(([0], np.flatnonzero(apart) + 1))
    sizes = np.diff(firsts, append=len(places[0])) * row
    heads = (places[0][firsts] * strides[0], places[1][firsts] * strides[1], sizes)
    return PlaneSet(
        offsets=(
            np.array([pair[0].offset for pair in pairs], dtype=np.int64),
            np.array([pair[1].offset for pair in pairs], dtype=np.int64),
        ),
        blocks=(ours.block_stride, theirs.block_stride),
        tokens=(ours.token_stride, theirs.token_stride),
        heads=heads,
    )
