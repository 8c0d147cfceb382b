"""Memory: regions of ours, regions of peers, and views of both."""

from __future__ import annotations

import enum
import struct
import traceback
import warnings
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from hixl_aio import _native
from hixl_aio.errors import ClosedError, InvalidArgumentError, UnclosedResourceWarning, UnsupportedError
from hixl_aio.options import Access

if TYPE_CHECKING:
    from hixl_aio._core.regions import RegionRecord
    from hixl_aio._runtime import Runtime

__all__ = ("MAX_LABEL_NBYTES", "LocalView", "MemoryKind", "MemoryRegion", "RemoteRegion", "RemoteView")

MAX_LABEL_NBYTES: Final = 255


class MemoryKind(enum.IntEnum):
    """What a region's memory is."""

    SHARED = _native.KIND_SHARED
    """From `allocate`: peers on this machine map it."""
    HOST = _native.KIND_HOST
    """Registered: any other memory of this process."""
    DEVICE = _native.KIND_DEVICE
    """On an accelerator."""


def _span(span: object, nbytes: int, what: str) -> tuple[int, int]:
    """(start, length) of a slice that must lie inside: never clamped."""
    if type(span) is not slice:
        raise InvalidArgumentError(argument="index", value=span, expected="a slice, as in region[0:128]")
    if span.step is not None and span.step != 1:
        raise InvalidArgumentError(argument="step", value=span.step, expected="1: a view is one run of bytes")
    start = 0 if span.start is None else span.start
    stop = nbytes if span.stop is None else span.stop
    try:
        start, stop = start.__index__(), stop.__index__()
    except AttributeError:
        raise InvalidArgumentError(argument="slice", value=repr(span), expected="integers") from None
    if not 0 <= start <= stop <= nbytes:
        expected = f"0 <= start <= stop <= {nbytes}, the size of the {what} in bytes"
        raise InvalidArgumentError(argument="slice", value=f"{start}:{stop}", expected=expected)
    return start, stop - start


