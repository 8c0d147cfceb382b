"""A reader of GGUF model files: metadata, and tensors dequantised to float32.

It knows what SmolLM2's file uses (Q4_1, Q8_0, F32) and trusts nothing in the file: every count, length
and offset is checked against the size of the file before it is used.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from hixl_aio.demo.errors import GgufError

__all__ = (
    "Array",
    "GgufFile",
    "Metadata",
    "MetadataValue",
    "TensorInfo",
    "dequantise_q4_1",
    "dequantise_q8_0",
)

Array = npt.NDArray[np.float32]
MetadataValue = int | float | bool | str | list["MetadataValue"]
Metadata = Mapping[str, MetadataValue]
T = TypeVar("T", int, float, bool, str)

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_MAX_DIMENSIONS: Final = 4
_F32: Final = 0
_Q4_1: Final = 3
_Q8_0: Final = 8
_BLOCK: Final = 32  # elements of one quantised block
_Q4_1_BLOCK: Final = np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("nibbles", "u1", (16,))])
_Q8_0_BLOCK: Final = np.dtype([("scale", "<f2"), ("values", "i1", (32,))])
_BYTES_PER_BLOCK: Final = {_F32: 4 * _BLOCK, _Q4_1: _Q4_1_BLOCK.itemsize, _Q8_0: _Q8_0_BLOCK.itemsize}
_CHUNK_BLOCKS: Final = 1 << 16  # dequantise this many blocks at a time, to stay in the CPU's cache


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies in the file. ``shape`` is NumPy's order: rows first."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    nbytes: int


class _Cursor:
    """Reads little-endian values one after the other and refuses to run past the end."""

    __slots__ = ("_data", "_path", "offset")

    def __init__(self, path: str, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self.offset = 0

    def fail(self, reason: str) -> GgufError:
        return GgufError(self._path, self.offset, reason)

    def take(self, nbytes: int) -> bytes:
        end = self.offset + nbytes
        if end > len(self._data):
            raise self.fail(f"{nbytes} bytes wanted, the file has {len(self._data) - self.offset} left")
        piece = self._data[self.offset : end]
        self.offset = end
        return piece

    def scalar(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(code, self.take(struct.calcsize(code)))[0]
        return value

    def u32(self) -> int:
        return int(self.scalar("<I"))

    def u64(self) -> int:
        return int(self.scalar("<Q"))

    def string(self) -> str:
        piece = self.take(self.u64())
        try:
            return piece.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail("a string is not UTF-8") from None

    def value(self, kind: int) -> MetadataValue:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise self.fail(f"unknown metadata type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self) -> list[MetadataValue]:
        kind, count = self.u32(), self.u64()
        if kind == _ARRAY:
            raise self.fail("nested metadata arrays are not supported")
        if kind == _STRING:
            self._check_count(count, 8)
            return [self.string() for _ in range(count)]
        if kind not in _SCALARS:
            raise self.fail(f"unknown metadata type {kind}")
        code = _SCALARS[kind]
        self._check_count(count, struct.calcsize(code))
        return list(struct.unpack(f"<{count}{code[1:]}", self.take(count * struct.calcsize(code))))

    def _check_count(self, count: int, least_bytes_each: int) -> None:
        if count * least_bytes_each > len(self._data) - self.offset:
            raise self.fail(f"a count of {count} does not fit the file")

    def tensor(self) -> TensorInfo:
        name, dimensions = self.string(), self.u32()
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self.fail(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(self.u64() for _ in range(dimensions))[::-1]
        kind, offset = self.u32(), self.u64()
        if kind not in _BYTES_PER_BLOCK:
            raise self.fail(f"tensor {name!r} has type {kind}; F32, Q4_1 and Q8_0 are supported")
        if kind != _F32 and shape[-1] % _BLOCK:
            raise self.fail(f"tensor {name!r}: rows of {shape[-1]} values are not whole blocks")
        nbytes = math.prod(shape) * _BYTES_PER_BLOCK[kind] // _BLOCK
        return TensorInfo(name, shape, kind, offset, nbytes)

    def align(self, alignment: int) -> None:
        self.offset += -self.offset % alignment


class GgufFile:
    """An open GGUF file, mapped into memory; a context manager. What was read outlives it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < len(_MAGIC):
                raise GgufError(str(self.path), 0, f"the file has {size} bytes")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.metadata: dict[str, MetadataValue] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            self._parse(_Cursor(str(self.path), self._map))
        except BaseException:
            self._map.close()
            raise

    def _parse(self, cursor: _Cursor) -> None:
        if cursor.take(4) != _MAGIC:
            raise GgufError(str(self.path), 0, "this is not a GGUF file")
        version = cursor.u32()
        if version not in _VERSIONS:
            raise cursor.fail(f"GGUF version {version}; {_VERSIONS} are supported")
        tensors, values = cursor.u64(), cursor.u64()
        for _ in range(values):
            key = cursor.string()
            if key in self.metadata:
                raise cursor.fail(f"metadata key {key!r} appears twice")
            self.metadata[key] = cursor.value(cursor.u32())
        for _ in range(tensors):
            info = cursor.tensor()
            if info.name in self.tensors:
                raise cursor.fail(f"tensor {info.name!r} appears twice")
            self.tensors[info.name] = info
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise cursor.fail(f"alignment {alignment!r} is not a power of two")
        cursor.align(alignment)
        self._data_offset = cursor.offset
        for info in self.tensors.values():
            if self._data_offset + info.offset + info.nbytes > len(self._map):
                raise cursor.fail(f"tensor {info.name!r} ends past the end of the file")
            if info.offset % alignment:
                raise cursor.fail(f"tensor {info.name!r} is not aligned to {alignment} bytes")

    def get(self, key: str, kind: type[T]) -> T:
        """The metadata value of ``key``, which must exist and be of ``kind``."""
        value = self.metadata.get(key)
        if type(value) is not kind:
            found = type(value).__name__
            raise GgufError(str(self.path), 0, f"metadata {key!r} is {found}, not {kind.__name__}")
        return value

    def get_list(self, key: str, kind: type[T]) -> list[T]:
        """The metadata array of ``key``, whose elements must be of ``kind``."""
        value = self.metadata.get(key)
        if not isinstance(value, list):
            raise GgufError(str(self.path), 0, f"metadata {key!r} is {type(value).__name__}, not an array")
        items = [item for item in value if type(item) is kind]
        if len(items) != len(value):
            raise GgufError(str(self.path), 0, f"metadata {key!r} is not an array of {kind.__name__}")
        return items

    def tensor(self, name: str, out: Array | None = None) -> Array:
        """The tensor as float32, in ``out`` (C-contiguous, of the tensor's shape) or in a new array."""
        info = self.tensors.get(name)
        if info is None:
            raise GgufError(str(self.path), 0, f"there is no tensor {name!r}")
        if out is None:
            out = np.empty(info.shape, dtype=np.float32)
        elif out.shape != info.shape or not out.flags.c_contiguous:
            wrong = f"tensor {name!r} has shape {info.shape}, not {out.shape}"
            raise GgufError(str(self.path), info.offset, wrong)
        start = self._data_offset + info.offset
        with memoryview(self._map) as whole, whole[start : start + info.nbytes] as raw:
            _dequantise(info.type, raw, out)
        return out

    def close(self) -> None:
        self._map.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _dequantise(kind: int, raw: memoryview, out: Array) -> None:
    if kind == _F32:
        out.reshape(-1)[:] = np.frombuffer(raw, dtype="<f4")
    elif kind == _Q4_1:
        dequantise_q4_1(raw, out)
    else:
        dequantise_q8_0(raw, out)


