"""The floors do what they claim to cost."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from array import array
from pathlib import Path

import pytest

from hixl_aio.bench import _floors
from hixl_aio.bench.floors import copies_handed_over
from hixl_aio.bench.places import Place, find_place, mapping_of


def address(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("nbytes", [0, 1, 63, 4097, 1 << 20])
def test_copies_are_whole(nbytes: int, threads: int, streaming: bool) -> None:
    """Every byte and no other, whatever the alignment."""
    source, to = bytearray(os.urandom(nbytes + 1)), bytearray(nbytes + 2)
    _floors.copy_many(address(to) + 1, address(source), nbytes, 3, threads, streaming)
    assert to == b"\0" + source[:nbytes] + b"\0"


def test_a_copy_between_buffers_is_checked() -> None:
    """A run outside of either is refused, and nothing moves."""
    source, to = b"0123456789", bytearray(10)
    _floors.copy_between(to, 2, source, 4, 6)
    assert bytes(to) == b"\0\x00456789\0\0"
    for place, begin, nbytes in ((5, 0, 6), (0, 5, 6), (11, 0, 0), (0, 0, 1 << 40)):
        with pytest.raises(ValueError, match="outside"):
            _floors.copy_between(to, place, source, begin, nbytes)


@pytest.mark.asyncio
async def test_a_copy_that_was_handed_over_has_ended_when_the_wait_for_it_is_cancelled() -> None:
    """Its memory may go away next: nothing is written any more."""
    nbytes = 128 << 20
    source, to = bytearray(nbytes), bytearray(nbytes)
    for floor in copies_handed_over(address(to), address(source), nbytes, cores=2).values():
        await floor.run(2)
        running = asyncio.ensure_future(floor.run(1))
        await asyncio.sleep(0)  # it has begun
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        ends = (nbytes // 2 - 1, nbytes - 1)  # what each thread copies last
        for place in ends:
            to[place] = 0xA5
        await asyncio.sleep(0.2)  # not for ordering: time in which a late copy would write
        assert [to[place] for place in ends] == [0xA5, 0xA5]


def test_blocks_go_where_their_offsets_say() -> None:
    """And lists of different length are refused."""
    source, to = bytearray(b"aabbcc"), bytearray(6)
    _floors.copy_blocks(address(to), address(source), array("q", [4, 0]), array("q", [0, 2]), 2, 1)
    assert to == b"bb\0\0aa"
    with pytest.raises(ValueError, match="same number"):
        _floors.copy_blocks(address(to), address(source), array("q", [4]), array("q", [0, 2]), 2, 1)


@pytest.mark.parametrize("threads", [1, 2])
def test_process_calls_move_bytes(threads: int) -> None:
    """Both directions, from this process to itself; a wrong address is an error."""
    source, to = bytearray(os.urandom(10_000)), bytearray(10_000)
    _floors.write_process(os.getpid(), address(to), address(source), 10_000, 1, threads)
    assert to == source
    again = bytearray(10_000)
    _floors.read_process(os.getpid(), address(to), address(again), 10_000, 1, threads)
    assert again == source
    with pytest.raises(RuntimeError, match="process_vm_writev"):
        _floors.write_process(os.getpid(), 1, address(source), 10_000, 1, threads)


def test_a_ping_is_answered_until_somebody_is_gone() -> None:
    """Then both sides return instead of waiting for each other."""
    out, back = os.eventfd(0), os.eventfd(0)
    answering = threading.Thread(target=_floors.pong, args=(out, back))
    answering.start()
    try:
        assert _floors.ping(out, back, 100)
        os.eventfd_write(back, _floors.GONE)
        assert not _floors.ping(out, back, 1)
    finally:
        os.eventfd_write(out, _floors.GONE)
        answering.join()
        os.close(out)
        os.close(back)


def test_a_place_is_found_again_through_its_file(tmp_path: Path) -> None:
    """Two mappings of one file: what lies behind one address is found at the other."""
    import mmap

    path = tmp_path / "file"
    path.write_bytes(bytes(3 * mmap.PAGESIZE))
    with path.open("r+b") as file:
        whole = mmap.mmap(file.fileno(), 0)
        there = ctypes.addressof(ctypes.c_char.from_buffer(whole))
        place = find_place(there + mmap.PAGESIZE + 8)
    assert (place.offset, place.inode) == (mmap.PAGESIZE + 8, path.stat().st_ino)
    assert mapping_of(place) == there + mmap.PAGESIZE + 8
    assert mapping_of(Place(there, 0, 0)) is None
    with pytest.raises(LookupError):
        find_place(0)
