"""From the parts of a batch to what native code takes: tuples with arrays, never an object for each block."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hixl_aio._core.regions import RegionRecord, refuse_readonly
from hixl_aio._remote import as_remote
from hixl_aio.batch import BatchOp, Get, GetBlocks, Put, PutBlocks, int64_array
from hixl_aio.errors import AccessDeniedError, HixlAioError, InvalidArgumentError
from hixl_aio.memory import LocalView, RemoteRegion, RemoteView, as_local
from hixl_aio.options import Access

if TYPE_CHECKING:
    from hixl_aio._records import PartTuple

__all__ = ("BatchPlan", "checked_copy", "plan_batch")


_MAX_BLOCK: Final = 1 << 62
# Tuples: a union would be made anew by each test.
_PUTS: Final = (Put, PutBlocks)
_GETS: Final = (Get, GetBlocks)
_BLOCKS: Final = (PutBlocks, GetBlocks)
_OPS: Final = (*_PUTS, *_GETS)


@dataclass(slots=True)
class BatchPlan:
    """The parts of a batch, checked as far as this side can.

    Attributes:
        target: the remote region of the first part; None if there are no parts.
        locals: the local view of each part.
        parts: (is a get, nbytes, remote region) of each part.
        native: what native code takes.
        nbytes: of all parts.
    """

    target: RemoteRegion | None = None
    locals: list[LocalView] = field(default_factory=list)
    parts: list[tuple[bool, int, RemoteRegion]] = field(default_factory=list)
    native: list[PartTuple] = field(default_factory=list)
    nbytes: int = 0

    def records(self) -> tuple[RegionRecord, ...]:
        """Each local region once."""
        return tuple({id(view._record): view._record for view in self.locals}.values())


def checked_copy(parts: list[PartTuple]) -> list[PartTuple]:
    """Parts for later: bounds checked now, offsets as they are now.

    Raises:
        InvalidArgumentError: a block leaves its view.
    """
    return [_checked(index, part) for index, part in enumerate(parts)]


def _checked(index: int, part: PartTuple) -> PartTuple:
    kind, address, local_nbytes, region, generation, offset, remote_nbytes, local, remote, nbytes = part
    if local is None or remote is None:
        return part
    ours, theirs = _copy(local), _copy(remote)
    sizes = nbytes if isinstance(nbytes, int) else _copy(nbytes)
    for places, limit, side in ((ours, local_nbytes, "local"), (theirs, remote_nbytes, "remote")):
        _check_blocks(index, side, places, sizes, limit)
    return (kind, address, local_nbytes, region, generation, offset, remote_nbytes, ours, theirs, sizes)


def _copy(values: Any) -> array[int]:
    copied = array("q")
    copied.frombytes(memoryview(values).cast("B"))
    return copied


def _check_blocks(index: int, side: str, places: array[int], sizes: int | array[int], limit: int) -> None:
    if not places:
        return
    if isinstance(sizes, int):
        first, last = min(places), max(places)
        bad = first if first < 0 else last if last + sizes > limit else None
    else:
        bad = next(
            (
                place
                for place, size in zip(places, sizes, strict=True)
                if place < 0 or size < 0 or place + size > limit
            ),
            None,
        )
    if bad is not None:
        expected = f"blocks inside the {side} view of {limit} bytes"
        raise InvalidArgumentError(argument=f"an offset of part {index}", value=bad, expected=expected)


def plan_batch(ops: Sequence[BatchOp]) -> BatchPlan:
    """Check the parts of a batch and lay them out.

    Raises:
        InvalidArgumentError: a part is not what it should be; the message names it.
        AccessDeniedError: its region does not grant the direction, or the destination is read-only.
    """
    if isinstance(ops, _OPS) or not isinstance(ops, Sequence):
        raise InvalidArgumentError(
            argument="ops", value=type(ops).__name__, expected="a sequence of Put, Get, PutBlocks, GetBlocks"
        )
    plan = BatchPlan()
    for index, op in enumerate(ops):
        try:
            _add(plan, op)
        except HixlAioError as error:
            error.add_note(f"in part {index} of the batch")
            raise
    return plan


def _add(plan: BatchPlan, op: BatchOp) -> None:
    is_get = isinstance(op, _GETS)
    if is_get:
        local, remote = as_local(op.dst, "dst"), as_remote(op.src, "src")
    elif isinstance(op, _PUTS):
        local, remote = as_local(op.src, "src"), as_remote(op.dst, "dst")
    else:
        raise InvalidArgumentError(
            argument="op", value=type(op).__name__, expected="Put, Get, PutBlocks or GetBlocks"
        )
    _check_direction(is_get, local, remote)
    region, remote_nbytes = remote.region, remote.nbytes
    if plan.target is None:
        plan.target = region
    elif region.incarnation != plan.target.incarnation:
        hint = "Make one batch for each peer."
        expected = f"a region of incarnation {plan.target.incarnation}, as in part 0"
        raise InvalidArgumentError(argument="peer", value=region.incarnation, expected=expected, hint=hint)
    head = (
        int(is_get),
        local._address,
        local.nbytes,
        region.id,
        region.generation,
        remote.offset,
        remote_nbytes,
    )
    if isinstance(op, _BLOCKS):
        nbytes, tail = _blocks(op, is_get)
    else:
        if local.nbytes != remote_nbytes:
            expected = f"{local.nbytes if not is_get else remote_nbytes} bytes, the length of src"
            value = remote_nbytes if not is_get else local.nbytes
            raise InvalidArgumentError(argument="the length of dst", value=value, expected=expected)
        nbytes, tail = local.nbytes, (None, None, local.nbytes)
    plan.locals.append(local)
    plan.parts.append((is_get, nbytes, region))
    plan.native.append((*head, *tail))
    plan.nbytes += nbytes


def _check_direction(is_get: bool, local: LocalView, remote: RemoteView) -> None:
    needed = Access.READ if is_get else Access.WRITE
    target = remote.region
    if not target.access & needed:
        raise AccessDeniedError(label=target.label, granted=target.access.name, needed=needed.name)
    if is_get and local._record.readonly:
        raise refuse_readonly(local._record.label, "writing: it is the destination of a get")


def _range_of(values: Any) -> tuple[int, int]:
    if not len(values):
        return 0, 0
    if hasattr(values, "min"):
        return int(values.min()), int(values.max())
    return min(values), max(values)


def _blocks(op: PutBlocks | GetBlocks, is_get: bool) -> tuple[int, tuple[Any, Any, Any]]:
    src, dst = int64_array(op.src_offsets, "src_offsets"), int64_array(op.dst_offsets, "dst_offsets")
    count, other = len(src), len(dst)
    if count != other:
        raise InvalidArgumentError(
            argument="the number of dst_offsets", value=other, expected=f"{count}, as of src_offsets"
        )
    sizes: Any
    if (
        hasattr(op.nbytes, "__index__")
        and not hasattr(op.nbytes, "__len__")
        and not isinstance(op.nbytes, bool)
    ):
        size = op.nbytes.__index__()
        if not 0 <= size <= _MAX_BLOCK:
            raise InvalidArgumentError(
                argument="nbytes", value=size, expected=f"0 to {_MAX_BLOCK} bytes a block"
            )
        sizes, total = size, size * count
    else:
        sizes = int64_array(op.nbytes, "nbytes")
        least, most = _range_of(sizes)
        if least < 0 or most > _MAX_BLOCK:
            value = least if least < 0 else most
            raise InvalidArgumentError(
                argument="nbytes", value=value, expected=f"0 to {_MAX_BLOCK} bytes a block"
            )
        if len(sizes) != count:
            raise InvalidArgumentError(
                argument="the number of nbytes", value=len(sizes), expected=f"{count}, as of src_offsets"
            )
        # Blocks of up to 2**62 bytes: an int64 sum of many of them would wrap around.
        total = int(sizes.sum()) if hasattr(sizes, "sum") and most * count < 1 << 62 else sum(map(int, sizes))
    return total, (dst, src, sizes) if is_get else (src, dst, sizes)
