"""Where one engine keeps which keys and values: every axis order is a matter of strides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias

from hixl_aio.kv._disjoint import Box, overlapping
from hixl_aio.kv.errors import KVLayoutError, KVOverlapError

__all__ = ("DTYPES", "KVLayout", "KVMismatch", "KVPlane", "Kind", "why_not")

Kind: TypeAlias = Literal["key", "value", "latent"]
"""What a plane holds: keys, values, or (MLA) the one latent that stands for both."""

DTYPES: Final[Mapping[str, int]] = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}
"""Names of element types, and the bytes of each."""

_PAIR: Final = ("key", "value")
_LATENT: Final = ("latent",)
_ORDER: Final = {"key": 0, "value": 1, "latent": 2}
_VERSION: Final = 1
# A layout may come from a peer: what it makes us allocate and compute is bounded.
_MOST: Final = 1 << 12  # planes, tensors, heads
_LARGEST: Final = (1 << 62) - 1  # any number


@dataclass(frozen=True, slots=True)
class KVPlane:
    """Where the keys, the values or the latents of one layer lie.

    Attributes:
        layer: its number in the whole model.
        kind: key, value or latent.
        tensor: the index of the tensor that it is in.
        offset: of the row of the first head of the first token of the first block, in bytes.
        block_stride, token_stride, head_stride: from one to the next, in bytes.
    """

    layer: int
    kind: Kind
    tensor: int
    offset: int
    block_stride: int
    token_stride: int
    head_stride: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Which keys and values one engine (one rank of tensor parallelism, one stage) holds, and where.

    A row, the `head_dim` values of one head of one token, is contiguous; all else is strides. A contiguous
    cache
    is one whose blocks are as long as a sequence may be: block number and slot number are the same thing.

    Attributes:
        planes: one for each layer and kind.
        tensor_nbytes: how large each tensor is.
        heads: numbers, in the whole model, of the KV heads held here, in their order here. (0,) for latents.
        head_dim: values in a row.
        dtype: the type of a value, a name in :data:`DTYPES`.
        block_size: tokens in a block.
        num_blocks: blocks, or slots of a contiguous cache.
        paged: False: contiguous. It says how the numbers are meant and changes no byte.
        value_head_dim: values in a row of V, where that differs from K; None where not.
        quantization: the name of what has to be undone to get at the values; empty: nothing.
        window: only so many of the last tokens are kept; None: all.
        total_heads, total_layers: of the whole model; None: not said.

    Raises:
        KVLayoutError: a field contradicts another, or is out of range.
        KVOverlapError: two rows share bytes.
    """

    planes: tuple[KVPlane, ...]
    tensor_nbytes: tuple[int, ...]
    heads: tuple[int, ...]
    head_dim: int
    dtype: str
    block_size: int
    num_blocks: int
    paged: bool = True
    value_head_dim: int | None = None
    quantization: str = ""
    window: int | None = None
    total_heads: int | None = None
    total_layers: int | None = None

    def __post_init__(self) -> None:
        self._check_scalars()
        self._check_heads()
        self._check_planes()
        ordered = tuple(sorted(self.planes, key=lambda plane: (plane.layer, _ORDER[plane.kind])))
        object.__setattr__(self, "planes", ordered)
        self._check_places()

    # ---- what it holds

    @property
    def layers(self) -> tuple[int, ...]:
        """Numbers, in the whole model, of the layers held here, ascending."""
        return tuple(plane.layer for plane in self.planes if plane.kind != "value")

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """key and value, or latent."""
        return _LATENT if self.planes[0].kind == "latent" else _PAIR

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return DTYPES[self.dtype]

    @property
    def capacity(self) -> int:
        """Tokens that all blocks together hold."""
        return self.num_blocks * self.block_size

    @property
    def token_nbytes(self) -> int:
        """Bytes that one token takes, in all layers and heads held here."""
        return len(self.layers) * len(self.heads) * sum(self.row_nbytes(kind) for kind in self.kinds)

    def row_nbytes(self, kind: Kind) -> int:
        """Bytes of one head of one token."""
        width = self.value_head_dim if kind == "value" and self.value_head_dim is not None else self.head_dim
        return width * self.itemsize

    # ---- as plain values

    def describe(self) -> dict[str, Any]:
        """The layout as values that JSON knows, for a peer; :meth:`from_description` reads it."""
        described: dict[str, Any] = {"version": _VERSION}
        for field in fields(self):
            value = getattr(self, field.name)
            described[field.name] = list(value) if isinstance(value, tuple) else value
        described["planes"] = [
            [getattr(plane, field.name) for field in fields(KVPlane)] for plane in self.planes
        ]
        return described

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> KVLayout:
        """The layout that a peer described; nothing in the description is trusted.

        Raises:
            KVLayoutError: it is not a description of a layout.
        """
        if not isinstance(description, Mapping):
            raise _wrong("description", type(description).__name__, "a mapping, as describe() gives it")
        version = description.get("version")
        if version != _VERSION:
            raise _wrong("version", version, _VERSION)
        expected = {"version", *(field.name for field in fields(cls))}
        if set(description) != expected:
            differing = sorted(str(name) for name in expected.symmetric_difference(description))
            raise _wrong("description", ", ".join(differing), "these neither missing nor more")
        values = {name: value for name, value in description.items() if name != "version"}
        for name in ("tensor_nbytes", "heads"):
            values[name] = tuple(_listed(values[name], name))
        values["planes"] = tuple(_plane(entry) for entry in _listed(values["planes"], "planes"))
        return cls(**values)

    # ---- checks

    def _check_scalars(self) -> None:
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise _wrong("dtype", self.dtype, "one of " + ", ".join(DTYPES))
        for name in ("head_dim", "block_size", "num_blocks"):
            _positive(name, getattr(self, name))
        for name in ("value_head_dim", "window", "total_heads", "total_layers"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if type(self.paged) is not bool:
            raise _wrong("paged", self.paged, "True or False")
        if not isinstance(self.quantization, str) or len(self.quantization) > 100:
            raise _wrong("quantization", self.quantization, "a name of at most 100 characters")
        for name in ("planes", "tensor_nbytes", "heads"):
            value = getattr(self, name)
            if type(value) is not tuple or not 0 < len(value) <= _MOST:
                found = f"{len(value)} of them" if type(value) is tuple else type(value).__name__
                raise _wrong(name, found, f"a tuple of 1 to {_MOST}")
        for nbytes in self.tensor_nbytes:
            _positive("tensor_nbytes", nbytes)

    def _check_heads(self) -> None:
        seen: set[int] = set()
        for head in self.heads:
            _natural("heads", head)
            if head in seen:
                raise _wrong("heads", head, "each head once")
            seen.add(head)
        if self.total_heads is not None and max(self.heads) >= self.total_heads:
            raise _wrong("heads", max(self.heads), f"below total_heads, {self.total_heads}")

    def _check_planes(self) -> None:
        kinds: dict[int, list[str]] = {}
        for plane in self.planes:
            if type(plane) is not KVPlane:
                raise _wrong("planes", type(plane).__name__, "KVPlane")
            if not isinstance(plane.kind, str) or plane.kind not in _ORDER:
                raise _wrong("kind", plane.kind, "key, value or latent")
            for name in ("layer", "tensor", "offset", "block_stride", "token_stride", "head_stride"):
                _natural(name, getattr(plane, name))
            kinds.setdefault(plane.layer, []).append(plane.kind)
        wanted = list(_LATENT if self.planes[0].kind == "latent" else _PAIR)
        for layer, found in kinds.items():
            if sorted(found) != wanted:
                raise _wrong(f"kinds of layer {layer}", ", ".join(found), ", ".join(wanted))
        if wanted == list(_LATENT) and len(self.heads) > 1:
            raise _wrong("heads", len(self.heads), "one: a latent has no heads")
        if wanted == list(_LATENT) and self.value_head_dim is not None:
            raise _wrong("value_head_dim", self.value_head_dim, "None: a latent has no values of its own")
        if self.total_layers is not None and max(kinds) >= self.total_layers:
            raise _wrong("layers", max(kinds), f"below total_layers, {self.total_layers}")

    def _check_places(self) -> None:
        """Every row is within its tensor, and no two share a byte."""
        boxes: dict[int, list[Box]] = {}
        for plane in self.planes:
            if plane.tensor >= len(self.tensor_nbytes):
                raise _wrong(
                    "tensor", plane.tensor, f"below {len(self.tensor_nbytes)}, the number of tensors"
                )
            axes = (
                (plane.block_stride, self.num_blocks),
                (plane.token_stride, self.block_size),
                (plane.head_stride, len(self.heads)),
            )
            name = f"{plane.kind} of layer {plane.layer}"
            outer = tuple(sorted((axis for axis in axes if axis[1] > 1), reverse=True))
            box = Box(name, plane.offset, outer, self.row_nbytes(plane.kind))
            if box.stop > self.tensor_nbytes[plane.tensor]:
                limit = self.tensor_nbytes[plane.tensor]
                raise _wrong(
                    f"end of {name}", box.stop, f"at most {limit}, the bytes of tensor {plane.tensor}"
                )
            boxes.setdefault(plane.tensor, []).append(box)
        for tensor, found in boxes.items():
            pair = overlapping(found)
            if pair is not None:
                raise KVOverlapError(
                    f"in tensor {tensor}",
                    argument="planes",
                    value=pair[0],
                    expected=f"bytes apart from {pair[1]}",
                )


@dataclass(frozen=True, slots=True)
class KVMismatch:
    """The first thing in which two layouts differ and that no conversion covers.

    Attributes:
        field: in what they differ.
        mine, theirs: its values.
    """

    field: str
    mine: str
    theirs: str

    def __str__(self) -> str:
        return f"{self.field} is {self.mine} here and {self.theirs} there"


def why_not(mine: KVLayout, theirs: KVLayout) -> KVMismatch | None:
    """Why nothing can be moved between two layouts, in either direction; None if it can.

    Block sizes, axis orders, padding, layers and heads may differ: plans convert them. A side that holds
        other
    layers or heads is no mismatch: between the two of them there is just nothing to move.
    """
    for field in (
        "kinds",
        "dtype",
        "quantization",
        "head_dim",
        "value_head_dim",
        "total_layers",
        "total_heads",
    ):
        here, there = _comparable(mine, field), _comparable(theirs, field)
        if here != there and (None not in (here, there) or not field.startswith("total")):
            return KVMismatch(field, _worded(here), _worded(there))
    return None


def _comparable(layout: KVLayout, field: str) -> object:
    if field == "value_head_dim":
        return layout.head_dim if layout.value_head_dim is None else layout.value_head_dim
    return getattr(layout, field)


def _worded(value: object) -> str:
    if isinstance(value, tuple):
        return " and ".join(str(each) for each in value)
    return "none" if value == "" else str(value)


def _wrong(field: str, value: object, expected: object) -> KVLayoutError:
    return KVLayoutError(argument=field, value=value, expected=str(expected))


def _positive(name: str, value: object) -> None:
    if type(value) is not int or not 0 < value <= _LARGEST:
        raise _wrong(name, value, "an int above zero")


def _natural(name: str, value: object) -> None:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise _wrong(name, value, "an int, zero or more")


def _listed(value: object, name: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise _wrong(name, type(value).__name__, "a list")
    return value


def _plane(entry: object) -> KVPlane:
    values = _listed(entry, "planes")
    if len(values) != len(fields(KVPlane)):
        raise _wrong("planes", f"an entry of {len(values)} values", f"{len(fields(KVPlane))} values each")
    return KVPlane(*values)


def shown(numbers: Iterable[int]) -> str:
    """Ascending numbers in short: 0-3, 8."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"
