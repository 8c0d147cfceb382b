"""Memory: regions of ours, regions of peers, and views of both."""

from __future__ import annotations

import traceback
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hixl_aio import _native
from hixl_aio._remote import (
    MAX_LABEL_NBYTES,
    ORDER_HINT,
    MemoryKind,
    RemoteRegion,
    RemoteView,
    integers,
    outside,
    span_of,
)
from hixl_aio._usage_errors import named_region
from hixl_aio.errors import ClosedError, InvalidArgumentError, UnclosedResourceWarning, UnsupportedError
from hixl_aio.options import Access

if TYPE_CHECKING:
    from hixl_aio._core.regions import RegionRecord
    from hixl_aio._runtime import Runtime

__all__ = ("MAX_LABEL_NBYTES", "LocalView", "MemoryKind", "MemoryRegion", "RemoteRegion", "RemoteView")

# Tracebacks and pickles name the public module.
for _class in (MemoryKind, RemoteRegion, RemoteView):
    _class.__module__ = __name__
del _class


class LocalView:
    """A run of bytes in a region of ours. A plain value: it pins nothing by itself.

    Attributes:
        region: the region.
        offset: where it starts in there.
        nbytes: its size.
    """

    __slots__ = ("_address", "_nbytes", "_offset", "_record", "_region")

    def __init__(self, region: MemoryRegion, offset: int, nbytes: int) -> None:
        record = region._record
        if type(offset) is not int or type(nbytes) is not int:
            offset, nbytes = integers(offset, nbytes)
        if not 0 <= offset <= offset + nbytes <= record.nbytes:
            raise outside(offset, nbytes, record.nbytes)
        self._region = region
        self._offset = offset
        self._nbytes = nbytes
        self._record = record
        self._address = record.address + offset

    # Read-only: the bounds were checked once, when the view was made.
    @property
    def region(self) -> MemoryRegion:
        """The region."""
        return self._region

    @property
    def offset(self) -> int:
        """Where it starts in there."""
        return self._offset

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self._nbytes

    def __getitem__(self, span: slice) -> LocalView:
        """A run inside this one. Out of range raises, never clamps."""
        offset, nbytes = span_of(span, self.nbytes, "view")
        return LocalView(self.region, self.offset + offset, nbytes)

    def __repr__(self) -> str:
        return f"<LocalView {self.region.label or 'unnamed'}[{self.offset}:{self.offset + self.nbytes}]>"