def dequantise_q4_1(raw: memoryview | bytes, out: Array) -> None:
    """Blocks of 32 values, nibble · scale + minimum: the low nibbles first, then the high ones."""
    blocks = np.frombuffer(raw, dtype=_Q4_1_BLOCK)
    target = out.reshape(-1, 2, 16)
    for start in range(0, len(blocks), _CHUNK_BLOCKS):
        part = blocks[start : start + _CHUNK_BLOCKS]
        values = target[start : start + _CHUNK_BLOCKS]
        nibbles = part["nibbles"]
        values[:, 0] = nibbles & 15
        values[:, 1] = nibbles >> 4
        values *= part["scale"].astype(np.float32)[:, None, None]
        values += part["minimum"].astype(np.float32)[:, None, None]


def dequantise_q8_0(raw: memoryview | bytes, out: Array) -> None:
    """Blocks of 32 values: signed byte · scale."""
    blocks = np.frombuffer(raw, dtype=_Q8_0_BLOCK)
    target = out.reshape(-1, _BLOCK)
    for start in range(0, len(blocks), _CHUNK_BLOCKS):
        part = blocks[start : start + _CHUNK_BLOCKS]
        scale = part["scale"].astype(np.float32)[:, None]
        np.multiply(part["values"], scale, out=target[start : start + _CHUNK_BLOCKS])
