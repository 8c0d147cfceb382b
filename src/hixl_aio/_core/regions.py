"""Memory of ours: what is registered, who pins it, and the one place that turns a buffer into an address.

torch is never imported: its tensors are recognised through `sys.modules`. The same holds for NumPy.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hixl_aio import _native
from hixl_aio.errors import (
    AccessDeniedError,
    InternalError,
    InvalidArgumentError,
    NotContiguousError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from hixl_aio._core.gate import Gate
    from hixl_aio._records import RegionTuple

__all__ = ("PinnedBuffer", "RegionRecord", "pin_buffer")


@dataclass(frozen=True, slots=True)
class PinnedBuffer:
    """A buffer whose address holds for as long as this object does.

    Attributes:
        address: of its first byte.
        nbytes: its size, not 0.
        readonly: it must not be a destination.
        keep: what keeps the memory where it is: an export of the buffer, the tensor itself.
    """

    address: int
    nbytes: int
    readonly: bool
    keep: tuple[object, ...]


class RegionRecord:
    """One registered region: lives in the engine until native code has closed it, whoever drops its handle.

    `owner` is the engine while the region may be used, and None from the moment it is being closed: one
    compare on the hot path covers "closed" and "of another engine".
    """

    __slots__ = (
        "access",
        "address",
        "busy_gate",
        "closed",
        "closing",
        "generation",
        "id",
        "keep",
        "kind",
        "label",
        "nbytes",
        "owner",
        "pins",
        "readonly",
        "revoked",
    )

    def __init__(
        self,
        info: RegionTuple,
        *,
        owner: object,
        readonly: bool,
        keep: object,
    ) -> None:
        self.id, self.generation, self.nbytes, self.address, self.kind, self.access, self.label = info
        self.owner: object | None = owner
        self.readonly = readonly
        self.keep = keep  # None once closed
        self.pins = 0  # unsettled operations of ours
        self.busy_gate: Gate | None = None  # opens when the last pin goes
        self.closing: Gate | None = None  # somebody closes it right now
        self.revoked = False  # no peer reaches it any more
        self.closed = False

    def unpin(self) -> None:
        """An operation has settled."""
        self.pins -= 1
        if self.pins < 0:
            raise InternalError(f"region {self.label!r} was unpinned more often than pinned")
        if not self.pins and self.busy_gate is not None:
            gate, self.busy_gate = self.busy_gate, None
            gate.open()


def pin_buffer(buffer: object) -> PinnedBuffer:
    """Find the address of a buffer and hold it there.

    Raises:
        InvalidArgumentError: it is no buffer, or an empty one.
        NotContiguousError: its bytes are not one run.
        UnsupportedError: it lies in device memory.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(buffer, getattr(torch, "Tensor", ())):
        pinned = _pin_tensor(torch, buffer)
    else:
        pinned = _pin_export(buffer)
    if not pinned.nbytes:
        raise InvalidArgumentError(argument="buffer", value=0, expected="at least one byte")
    return pinned


def _pin_export(buffer: Any) -> PinnedBuffer:
    keep = buffer
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(buffer, getattr(numpy, "ndarray", ())):
        buffer = _array_bytes(numpy, buffer)
    try:
        shape_view = memoryview(buffer)
    except TypeError:
        raise InvalidArgumentError(
            argument="buffer",
            value=type(keep).__name__,
            expected="an object with the buffer protocol, or a CPU tensor",
        ) from None
    except (BufferError, ValueError) as error:  # locked, closed or released
        raise InvalidArgumentError(
            str(error), argument="buffer", value=type(keep).__name__, expected="exportable"
        ) from None
    with shape_view:
        if not shape_view.contiguous:
            raise NotContiguousError(
                shape=tuple(shape_view.shape or ()), strides=tuple(shape_view.strides or ())
            )
        if not shape_view.nbytes:
            raise InvalidArgumentError(argument="buffer", value=0, expected="at least one byte")
        pin = _native.BufferPin(buffer)
    return PinnedBuffer(pin.address, pin.nbytes, pin.readonly, (pin, keep))


def _array_bytes(numpy: Any, array: Any) -> Any:
    """The same memory as plain bytes: some dtypes cannot be exported as they are."""
    if array.dtype.hasobject:
        raise InvalidArgumentError(
            argument="buffer", value="an array of Python objects", expected="an array of plain values"
        )
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise NotContiguousError(shape=tuple(array.shape), strides=tuple(array.strides))
    if not array.nbytes:
        raise InvalidArgumentError(argument="buffer", value=0, expected="at least one byte")
    flat = array.reshape(-1, order="A")
    return flat.view(numpy.uint8)


def _pin_tensor(torch: Any, tensor: Any) -> PinnedBuffer:
    if tensor.device.type != "cpu":
        raise UnsupportedError(
            feature=f"memory on device {tensor.device}",
            hint="Copy the tensor to the CPU, or use backend='hixl' on a machine with Ascend devices.",
        )
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise InvalidArgumentError(
            argument="buffer", value="a tensor of a special layout", expected="a plain strided tensor"
        )
    if not tensor.is_contiguous():
        size = int(tensor.element_size())
        raise NotContiguousError(
            shape=tuple(tensor.shape), strides=tuple(int(step) * size for step in tensor.stride())
        )
    nbytes = int(tensor.numel()) * int(tensor.element_size())
    if not nbytes:
        raise InvalidArgumentError(argument="buffer", value=0, expected="at least one byte")
    # Exporting the storage makes torch refuse to resize it, which is the only lock that it has.
    lock: object = None
    try:
        lock = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    except (RuntimeError, TypeError, ImportError):
        lock = (
            None  # without NumPy there is no export; the reference below keeps the memory alive all the same
        )
    return PinnedBuffer(int(tensor.data_ptr()), nbytes, False, (tensor, lock))


def refuse_readonly(label: str, needed: str) -> AccessDeniedError:
    """A read-only buffer was to be a destination."""
    return AccessDeniedError(
        label=label,
        granted="reading only (the buffer is read-only)",
        needed=needed,
        hint="Register a writable buffer, such as a bytearray.",
    )
