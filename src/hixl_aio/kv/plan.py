"""What to copy from where to where, so that a request's keys and values lie right at the other side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from hixl_aio.kv._runs import Ints, PlaneSet, Runs, Segments, joined, runs_of, segments
from hixl_aio.kv.errors import KVMismatchError, KVMissingError, KVOverlapError, KVRangeError
from hixl_aio.kv.groups import KVGroups
from hixl_aio.kv.layout import KVLayout, KVPlane, shown, why_not

__all__ = (
    "BlockTable",
    "Blocks",
    "Conversion",
    "Layers",
    "Move",
    "Plan",
    "Spans",
    "plan",
    "plan_groups",
    "spans",
)

Blocks: TypeAlias = Any
"""Numbers of blocks in the order of a request's tokens: a NumPy array, a list, or a :class:`BlockTable`."""

Layers: TypeAlias = "Iterable[int] | tuple[range, range]"
"""Numbers of layers, the same at both sides; or a range of the source and one of the destination."""

_SIDES: Final = ("source", "destination")


@dataclass(frozen=True, slots=True, eq=False)
class BlockTable:
    """The blocks of a request, where they do not begin with its first token.

    Attributes:
        blocks: their numbers.
        first_token: which token of the request is the first of the first block.
    """

    blocks: Blocks
    first_token: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """What goes from one tensor to one other; the arrays are int64, and fit `PutBlocks` and `GetBlocks`.

    Attributes:
        src_tensor, dst_tensor: the indexes of the tensors.
        src_offsets, dst_offsets: where each run starts in them, in bytes; ascending at the destination.
        nbytes: the size of each run.
    """

    src_tensor: int
    dst_tensor: int
    src_offsets: Ints
    dst_offsets: Ints
    nbytes: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """All moves of one request between two engines. It may be posted many times.

    Attributes:
        moves: one for each pair of tensors that bytes go between.
        nbytes: bytes in all.
        unmerged: rows of one head of one token in all: as many descriptors as there were if nothing was
            joined.
    """

    moves: tuple[Move, ...]
    nbytes: int
    unmerged: int

    @property
    def descriptors(self) -> int:
        """Runs in all."""
        return sum(len(move.nbytes) for move in self.moves)


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Where in one tensor something lies; adjacent runs are joined.

    Attributes:
        tensor: its index.
        offsets: where each run starts, in bytes, ascending; int64.
        nbytes: the size of each; int64.
    """

    tensor: int
    offsets: Ints
    nbytes: Ints


class Conversion:
    """What two layouts have in common and how their strides meet, worked out once for many plans.

    Attributes:
        source, destination: the layouts.
        layers: pairs of numbers of layers, of the source and of the destination.
        heads: numbers of heads.
    """

    __slots__ = ("_sets", "destination", "heads", "layers", "source")

    def __init__(
        self,
        source: KVLayout,
        destination: KVLayout,
        *,
        layers: Layers | None = None,
        heads: Iterable[int] | None = None,
    ) -> None:
        """Match two layouts.

        Args:
            source: of the engine that has the bytes.
            destination: of the engine that gets them.
            layers: which; None: those that both hold. The first range of a pair counts layers of the source,
                the second those of the destination, and the k-th of the one goes to the k-th of the other.
            heads: which; None: those that both hold.

        Raises:
            KVMismatchError: they differ in something that bytes alone cannot convert.
            KVMissingError: a side does not hold what is asked for, or they have nothing in common.
        """
        reason = why_not(source, destination)
        if reason is not None:
            raise KVMismatchError(field=reason.field, source=reason.mine, destination=reason.theirs)
        self.source, self.destination = source, destination
        self.layers = _layers(source, destination, layers)
        if heads is None:
            self.heads = _common("heads", source.heads, destination.heads)
        else:
            self.heads = tuple(heads)
            _require("heads", self.heads, source.heads, "source")
            _require("heads", self.heads, destination.heads, "destination")
        self._sets = _plane_sets(source, destination, self.layers, self.heads)

    def plan(self, source_blocks: Blocks, destination_blocks: Blocks, *, tokens: range | None = None) -> Plan:
        """The plan for one request. It costs arithmetic on arrays, and nothing for each block.

        Args:
            source_blocks, destination_blocks: where its tokens are; as many blocks as the tokens need, of
                each side's own size. The last may be partly filled.
            tokens: which of its tokens; None: all that the blocks hold, which must be the same number at both
                sides.

        Raises:
            KVRangeError: tokens outside of the blocks or of a window, blocks outside of the cache.
            KVOverlapError: a block of the destination is there twice.
        """
        sides = (self.source, self.destination)
        tables = (_table(source_blocks), _table(destination_blocks))
        held = [
            range(table.first_token, table.first_token + len(table.blocks) * side.block_size)
            for table, side in zip(tables, sides, strict=True)
        ]
        wanted = _tokens(tokens, held, sides)
        if not wanted:
            return Plan((), 0, 0)
        found = self._segments(tables, sides, wanted)
        moves: list[Move] = []
        for (src_tensor, dst_tensor), sets in self._sets.items():
            runs = [runs_of(planes, some) for planes in sets for some in found]
            moves.append(Move(src_tensor, dst_tensor, *_frozen(joined(runs))))
        row = sum(self.source.row_nbytes(kind) for kind in self.source.kinds)
        rows = len(wanted) * len(self.layers) * len(self.heads)
        return Plan(tuple(moves), rows * row, rows * len(self.source.kinds))

    def _segments(
        self, tables: tuple[BlockTable, BlockTable], sides: tuple[KVLayout, KVLayout], tokens: range
    ) -> list[Segments]:
        touched, firsts = [], []
        for name, table, side in zip(_SIDES, tables, sides, strict=True):
            start, stop = tokens.start - table.first_token, tokens.stop - table.first_token
            blocks = table.blocks[start // side.block_size : -(-stop // side.block_size)]
            _check_blocks(blocks, name, side.num_blocks)
            touched.append(blocks)
            firsts.append(start % side.block_size)
        _check_once(touched[1])
        sizes = (sides[0].block_size, sides[1].block_size)
        return segments((touched[0], touched[1]), sizes, (firsts[0], firsts[1]), len(tokens))


def plan(
    source: KVLayout,
    destination: KVLayout,
    source_blocks: Blocks,
    destination_blocks: Blocks,
    *,
    layers: Layers | None = None,
    tokens: range | None = None,
    heads: Iterable[int] | None = None,
) -> Plan:
    """The plan for one request between two engines; for more between them keep a :class:`Conversion`.

    Args:
        source, destination: the layouts.
        source_blocks, destination_blocks: the request's blocks at each side, as for :meth:`Conversion.plan`.
        layers: as for :class:`Conversion`.
        tokens: as for :meth:`Conversion.plan`.
        heads: as for :class:`Conversion`.

    Raises:
        KVMismatchError: they differ in something that bytes alone cannot convert.
        KVMissingError: a side does not hold what is asked for, or they have nothing in common.
        KVRangeError: tokens outside of the blocks or of a window, blocks outside of the cache.
        KVOverlapError: a block of the destination is there twice.
    """
    conversion = Conversion(source, destination, layers=layers, heads=heads)
    return conversion.plan(source_blocks, destination_blocks, tokens=tokens)


def plan_groups(
    source: KVGroups,
    destination: KVGroups,
    blocks: Mapping[str, tuple[Blocks, Blocks]],
    tokens: range,
) -> dict[str, Plan]:
    """The plans for one request in all groups of a model.

    A group with a window gets the last tokens only, as many as both windows hold.

    Args:
        source, destination: the groups.
        blocks: for each group the request's blocks at the source and at the destination.
        tokens: which of its tokens.

    Raises:
        KVMismatchError: they have not the same groups, or two of one name differ in something.
        KVMissingError, KVRangeError, KVOverlapError: as :func:`plan`.
    """
    reason = source.why_not(destination)
    if reason is not None:
        raise KVMismatchError(field=reason.field, source=reason.mine, destination=reason.theirs)
    if set(blocks) != set(source.names):
        raise KVRangeError(
            argument="blocks", value=", ".join(blocks), expected="of " + ", ".join(source.names)
        )
    plans = {}
    for name, layout in source.groups:
        other = destination[name]
        windows = [len(tokens), *(each.window for each in (layout, other) if each.window is not None)]
        kept = tokens[len(tokens) - min(windows) :]
        plans[name] = plan(layout, other, *blocks[name], tokens=kept)
    return plans


def spans(
    layout: KVLayout,
    blocks: Blocks,
    *,
    layers: Iterable[int] | None = None,
    tokens: range | None = None,
    heads: Iterable[int] | None = None,
) -> tuple[Spans, ...]:
    """Where some layers, tokens and heads of one layout lie.

    Args:
        layout: the layout.
        blocks: the blocks, in the order of the tokens.
        layers, heads: which; None: all.
        tokens: which; None: all that the blocks hold.

    Raises:
        KVMissingError, KVRangeError, KVOverlapError: as :func:`plan`.
    """
    itself = plan(layout, layout, blocks, blocks, layers=layers, tokens=tokens, heads=heads)
    return tuple(Spans(move.dst_tensor, move.dst_offsets, move.nbytes) for move in itself.moves)


# ---- matching layouts


def _layers(source: KVLayout, destination: KVLayout, given: Layers | None) -> tuple[tuple[int, int], ...]:
    if given is None:
        return tuple((layer, layer) for layer in _common("layers", source.layers, destination.layers))
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(each, range) for each in given):
        ours, theirs = (tuple(each) for each in given)  # type: ignore[arg-type]
        if len(ours) != len(theirs):
            raise KVMismatchError(field="layers", source=f"{given[0]}", destination=f"{given[1]}")
    else:
        ours = theirs = tuple(given)  # type: ignore[arg-type]
    _require("layers", ours, source.layers, "source")
    _require("layers", theirs, destination.layers, "destination")
    return tuple(zip(ours, theirs, strict=True))


def _common(name: str, ours: Sequence[int], theirs: Sequence[int]) -> tuple[int, ...]:
    both = set(ours).intersection(theirs)
    if not both:
        raise KVMissingError(argument=name, side="source", wanted=shown(theirs), held=shown(ours))
    return tuple(sorted(both))


def _require(name: str, wanted: Sequence[int], held: Sequence[int], side: str) -> None:
    if not wanted:
        raise KVRangeError(argument=name, value="none", expected=f"some of {shown(held)}")
    missing = set(wanted).difference(held)
    if missing:
        raise KVMissingError(argument=name, side=side, wanted=shown(wanted), held=shown(held))
    if len(set(wanted)) < len(wanted) and side == "destination":
        twice = next(each for place, each in enumerate(wanted) if each in wanted[:place])
        raise KVOverlapError(argument=name, value=twice, expected="once at the destination")


def _plane_sets(
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


# ---- checking requests


def _table(given: Blocks) -> BlockTable:
    table = given if isinstance(given, BlockTable) else BlockTable(given)
    blocks = np.asarray(table.blocks)
    if not blocks.size:
        blocks = blocks.astype(np.int64).reshape(-1)
    if blocks.dtype.kind not in "iu" or blocks.ndim != 1:
        found = f"{blocks.dtype} of {blocks.ndim} dimensions"
        raise KVRangeError(argument="blocks", value=found, expected="whole numbers in one dimension")
    if type(table.first_token) is not int or table.first_token < 0:
        raise KVRangeError(argument="first_token", value=table.first_token, expected="an int, zero or more")
    return BlockTable(blocks.astype(np.int64, copy=False), table.first_token)


def _tokens(given: range | None, held: Sequence[range], sides: Sequence[KVLayout]) -> range:
    if given is None:
        if held[0] != held[1]:
            raise KVMismatchError(
                "say which tokens",
                field="the blocks' tokens",
                source=held[0],
                destination=held[1],
                hint="Give tokens=, or blocks for the same tokens at both sides.",
            )
        given = held[0]
    if not isinstance(given, range) or given.step != 1:
        raise KVRangeError(argument="tokens", value=given, expected="a range without steps")
    if not given:
        return given
    for name, tokens, side in zip(_SIDES, held, sides, strict=True):
        if given.start < tokens.start or given.stop > tokens.stop:
            expected = f"within {tokens}, which the blocks of the {name} hold"
            raise KVRangeError(argument="tokens", value=str(given), expected=expected)
        if side.window is not None and len(given) > side.window:
            expected = f"at most {side.window} of them, the window of the {name}"
            raise KVRangeError(argument="tokens", value=f"{given}, {len(given)} of them", expected=expected)
    return given


def _check_blocks(blocks: Ints, name: str, limit: int) -> None:
    if int(blocks.min()) < 0 or int(blocks.max()) >= limit:
        place = int(np.flatnonzero((blocks < 0) | (blocks >= limit))[0])
        expected = f"below {limit}, the blocks of the {name}"
        raise KVRangeError(argument=f"blocks of the {name}", value=int(blocks[place]), expected=expected)


def _check_once(blocks: Ints) -> None:
    """No block of the destination is written twice."""
    lowest = int(blocks.min())
    if int(blocks.max()) - lowest < 16 * len(blocks):
        counts = np.bincount(blocks - lowest)
        if int(counts.max()) <= 1:
            return
        twice = int(np.argmax(counts > 1)) + lowest
    else:
        ordered = np.sort(blocks)
        same = ordered[1:] == ordered[:-1]
        if not bool(same.any()):
            return
        twice = int(ordered[1:][same][0])
    first, second = (int(each) for each in np.flatnonzero(blocks == twice)[:2])
    expected = f"once at the destination, not at places {first} and {second}"
    raise KVOverlapError(argument="block", value=twice, expected=expected)


def _frozen(runs: Runs) -> Runs:
    for each in runs:
        each.setflags(write=False)
    return runs
