"""Memory of peers, as we name it: descriptors and views of them. Public in `hixl_aio.memory`."""

from __future__ import annotations

import enum
import re
import struct
from dataclasses import dataclass
from operator import index
from typing import Final

from hixl_aio import _native
from hixl_aio.errors import InvalidArgumentError
from hixl_aio.options import Access

__all__ = ("MAX_LABEL_NBYTES", "MemoryKind", "RemoteRegion", "RemoteView", "as_remote", "outside", "span_of")

MAX_LABEL_NBYTES: Final = 255
ORDER_HINT: Final = "Arguments run with the data: put(local, remote), get(remote, local)."


class MemoryKind(enum.IntEnum):
    """What a region's memory is."""

    SHARED = _native.KIND_SHARED
    """From `allocate`: peers on this machine map it."""
    HOST = _native.KIND_HOST
    """Registered: any other memory of this process."""
    DEVICE = _native.KIND_DEVICE
    """On an accelerator."""


def span_of(span: object, nbytes: int, what: str) -> tuple[int, int]:
    """(start, length) of a slice that must lie inside: never clamped."""
    if type(span) is not slice:
        raise InvalidArgumentError(argument="index", value=span, expected="a slice, as in region[0:128]")
    if span.step is not None and span.step != 1:
        raise InvalidArgumentError(argument="step", value=span.step, expected="1: a view is one run of bytes")
    start = 0 if span.start is None else span.start
    stop = nbytes if span.stop is None else span.stop
    try:
        start, stop = index(start), index(stop)
    except TypeError:  # also what a NumPy array says
        raise InvalidArgumentError(argument="slice", value=span, expected="integers") from None
    if not 0 <= start <= stop <= nbytes:
        expected = f"0 <= start <= stop <= {nbytes}, the size of the {what} in bytes"
        raise InvalidArgumentError(argument="slice", value=f"{start}:{stop}", expected=expected)
    return start, stop - start


def integers(offset: object, nbytes: object) -> tuple[int, int]:
    """Both as ints.

    Raises:
        InvalidArgumentError: one is none.
    """
    try:
        return index(offset), index(nbytes)  # type: ignore[arg-type]
    except TypeError:
        value = f"offset {offset!r}, nbytes {nbytes!r}"
        raise InvalidArgumentError(argument="view", value=value, expected="integers") from None


def outside(offset: int, nbytes: int, limit: int) -> InvalidArgumentError:
    expected = f"inside of the region of {limit} bytes"
    return InvalidArgumentError(argument="view", value=f"{offset}:{offset + nbytes}", expected=expected)


_INCARNATION: Final = re.compile("[0-9a-f]{32}")
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

    def __post_init__(self) -> None:
        for name, bits in (("id", 32), ("generation", 32), ("nbytes", 64)):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value < 1 << bits:
                raise InvalidArgumentError(argument=name, value=value, expected=f"an integer of {bits} bits")
        for name, kind in (("kind", MemoryKind), ("access", Access), ("label", str)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise InvalidArgumentError(argument=name, value=value, expected=f"of type {kind.__name__}")
        if not isinstance(self.incarnation, str) or not _INCARNATION.fullmatch(self.incarnation):
            raise InvalidArgumentError(
                argument="incarnation", value=self.incarnation, expected="32 hex digits"
            )

    def __getitem__(self, span: slice) -> RemoteView:
        """A view of some of it.

        Raises:
            InvalidArgumentError: out of range (it never clamps), negative, or with a step.
        """
        offset, nbytes = span_of(span, self.nbytes, "region")
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
        if not isinstance(data, bytes | bytearray | memoryview):
            expected = "bytes, a bytearray or a memoryview"
            raise InvalidArgumentError(argument="data", value=type(data).__name__, expected=expected)
        length = memoryview(data).nbytes
        if not _HEAD.size <= length <= _HEAD.size + MAX_LABEL_NBYTES:
            expected = f"{_HEAD.size} to {_HEAD.size + MAX_LABEL_NBYTES} bytes"
            raise InvalidArgumentError(
                argument="the length of the descriptor", value=length, expected=expected
            )
        raw = bytes(data)
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

    __slots__ = ("_nbytes", "_offset", "_region")

    def __init__(self, region: RemoteRegion, offset: int, nbytes: int) -> None:
        if type(offset) is not int or type(nbytes) is not int:
            offset, nbytes = integers(offset, nbytes)
        if not 0 <= offset <= offset + nbytes <= region.nbytes:
            raise outside(offset, nbytes, region.nbytes)
        self._region = region
        self._offset = offset
        self._nbytes = nbytes

    # Read-only: the bounds were checked once, when the view was made.
    @property
    def region(self) -> RemoteRegion:
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

    def __getitem__(self, span: slice) -> RemoteView:
        """A run inside this one. Out of range raises, never clamps."""
        offset, nbytes = span_of(span, self.nbytes, "view")
        return RemoteView(self.region, self.offset + offset, nbytes)

    def __repr__(self) -> str:
        return f"<RemoteView {self.region.label or 'unnamed'}[{self.offset}:{self.offset + self.nbytes}]>"


def as_remote(value: object, argument: str) -> RemoteView:
    """A view, or a whole region in its place.

    Raises:
        InvalidArgumentError: it is neither.
    """
    if isinstance(value, RemoteView):
        return value
    if isinstance(value, RemoteRegion):
        return RemoteView(value, 0, value.nbytes)
    hint = ORDER_HINT
    raise InvalidArgumentError(
        argument=argument, value=type(value).__name__, expected="a RemoteView or a RemoteRegion", hint=hint
    )