class LocalView:
    """A run of bytes in a region of ours. A plain value: it pins nothing by itself.

    Attributes:
        region: the region.
        offset: where it starts in there.
        nbytes: its size.
    """

    __slots__ = ("_address", "_record", "nbytes", "offset", "region")

    region: MemoryRegion
    offset: int
    nbytes: int

    def __init__(self, region: MemoryRegion, offset: int, nbytes: int) -> None:
        record = region._record
        self.region = region
        self.offset = offset
        self.nbytes = nbytes
        self._record = record
        self._address = record.address + offset

    def __getitem__(self, span: slice) -> LocalView:
        """A run inside this one. Out of range raises, never clamps."""
        offset, nbytes = _span(span, self.nbytes, "view")
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
        offset, nbytes = _span(span, self._record.nbytes, "region")
        return LocalView(self, offset, nbytes)

    def view(self) -> memoryview:
        """Its bytes, without a copy. `numpy.frombuffer` and `torch.frombuffer` take it.

        The memory stays where it is for as long as the view, or anything made from it, exists: also after
            `aclose()`.

        Raises:
            ClosedError: the region is closed.
        """
        record = self._record
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
        """
        record = self._record
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
        return f"region {self._record.label!r} of {self._record.nbytes} bytes"

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


_MAGIC: Final = b"HXRR"
_VERSION: Final = 1
# magic, version, kind, access, reserved, region, generation, nbytes, incarnation, length of the label
_HEAD: Final = struct.Struct("<4sBBBBIIQ16sH")


@dataclass(frozen=True, slots=True)
class RemoteRegion:
    """A region of a peer, named by the peer's incarnation, the region's id and its generation: never by an
    address.

    A plain value: compare it, hash it, send it around with `to_bytes` and `from_bytes`. It is usable on any
    engine that is connected to its owner.

    Attributes:
        incarnation: which life of which engine owns it (32 hex digits).
        id: the region's number there.
        generation: the region's generation.
        nbytes: its size.
        kind: what its memory is.
        access: what we may do with it.
        label: its name there.
    """

    incarnation: str
    id: int
    generation: int
    nbytes: int
    kind: MemoryKind
    access: Access
    label: str

    def __getitem__(self, span: slice) -> RemoteView:
        """A view of some of it.

        Raises:
            InvalidArgumentError: out of range (it never clamps), negative, or with a step.
        """
        offset, nbytes = _span(span, self.nbytes, "region")
        return RemoteView(self, offset, nbytes)

    def to_bytes(self) -> bytes:
        """A fixed binary form, for `from_bytes`."""
        label = self.label.encode("utf-8", "surrogatepass")
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            self.kind,
            self.access,
            0,
            self.id,
            self.generation,
            self.nbytes,
            bytes.fromhex(self.incarnation),
            len(label),
        )
        return head + label

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> RemoteRegion:
        """Read what `to_bytes` wrote. Nothing in it is trusted: the owner checks every use of it.

        Raises:
            InvalidArgumentError: it is no such descriptor, or of another version.
        """
        raw = bytes(data)
        if len(raw) < _HEAD.size or len(raw) > _HEAD.size + MAX_LABEL_NBYTES:
            expected = f"{_HEAD.size} to {_HEAD.size + MAX_LABEL_NBYTES} bytes"
            raise InvalidArgumentError(
                argument="the length of the descriptor", value=len(raw), expected=expected
            )
        magic, version, kind, access, reserved, region, generation, nbytes, incarnation, length = (
            _HEAD.unpack_from(raw)
        )
        if magic != _MAGIC or version != _VERSION:
            found = f"{magic!r} version {version}"
            raise InvalidArgumentError(
                argument="descriptor", value=found, expected=f"{_MAGIC!r} version {_VERSION}"
            )
        if length != len(raw) - _HEAD.size or reserved:
            raise InvalidArgumentError(
                argument="the descriptor's label", value=length, expected=f"{len(raw) - _HEAD.size} bytes"
            )
        try:
            label = raw[_HEAD.size :].decode("utf-8")
            return cls(incarnation.hex(), region, generation, nbytes, MemoryKind(kind), Access(access), label)
        except ValueError as error:
            raise InvalidArgumentError(
                str(error), argument="descriptor", value=raw[:16], expected="a valid one"
            ) from None


class RemoteView:
    """A run of bytes in a region of a peer. A plain value.

    Attributes:
        region: the region.
        offset: where it starts in there.
        nbytes: its size.
    """

    __slots__ = ("nbytes", "offset", "region")

    region: RemoteRegion
    offset: int
    nbytes: int

    def __init__(self, region: RemoteRegion, offset: int, nbytes: int) -> None:
        self.region = region
        self.offset = offset
        self.nbytes = nbytes

    def __getitem__(self, span: slice) -> RemoteView:
        """A run inside this one. Out of range raises, never clamps."""
        offset, nbytes = _span(span, self.nbytes, "view")
        return RemoteView(self.region, self.offset + offset, nbytes)

    def __repr__(self) -> str:
        return f"<RemoteView {self.region.label or 'unnamed'}[{self.offset}:{self.offset + self.nbytes}]>"


_ORDER_HINT: Final = "Arguments run with the data: put(local, remote), get(remote, local)."


def as_local(value: object, argument: str) -> LocalView:
    """A view, or a whole region in its place.

    Raises:
        InvalidArgumentError: it is neither.
    """
    if isinstance(value, LocalView):
        return value
    if isinstance(value, MemoryRegion):
        return LocalView(value, 0, value.nbytes)
    hint = _ORDER_HINT
    raise InvalidArgumentError(
        argument=argument, value=type(value).__name__, expected="a LocalView or a MemoryRegion", hint=hint
    )


def as_remote(value: object, argument: str) -> RemoteView:
    """A view, or a whole region in its place.

    Raises:
        InvalidArgumentError: it is neither.
    """
    if isinstance(value, RemoteView):
        return value
    if isinstance(value, RemoteRegion):
        return RemoteView(value, 0, value.nbytes)
    hint = _ORDER_HINT
    raise InvalidArgumentError(
        argument=argument, value=type(value).__name__, expected="a RemoteView or a RemoteRegion", hint=hint
    )
