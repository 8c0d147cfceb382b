"""Many transfers to one peer as one operation, without a Python object for each block."""

from __future__ import annotations

import enum
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

from hixl_aio._core.optable import OperationKind, OperationState
from hixl_aio.completion import Completion
from hixl_aio.errors import BatchError, HixlAioError, InvalidArgumentError, NotContiguousError
from hixl_aio.memory import LocalView, MemoryRegion, RemoteRegion, RemoteView

if TYPE_CHECKING:
    from hixl_aio._runtime import Runtime
    from hixl_aio.peer import Peer

__all__ = ("Batch", "BatchOp", "Get", "GetBlocks", "Offsets", "PartState", "PartStatus", "Put", "PutBlocks")

Offsets: TypeAlias = Any
"""int64 values: array('q'), NumPy array, memoryview, CPU tensor; lists and tuples are converted."""


@dataclass(frozen=True, slots=True)
class Put:
    """Write one run: `src` into `dst`."""

    src: LocalView | MemoryRegion
    dst: RemoteView | RemoteRegion


@dataclass(frozen=True, slots=True)
class Get:
    """Read one run: `src` into `dst`."""

    src: RemoteView | RemoteRegion
    dst: LocalView | MemoryRegion


@dataclass(frozen=True, slots=True, eq=False)
class PutBlocks:
    """Write many blocks: `src[src_offsets[i]:][:nbytes]` into `dst[dst_offsets[i]:][:nbytes]`.

    Attributes:
        src_offsets, dst_offsets: where each block starts, in bytes, relative to the views; int64.
        nbytes: the size of every block, or an array with the size of each.
    """

    src: LocalView | MemoryRegion
    dst: RemoteView | RemoteRegion
    src_offsets: Offsets
    dst_offsets: Offsets
    nbytes: int | Offsets


@dataclass(frozen=True, slots=True, eq=False)
class GetBlocks:
    """Read many blocks: `src[src_offsets[i]:][:nbytes]` into `dst[dst_offsets[i]:][:nbytes]`.

    Attributes:
        src_offsets, dst_offsets: where each block starts, in bytes, relative to the views; int64.
        nbytes: the size of every block, or an array with the size of each.
    """

    src: RemoteView | RemoteRegion
    dst: LocalView | MemoryRegion
    src_offsets: Offsets
    dst_offsets: Offsets
    nbytes: int | Offsets


BatchOp: TypeAlias = Put | Get | PutBlocks | GetBlocks
"""One part of a batch."""


class PartState(enum.IntEnum):
    """What became of one part."""

    PENDING = 0
    DONE = 1
    STOPPED = 2
    FAILED = 3
    STALE = 4


@dataclass(frozen=True, slots=True)
class PartStatus:
    """One part of a batch, as it stands.

    Attributes:
        index: its place among the parts.
        kind: put or get.
        nbytes: how much it is to move.
        state: what became of it.
        error: why it did not complete, if it did not.
    """

    index: int
    kind: OperationKind
    nbytes: int
    state: PartState
    error: HixlAioError | None


class Batch(Completion):
    """A Completion of many parts, all of them with one peer.

    A batch may fail early; its memory stays pinned until all parts have settled (`settled`).
    """

    __slots__ = ("_plan", "_states")

    def __init__(
        self,
        runtime: Runtime,
        peer: Peer | None,
        nbytes: int,
        started: float,
        plan: Sequence[tuple[bool, int, RemoteRegion]],
    ) -> None:
        super().__init__(runtime, OperationKind.BATCH, peer, nbytes, started, 0.0)
        self._plan = plan  # (is a get, nbytes, remote region) of each part
        self._states: bytes | None = None  # of the parts, if it did not complete

    @property
    def parts(self) -> Sequence[PartStatus]:
        """The parts as they stand; each is made when it is looked at."""
        return _Parts(self)

    # ---- told by the runtime

    def _all_landed(self) -> None:
        """It did complete, after an error was told."""
        self._states = bytes([PartState.DONE]) * len(self._plan)


class _Parts(Sequence[PartStatus]):
    __slots__ = ("_batch",)

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch._plan)

    @overload
    def __getitem__(self, index: int) -> PartStatus: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PartStatus]: ...
    def __getitem__(self, index: int | slice) -> PartStatus | Sequence[PartStatus]:
        if isinstance(index, slice):
            return [self._at(place) for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"the batch has {len(self)} parts, there is no part {index}")
        return self._at(place)

    def __iter__(self) -> Iterator[PartStatus]:
        return (self._at(place) for place in range(len(self)))

    def _at(self, place: int) -> PartStatus:
        batch = self._batch
        is_get, nbytes, _ = batch._plan[place]
        state = self._state(place)
        failure = batch._failure
        error: HixlAioError | None = None
        if failure is not None and state not in (PartState.DONE, PartState.PENDING):
            error = failure.error
            if isinstance(error, BatchError):
                at = bisect_left(error.failures, place, key=itemgetter(0))  # they are in order
                if at < len(error.failures) and error.failures[at][0] == place:
                    error = error.failures[at][1]
        return PartStatus(place, OperationKind.GET if is_get else OperationKind.PUT, nbytes, state, error)

    def _state(self, place: int) -> PartState:
        batch = self._batch
        if batch._states is not None and place < len(batch._states):
            return PartState(batch._states[place])
        if not batch._ended or batch.state is OperationState.ABANDONED:
            return PartState.PENDING
        return PartState.DONE if batch._failure is None else PartState.FAILED


# ---- offsets

_INT64_FORMATS: Final = ("q", "l", "=q", "<q", "@q", "@l", "=l" if array("l").itemsize == 8 else "q")


def int64_array(values: Offsets, argument: str) -> Any:
    """Something with the buffer protocol that holds the values as int64; what already does is taken as it is.

    Raises:
        InvalidArgumentError: no integers, or out of the range of int64.
        NotContiguousError: an array with gaps.
    """
    if type(values) is array and values.typecode == "q":
        return values
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch is not None and isinstance(values, getattr(torch, "Tensor", ())):
        tensor: Any = values
        values = tensor.detach().cpu().numpy()
        numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(values, getattr(numpy, "ndarray", ())):
        return _from_numpy(numpy, values, argument)
    if isinstance(values, array | memoryview | bytearray | bytes):
        view = memoryview(values)
        if view.format in _INT64_FORMATS and view.itemsize == 8 and view.ndim == 1:
            if not view.contiguous:
                raise NotContiguousError(
                    f"{argument} has gaps", shape=view.shape or (), strides=view.strides or ()
                )
            return values
        if view.format not in tuple("bBhHiIlLqQ"):
            raise _no_integers(argument, f"memory of format {view.format!r}")
        values = view.tolist()
    try:
        return array("q", values)
    except (TypeError, OverflowError) as error:
        raise _no_integers(argument, f"{type(values).__name__} ({error})") from None


def _from_numpy(numpy: Any, values: Any, argument: str) -> Any:
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise _no_integers(argument, f"an array of {values.dtype} with {values.ndim} dimensions")
    if values.dtype == numpy.int64:
        return numpy.ascontiguousarray(values)
    if values.dtype.kind == "u" and values.size and int(values.max()) > 2**63 - 1:
        raise _no_integers(argument, f"a value of {int(values.max())}")
    return values.astype(numpy.int64)


def _no_integers(argument: str, found: str) -> InvalidArgumentError:
    return InvalidArgumentError(argument=argument, value=found, expected="one-dimensional int64 values")
