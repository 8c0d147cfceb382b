"""Mappings of files take part like other memory, and what becomes of the file harms nobody."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from typing import IO

import pytest

from hixl_aio import (
    Access,
    Batch,
    BatchError,
    Completion,
    Engine,
    Get,
    MemoryRegion,
    Put,
    RemoteRegion,
    TransferFailedError,
)

from .support import Pair

pytestmark = pytest.mark.timeout(60)

PAGE = mmap.PAGESIZE
NBYTES = 1 << 20
# Small enough to be copied within the call, and large enough to be cut into chunks.
SIZES = (64, NBYTES)


@pytest.fixture
def file() -> Iterator[IO[bytes]]:
    """A file of zeros."""
    with tempfile.TemporaryFile() as opened:
        opened.truncate(NBYTES)
        yield opened


def mapped(file: IO[bytes], access: int = mmap.ACCESS_WRITE) -> mmap.mmap:
    return mmap.mmap(file.fileno(), NBYTES, access=access)


async def target_in(pair: Pair, file: IO[bytes]) -> tuple[MemoryRegion, RemoteRegion]:
    """A region of the target that maps the file."""
    region = await pair.far.register(mapped(file), label="file", access=Access.READ_WRITE)
    await pair.peer.refresh()
    return region, pair.peer.region("file")


async def fails(operation: Completion) -> None:
    with pytest.raises(TransferFailedError, match="cut off"):
        await operation
    await operation.settled()


async def test_a_mapped_file_is_source_and_destination(pair: Pair, file: IO[bytes]) -> None:
    """Every size arrives whole, in the file as well, and nothing beside it changes."""
    if pair.link == "shm":
        pytest.skip("shm moves into allocated memory only; the source is looked at below")
    target, remote = await target_in(pair, file)
    source = await pair.source(NBYTES, fill=7)
    for nbytes in (1, 64, PAGE + 1, NBYTES - 5):
        target.view()[:] = bytes(NBYTES)
        await pair.near.put(source[:nbytes], remote[5 : 5 + nbytes])
        assert bytes(target.view()) == bytes(5) + b"\x07" * nbytes + bytes(NBYTES - 5 - nbytes)
        file.seek(0)
        assert file.read() == bytes(target.view())
        await pair.near.get(remote[:nbytes], source[:nbytes])
        assert bytes(source.view()[:nbytes]) == bytes(target.view()[:nbytes])
        source.view()[:] = b"\x07" * NBYTES


@pytest.mark.parametrize("access", [mmap.ACCESS_WRITE, mmap.ACCESS_COPY, mmap.ACCESS_READ])
async def test_a_source_whose_file_was_truncated_fails_and_harms_nobody(
    pair: Pair, file: IO[bytes], access: int
) -> None:
    """The put fails, its signal is negative, and once the file is long again the same put works."""
    target, remote = await pair.target(NBYTES)
    source = await pair.near.register(mapped(file, access))
    for nbytes in SIZES:
        file.truncate(0)
        await fails(pair.near.put(source[:nbytes], remote[:nbytes], signal="landed"))
        assert (await pair.far.wait_signal("landed")).error is not None
        file.truncate(NBYTES)
        target.view()[:] = b"\x01" * NBYTES
        await pair.near.put(source[:nbytes], remote[:nbytes], signal="landed")
        assert (await pair.far.wait_signal("landed")).error is None
        assert bytes(target.view()) == bytes(nbytes) + b"\x01" * (NBYTES - nbytes)


async def test_a_get_into_a_file_that_was_truncated_fails_and_harms_nobody(
    pair: Pair, file: IO[bytes]
) -> None:
    """Also where only its end is missing: what there is room for has an undefined content, and no more."""
    target, remote = await pair.target(NBYTES)
    target.view()[:] = b"\x05" * NBYTES
    destination = await pair.near.register(mapped(file))
    file.truncate(NBYTES // 2)
    await fails(pair.near.get(remote, destination))
    await fails(pair.near.get(remote[:64], destination[NBYTES - 64 :]))
    await pair.near.get(remote[: NBYTES // 2], destination[: NBYTES // 2])
    assert bytes(destination.view()[: NBYTES // 2]) == b"\x05" * (NBYTES // 2)


async def test_a_target_whose_file_was_truncated_lives(pair: Pair, file: IO[bytes]) -> None:
    """A peer's put and get fail at the peer; the owner's process goes on, and so does the connection."""
    if pair.link == "shm":
        pytest.skip("shm moves into allocated memory only")
    _, remote = await target_in(pair, file)
    source = await pair.source(NBYTES, fill=9)
    file.truncate(0)
    for nbytes in SIZES:
        await fails(pair.near.put(source[:nbytes], remote[:nbytes]))
        await fails(pair.near.get(remote[:nbytes], source[:nbytes]))
    whole, other = await pair.target(NBYTES, label="other")
    await pair.near.put(source, other)
    await pair.near.flush()
    assert whole.nbytes == NBYTES


async def test_in_a_batch_the_part_alone_fails(pair: Pair, file: IO[bytes]) -> None:
    """The others arrive, before it and after it."""
    target, remote = await pair.target(3 * PAGE)
    source = await pair.source(3 * PAGE, fill=3)
    gone = await pair.near.register(mapped(file))
    file.truncate(0)
    batch: Batch = pair.near.batch(
        [
            Put(source[:PAGE], remote[:PAGE]),
            Put(gone[:PAGE], remote[PAGE : 2 * PAGE]),
            Put(source[:PAGE], remote[2 * PAGE :]),
        ]
    )
    with pytest.raises(BatchError) as caught:
        await batch
    assert [index for index, _ in caught.value.failures] == [1]
    assert bytes(target.view()[:PAGE]) == bytes(target.view()[2 * PAGE :]) == b"\x03" * PAGE
    with pytest.raises(BatchError):
        await pair.near.batch([Get(remote[:PAGE], gone[:PAGE])])


async def test_a_region_that_closes_meanwhile_is_copied_safely_to_the_end(
    pair: Pair, file: IO[bytes]
) -> None:
    """Its memory is known to be a file's until the last operation of ours has settled."""
    _, remote = await pair.target(NBYTES)
    source = await pair.near.register(mapped(file))
    file.truncate(0)
    operations = [pair.near.put(source, remote) for _ in range(20)]
    await source.aclose()
    for operation in operations:
        await fails(operation)


async def test_two_engines_may_register_one_file(one: Engine, file: IO[bytes]) -> None:
    """Closing one registration leaves the other one safe."""
    memory = mapped(file)
    peer = await one.connect(one.address)
    first = await one.register(memory, label="first", access=Access.WRITE)
    second = await one.register(memoryview(memory)[PAGE : 3 * PAGE], label="second", access=Access.WRITE)
    await peer.refresh()
    source = await one.register(bytearray(PAGE))
    await second.aclose()
    file.truncate(0)
    await fails(one.put(source, peer.region("first")[PAGE : 2 * PAGE]))
    await first.aclose()