class MemoryRegion:
    """Memory of ours that takes part in transfers: an async context manager. Made by `allocate` or
    `register`.

    It pins its buffer until it is closed, or its engine is: also when this handle is dropped. `region[a:b]`
    is a view, and the region itself stands for its whole.
    """

    __slots__ = ("__weakref__", "_created", "_record", "_runtime")

    def __init__(self, runtime: Runtime, record: RegionRecord) -> None:
        self._runtime = runtime
        self._record = record
        self._created = "".join(traceback.format_stack()) if runtime.environment.debug else ""

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self._record.nbytes

    @property
    def label(self) -> str:
        """What peers find it under; empty if they do not."""
        return self._record.label

    @property
    def kind(self) -> MemoryKind:
        """What its memory is."""
        return MemoryKind(self._record.kind)

    @property
    def access(self) -> Access:
        """What peers may do with it."""
        return Access(self._record.access)

    @property
    def generation(self) -> int:
        """Grows whenever its place in the owner's table is used anew (INV-9)."""
        return self._record.generation

    @property
    def readonly(self) -> bool:
        """Its buffer must not be written to."""
        return self._record.readonly

    @property
    def busy(self) -> bool:
        """An operation of ours may still touch it (INV-6)."""
        return self._record.pins > 0

    @property
    def closed(self) -> bool:
        """It is closed, or being closed."""
        return self._record.owner is None

    def __len__(self) -> int:
        return self._record.nbytes

    def __getitem__(self, span: slice) -> LocalView:
        """A view of some of it.

        Raises:
            InvalidArgumentError: out of range (it never clamps), negative, or with a step.
        """
        offset, nbytes = span_of(span, self._record.nbytes, "region")
        return LocalView(self, offset, nbytes)

    def view(self) -> memoryview:
        """Its bytes, without a copy. `numpy.frombuffer` and `torch.frombuffer` take it.

        The memory stays where it is for as long as the view, or anything made from it, exists: also after
            `aclose()`.

        Raises:
            ClosedError: the region is closed.
            EngineForkedError: called in a forked child.
        """
        record = self._record
        self._runtime.check_process()
        if record.keep is None or self.closed:
            raise ClosedError(what=self._name())
        return memoryview(_native.ExportedMemory(record.address, record.nbytes, record.readonly, record.keep))

    def __dlpack__(self, **kwargs: Any) -> Any:
        """A DLPack capsule of its bytes (uint8), by way of NumPy.

        Raises:
            UnsupportedError: NumPy is not installed.
            ClosedError: the region is closed.
        """
        return self._array().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where DLPack finds it: the CPU."""
        device = self._array().__dlpack_device__()
        return int(device[0]), int(device[1])

    def _array(self) -> Any:
        try:
            import numpy
        except ImportError:
            raise UnsupportedError(
                feature="__dlpack__ without NumPy", hint="Install numpy, or use `region.view()`."
            ) from None
        return numpy.frombuffer(self.view(), dtype=numpy.uint8)

    def describe(self) -> RemoteRegion:
        """A plain value by which peers can name it; send it to them by any means.

        Raises:
            ClosedError: the region is closed.
            EngineForkedError: called in a forked child.
        """
        record = self._record
        self._runtime.check_process()
        if self.closed:
            raise ClosedError(what=self._name())
        return RemoteRegion(
            incarnation=self._runtime.incarnation,
            id=record.id,
            generation=record.generation,
            nbytes=record.nbytes,
            kind=MemoryKind(record.kind),
            access=Access(record.access),
            label=record.label,
        )

    async def aclose(self) -> None:
        """Take it out of use: no peer reaches it afterwards, and its buffer is yours again.

        Waits while operations of ours or copies of peers are in it. A call that comes while another one
        closes waits for that one.

        Completion means: nobody can touch the memory through us any more. Views that you hold stay valid.

        Cancellation: the region closes all the same, within the drain timeout; then the cancellation is
            raised.

        Raises:
            RegionBusyError: it was still busy after `EngineOptions.drain_timeout`. It stays revoked; close it
                again.
            WrongLoopError: called on another loop or thread.
        """
        await self._runtime.regions.close(self._record)

    async def __aenter__(self) -> MemoryRegion:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _name(self) -> str:
        return f"{named_region(self._record.label)} of {self._record.nbytes} bytes"

    def __repr__(self) -> str:
        state = "closed" if self.closed else "busy" if self.busy else "open"
        name, kind = self.label or "unnamed", self.kind.name.lower()
        return f"<MemoryRegion {name} of {self.nbytes} bytes, {kind}, {state}>"

    def __del__(self) -> None:
        # A region ends with its engine at the latest, so this is worth a word in debug mode only.
        if not getattr(self, "_created", "") or self.closed or not self._runtime.is_open:
            return
        text = f"{self._name()} was dropped without aclose(); it stays registered until its engine closes"
        text += f"\nIt was made here:\n{self._created}"
        warnings.warn(UnclosedResourceWarning(text), stacklevel=2, source=self)


def as_local(value: object, argument: str) -> LocalView:
    """A view, or a whole region in its place.

    Raises:
        InvalidArgumentError: it is neither.
    """
    if isinstance(value, LocalView):
        return value
    if isinstance(value, MemoryRegion):
        return LocalView(value, 0, value.nbytes)
    hint = ORDER_HINT
    raise InvalidArgumentError(
        argument=argument, value=type(value).__name__, expected="a LocalView or a MemoryRegion", hint=hint
    )
