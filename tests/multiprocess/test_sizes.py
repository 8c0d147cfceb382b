"""Any size is exact, also beyond what one system call moves, with guard bytes around each destination."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from hixl_aio import Access, Engine, EngineOptions, LocalView, MemoryRegion, Peer, RemoteView

GUARD = 4096
SMALL = [0, 1, 7, 4095, 4096, 4097, 65535, 65536, 65537, (1 << 20) - 1, (1 << 20) + 1, (3 << 20) + 5]
LARGE = [0x7FFFF000 - 1, 0x7FFFF000, 0x7FFFF000 + 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, 5 << 30]


def available_nbytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def address_of(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def same(left: memoryview, left_at: int, right: memoryview, right_at: int, nbytes: int) -> bool:
    """memcmp: comparing memoryviews element by element would take minutes here."""
    memcmp = ctypes.CDLL(None).memcmp
    memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return int(memcmp(address_of(left) + left_at, address_of(right) + right_at, nbytes)) == 0


class Pair:
    """A source and a target of one size, both filled with different patterns."""

    def __init__(self, engine: Engine, peer: Peer, source: MemoryRegion, target: MemoryRegion) -> None:
        self.engine, self.peer, self.source, self.target = engine, peer, source, target

    async def put_exactly(self, nbytes: int) -> None:
        """Put, compare every byte, and look at the guards on both sides."""
        target = self.target.view()
        target[:GUARD] = b"\xa5" * GUARD
        target[GUARD + nbytes : 2 * GUARD + nbytes] = b"\x5a" * GUARD
        local: LocalView = self.source[GUARD : GUARD + nbytes]
        remote: RemoteView = self.peer.region("inbox")[GUARD : GUARD + nbytes]
        await self.engine.put(local, remote)
        assert target[:GUARD] == b"\xa5" * GUARD
        assert target[GUARD + nbytes : 2 * GUARD + nbytes] == b"\x5a" * GUARD
        assert same(target, GUARD, self.source.view(), GUARD, nbytes)


def fill(buffer: memoryview, seed: int) -> None:
    """A pattern whose period (a prime number of bytes) divides no chunk, page or system call."""
    period = 1_000_003
    block = bytes((seed + 31 * i + (i >> 8) * 7) & 0xFF for i in range(period))
    block *= 64
    for at in range(0, len(buffer), len(block)):
        end = min(at + len(block), len(buffer))
        buffer[at:end] = block[: end - at]


async def open_pair(links: tuple[str, ...], memory: str, nbytes: int) -> AsyncIterator[Pair]:
    options = EngineOptions(links=links, transfer_timeout=None)
    total = nbytes + 2 * GUARD
    async with Engine(options=options) as engine, Engine(options=options) as owner:
        if memory == "allocate":
            target = await owner.allocate(total, label="inbox", access=Access.READ_WRITE)
        else:
            target = await owner.register(mmap.mmap(-1, total), label="inbox", access=Access.READ_WRITE)
        source = await engine.register(mmap.mmap(-1, total))
        fill(source.view(), 3)
        yield Pair(engine, await engine.connect(owner.address), source, target)
        await source.aclose()
        await target.aclose()


LINKS = [
    pytest.param(("inproc",), "register", id="inproc"),
    pytest.param(("shm",), "allocate", id="shm"),
    pytest.param(("cma",), "register", id="cma"),
    pytest.param(("cooperative",), "register", id="cooperative"),
]


@pytest_asyncio.fixture
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async for opened in open_pair(*request.param):
        yield opened


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "pair", [pytest.param((*p.values, max(SMALL)), id=p.id) for p in LINKS], indirect=True
)
async def test_small_and_odd_sizes_are_exact(pair: Pair) -> None:
    """Sizes around pages, the inline limit and chunks arrive whole and nowhere else."""
    for nbytes in SMALL:
        await pair.put_exactly(nbytes)


@pytest.mark.asyncio
@pytest.mark.timeout(300)
@pytest.mark.skipif(available_nbytes() < 13 << 30, reason="needs 13 GiB of available memory")
@pytest.mark.parametrize(
    "pair", [pytest.param((*p.values, max(LARGE)), id=p.id) for p in LINKS], indirect=True
)
async def test_sizes_around_two_and_four_gib_are_exact(pair: Pair) -> None:
    """Sizes around the limit of one process_vm call, 2 GiB, 4 GiB and at 5 GiB arrive whole."""
    for nbytes in LARGE:
        await pair.put_exactly(nbytes)
