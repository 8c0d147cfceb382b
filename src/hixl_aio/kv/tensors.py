"""Layouts of tensors that an engine already holds: shapes and strides are read, nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Unpack

from hixl_aio.kv.errors import KVLayoutError
from hixl_aio.kv.layout import DTYPES, Kind, KVLayout, KVPlane
from hixl_aio.kv.orders import CacheOptions, ModelOptions, dense, make, numbers

__all__ = ("KVTensors", "from_pointer", "from_tensors")

_TYPESTRS: Final = {
    letter + str(nbytes): f"{name}{8 * nbytes}"
    for letter, name in (("f", "float"), ("i", "int"), ("u", "uint"))
    for nbytes in (1, 2, 4, 8)
}
_ALIASES: Final = {"float8_e4m3fn": "float8_e4m3"}


@dataclass(frozen=True, slots=True)
class KVTensors:
    """A layout, and the memory of this process that it describes.

    Attributes:
        layout: its tensor `i` is the memory of `layout.tensor_nbytes[i]` bytes at `addresses[i]`.
        addresses: where each tensor starts.
        owners: what keeps the memory alive, where it was given.
    """

    layout: KVLayout
    addresses: tuple[int, ...]
    owners: tuple[object, ...] = field(default=(), compare=False, repr=False)


def from_tensors(
    tensors: Sequence[object],
    order: str,
    *,
    values: Sequence[object] | None = None,
    block_size: int | None = None,
    paged: bool = True,
    latent: bool = False,
    dtype: str | None = None,
    **options: Unpack[ModelOptions],
) -> KVTensors:
    """The layout of tensors as they are: NumPy arrays, torch tensors, anything with `__array_interface__`.

    Args:
        tensors: one for each layer, or one for all where `order` has an L; keys alone where `values` are
            given.
        order: the letters of the axes of each, as for :func:`dense`, without a bar. Without N, the axis T is
            cut into blocks of `block_size`. Without H, the heads lie one behind the other along D.
        values: the value tensors, where the order has no C; they become the tensors behind those of the keys.
        block_size: tokens in a block, where T holds all blocks.
        paged: False: N counts the sequences of a contiguous cache.
        latent: one latent for each token instead of keys and values (MLA).
        dtype: what the values are, where the tensors are declared as something else of that size.
        options: see :class:`ModelOptions`. `heads` must be given; `layers` are those of the tensors, from 0.

    Raises:
        KVLayoutError: shapes that contradict `order` or each other, a row that is not contiguous, negative
            strides, a dtype without a name.
        KVOverlapError: rows share bytes, as after `expand`.
    """
    every = [*tensors, *(values or ())]
    if not tensors or (values is not None and len(values) != len(tensors)):
        found = f"{len(tensors)} tensors and {len(every) - len(tensors)} values"
        raise KVLayoutError(argument="tensors", value=found, expected="some, and as many values where given")
    if ("C" in order) + (values is not None) + latent != 1:
        raise KVLayoutError(
            argument="order", value=order, expected="a C, or values=, or latent=True: one of them"
        )
    heads = numbers("heads", options.get("heads"))
    read = [_read(tensor, dtype) for tensor in every]
    views = [_view(tensor, order, len(heads), block_size) for tensor in read]
    _check_alike(views[: len(tensors)], views[len(tensors) :])
    layers = numbers("layers", options.get("layers", len(tensors) * views[0].counts["L"]))
    planes: list[KVPlane] = []
    for index, view in enumerate(views):
        kind: Kind = "latent" if latent else "key" if index < len(tensors) else "value"
        planes += _planes(view, kind, index, layers, (index % len(tensors)) * view.counts["L"])
    width, value_width = views[0].head_dim, views[-1].head_dim
    taken: CacheOptions = {
        **options,
        "dtype": views[0].dtype,
        "head_dim": width,
        "value_head_dim": None if value_width == width else value_width,
        "align": {},
    }
    counts, nbytes = views[0].counts, [tensor.nbytes for tensor in read]
    layout = make(planes, nbytes, heads, counts["T"], counts["N"], paged, taken)
    if layout.layers != tuple(sorted(layers)):
        raise KVLayoutError(
            argument="layers", value=len(layers), expected=f"the {len(layout.layers)} of the tensors"
        )
    return KVTensors(layout, tuple(tensor.address for tensor in read), tuple(every))


def from_pointer(
    pointer: int,
    layer_count: int,
    num_heads: int,
    head_dim: int,
    max_seq_len: int,
    *,
    dtype: str = "float16",
    slots: int = 1,
    order: str = "|LCNHTD",
    **options: Unpack[ModelOptions],
) -> KVTensors:
    """The layout of one contiguous cache at an address: [layers, 2, slots, heads, max_seq_len, head_dim].

    Args:
        pointer: its address; whose the memory is remains the caller's business.
        layer_count, num_heads, head_dim, max_seq_len: its shape. `layers=` and `heads=` number them otherwise
            than from 0.
        dtype: of its values.
        slots: sequences that it holds.
        order: another order of the axes, as for :func:`dense`; one tensor.
        options: see :class:`ModelOptions`.

    Raises:
        KVLayoutError: no address, or no such cache.
    """
    if type(pointer) is not int or pointer <= 0:
        raise KVLayoutError(argument="pointer", value=pointer, expected="an address")
    if order.partition("|")[1] and not order.startswith("|"):
        raise KVLayoutError(argument="order", value=order, expected="one tensor: nothing before the bar")
    given: CacheOptions = {
        **options,
        "dtype": dtype,
        "head_dim": head_dim,
        "value_head_dim": None,
        "align": {},
    }
    given.setdefault("layers", layer_count)
    given.setdefault("heads", num_heads)
    layout = dense(order, block_size=max_seq_len, num_blocks=slots, paged=False, **given)
    if (len(layout.layers), len(layout.heads)) != (layer_count, num_heads):
        found = f"{len(layout.layers)} layers and {len(layout.heads)} heads"
        raise KVLayoutError(argument="layers, heads", value=found, expected=f"{layer_count} and {num_heads}")
    return KVTensors(layout, (pointer,))


# ---- reading


@dataclass(frozen=True, slots=True)
class _Strided:
    """What there is to know of a tensor; strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int

    @property
    def nbytes(self) -> int:
        return (
            sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)) + self.itemsize
        )


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor by the names of its axes."""

    counts: dict[str, int]
    strides: dict[str, int]
    head_dim: int
    dtype: str

    @property
    def shown(self) -> str:
        return (
            " ".join(f"{axis}={self.counts[axis]}" for axis in "LCNTH") + f" D={self.head_dim} {self.dtype}"
        )


def _read(tensor: Any, dtype: str | None) -> _Strided:
    if callable(getattr(tensor, "data_ptr", None)) and callable(getattr(tensor, "stride", None)):
        return _read_torch(tensor, dtype)
    found = getattr(tensor, "__array_interface__", None)
    if found is None:
        expected = "a NumPy array, a torch tensor, or something with __array_interface__"
        raise KVLayoutError(argument="tensors", value=type(tensor).__name__, expected=expected)
    typestr, shape = found["typestr"], tuple(found["shape"])
    itemsize = int(typestr[2:])
    name = getattr(getattr(tensor, "dtype", None), "name", None) or _TYPESTRS.get(typestr[1:], typestr)
    name = typestr if typestr[0] == ">" else name  # the bytes of a value in the other order
    strides = found.get("strides")
    if strides is None:
        strides = [itemsize] * len(shape)
        for axis in range(len(shape) - 1, 0, -1):
            strides[axis - 1] = strides[axis] * shape[axis]
    return _strided(found["data"][0], shape, tuple(strides), dtype or name, itemsize)


def _read_torch(tensor: Any, dtype: str | None) -> _Strided:
    if str(tensor.layout) != "torch.strided":
        raise KVLayoutError(argument="tensors", value=str(tensor.layout), expected="torch.strided")
    itemsize = int(tensor.element_size())
    strides = tuple(int(step) * itemsize for step in tensor.stride())
    name = str(tensor.dtype).removeprefix("torch.")
    return _strided(int(tensor.data_ptr()), tuple(tensor.shape), strides, dtype or name, itemsize)


def _strided(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, itemsize: int
) -> _Strided:
    name = _ALIASES.get(dtype, dtype)
    if DTYPES.get(name) != itemsize:
        known = ", ".join(each for each, nbytes in DTYPES.items() if nbytes == itemsize)
        raise KVLayoutError(argument="dtype", value=dtype, expected=f"of {itemsize} bytes: {known}")
    shape = tuple(int(count) for count in shape)
    if not all(shape) or any(step < 0 for step in strides):
        expected = "no empty axis, and no stride below zero"
        raise KVLayoutError(argument="tensors", value=f"shape {shape}, strides {strides}", expected=expected)
    return _Strided(address, shape, strides, name, itemsize)


def _view(tensor: _Strided, order: str, heads: int, block_size: int | None) -> _View:
    if len(order) != len(tensor.shape) or set(order) - set("LCNTHD") or len(set(order)) != len(order):
        expected = f"a letter of LCNTHD for each of the {len(tensor.shape)} axes"
        raise KVLayoutError(argument="order", value=order, expected=expected)
    if "T" not in order or not order.endswith("D"):
        raise KVLayoutError(argument="order", value=order, expected="a T, and D as the last")
    counts = dict(zip(order, tensor.shape, strict=True))
    strides = dict(zip(order, tensor.strides, strict=True))
    head_dim = counts.pop("D")
    if strides.pop("D") != tensor.itemsize and head_dim > 1:
        found = f"strides {tensor.strides}"
        raise KVLayoutError(
            argument="tensors", value=found, expected=f"rows without gaps, {tensor.itemsize} the last"
        )
    if "H" not in order:
        if head_dim % heads:
            raise KVLayoutError(
                argument="heads", value=heads, expected=f"a divisor of {head_dim}, the axis D"
            )
        head_dim //= heads
        counts["H"], strides["H"] = heads, head_dim * tensor.itemsize
    if "N" not in order:
        tokens = counts["T"]
        if block_size is None or block_size <= 0 or tokens % block_size:
            raise KVLayoutError(
                argument="block_size", value=block_size, expected=f"a divisor of {tokens}, the axis T"
            )
        counts["N"], strides["N"] = tokens // block_size, block_size * strides["T"]
        counts["T"] = block_size
    counts.setdefault("L", 1)
    counts.setdefault("C", 1)
    if counts["C"] != (2 if "C" in order else 1) or counts["H"] != heads:
        found = f"{counts['C']} along C and {counts['H']} along H"
        raise KVLayoutError(argument="tensors", value=found, expected=f"2 along C, and {heads} heads")
    return _View(counts, strides, head_dim, tensor.dtype)


def _check_alike(keys: Sequence[_View], values: Sequence[_View]) -> None:
    """All have the same axes and type, and rows of the same width within keys and within values."""
    first = keys[0]
    for views in (keys, values):
        for view in views:
            if (view.counts, view.dtype, view.head_dim) != (first.counts, first.dtype, views[0].head_dim):
                expected = f"{first.shown} as the first"
                raise KVLayoutError(argument="tensors", value=view.shown, expected=expected)


def _planes(view: _View, kind: Kind, tensor: int, layers: Sequence[int], first: int) -> list[KVPlane]:
    planes = []
    steps = view.strides
    for place in range(view.counts["L"]):
        if first + place >= len(layers):
            expected = f"more than {first + place}: as many as the tensors have"
            raise KVLayoutError(argument="layers", value=len(layers), expected=expected)
        for index in range(view.counts["C"]):
            offset = place * steps.get("L", 0) + index * steps.get("C", 0)
            each: Kind = "value" if index else kind
            layer = layers[first + place]
            planes.append(KVPlane(layer, each, tensor, offset, steps["N"], steps["T"], steps["H"]))
    return planes
