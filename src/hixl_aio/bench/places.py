"""Where memory is: addresses for the floors, which copy without the library."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hixl_aio import MemoryRegion

__all__ = ("Place", "address_of", "anonymous", "find_place", "mapping_of", "view_at")


@dataclass(frozen=True, slots=True)
class Place:
    """A run of memory of one process.

    Attributes:
        address: where it begins there.
        inode: of the file that it maps; 0: none.
        offset: where it begins in that file.
    """

    address: int
    inode: int
    offset: int


def anonymous(nbytes: int) -> mmap.mmap:
    """Private memory, as any allocator gives it."""
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


@dataclass(frozen=True, slots=True)
class _Mapping:
    begin: int
    end: int
    offset: int
    inode: int


def address_of(region: MemoryRegion) -> int:
    """Where a region of ours begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(region.view()))


def view_at(address: int, nbytes: int) -> memoryview:
    """Memory at an address, as a buffer. Whoever asks keeps it mapped."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def find_place(address: int) -> Place:
    """What lies behind an address of this process."""
    for mapping in _mappings():
        if mapping.begin <= address < mapping.end:
            return Place(address, mapping.inode, mapping.offset + address - mapping.begin)
    raise LookupError(f"nothing is mapped at {address:#x}")


def mapping_of(place: Place) -> int | None:
    """Where this process has mapped what lies at a place of another one; None: it has not.

    So a floor copies into the very pages that the library copies into, through the same mapping.
    """
    for mapping in _mappings():
        inside = mapping.offset <= place.offset < mapping.offset + mapping.end - mapping.begin
        if mapping.inode == place.inode and place.inode and inside:
            return mapping.begin + place.offset - mapping.offset
    return None


def _mappings() -> Iterator[_Mapping]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, inode, *_ = line.split()
        begin, end = (int(edge, 16) for edge in span.split("-"))
        yield _Mapping(begin, end, int(offset, 16), int(inode))
