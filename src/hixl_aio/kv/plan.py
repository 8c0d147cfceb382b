"""What to copy from where to where, so that a request's keys and values lie right at the other side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hixl_aio.kv._matching import Layers, common, layers_of, plane_sets, require
from hixl_aio.kv._runs import Ints, Runs, Segments, joined, runs_of, segments
from hixl_aio.kv.blocks import SIDES, Blocks, BlockTable, check_blocks, check_once, table_of, tokens_of
from hixl_aio.kv.errors import KVMismatchError, KVRangeError
from hixl_aio.kv.groups import KVGroups
from hixl_aio.kv.layout import KVLayout, why_not

__all__ = (
    "Conversion",
    "Move",
    "Plan",
    "Spans",
    "plan",
    "plan_groups",
    "spans",
)


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
        self.layers = layers_of(source, destination, layers)
        if heads is None:
            self.heads = common("heads", source.heads, destination.heads)
        else:
            self.heads = tuple(heads)
            require("heads", self.heads, source.heads, "source")
            require("heads", self.heads, destination.heads, "destination")
        self._sets = plane_sets(source, destination, self.layers, self.heads)

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
        tables = (table_of(source_blocks), table_of(destination_blocks))
        held = [
            range(table.first_token, table.first_token + len(table.blocks) * side.block_size)
            for table, side in zip(tables, sides, strict=True)
        ]
        wanted = tokens_of(tokens, held, sides)
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
        for name, table, side in zip(SIDES, tables, sides, strict=True):
            start, stop = tokens.start - table.first_token, tokens.stop - table.first_token
            blocks = table.blocks[start // side.block_size : -(-stop // side.block_size)]
            check_blocks(blocks, name, side.num_blocks)
            touched.append(blocks)
            firsts.append(start % side.block_size)
        check_once(touched[1])
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


def _frozen(runs: Runs) -> Runs:
    for each in runs:
        each.setflags(write=False)
    return runs
