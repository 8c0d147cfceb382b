"""Pages of regions: huge ones where the system has any, and peers' ones mapped before they are used."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from hixl_aio import Access, Engine, EngineOptions

from ..loops import turns
from .support import connected

NBYTES = 16 << 20
HUGE = 2 << 20


def system_has_huge_pages() -> bool:
    pool = Path("/proc/meminfo").read_text().split("HugePages_Free:")[1].split()[0]
    setting = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    transparent = setting.exists() and any(
        word in setting.read_text() for word in ("[always]", "[within_size]", "[advise]", "[force]")
    )
    return int(pool) * HUGE >= NBYTES or transparent


def resident_of(nbytes: int) -> int:
    """Bytes that are mapped of all our mappings of a segment of this size."""
    found, size, is_segment = 0, 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            is_segment = "/memfd:hixl-aio-segment" in rest
        elif first == "Size:":
            size = int(rest[0]) << 10
        elif first == "Rss:" and is_segment and size == nbytes:
            found += int(rest[0]) << 10
    return found


@pytest.mark.parametrize("huge", [False, True])
async def test_statistics_say_how_much_lies_on_huge_pages(huge: bool) -> None:
    """Some where the system has any, else nothing; the bytes arrive all the same."""
    async with connected(EngineOptions(links=("shm",), huge_pages=huge)) as pair:
        target = await pair.far.allocate(NBYTES, label="target", access=Access.READ_WRITE)
        source = await pair.near.allocate(NBYTES)
        source.view()[:] = b"\x3c" * NBYTES
        await pair.peer.refresh()
        await pair.near.put(source, pair.peer.region("target"))
        assert target.view() == source.view()
        found = pair.far.statistics().native["huge_nbytes"]
        assert found <= NBYTES
        assert (found > 0) == (huge and system_has_huge_pages())
        await target.aclose()
        assert pair.far.statistics().native["huge_nbytes"] == 0


@pytest.mark.parametrize("populate", [False, True])
async def test_memory_of_peers_is_mapped_ahead_if_that_is_asked_for(populate: bool) -> None:
    """Also what is mapped in several parts, and what is made when the peer is connected already."""
    sizes = [(66 << 20) + 4096, (3 << 20) + 4096, (5 << 20) + 4096]
    options = EngineOptions(links=("shm",), populate=populate)
    async with Engine(options=options) as far, Engine(options=options) as near:
        for nbytes in sizes[:2]:
            await far.allocate(nbytes, access=Access.WRITE)
        peer = await near.connect(far.address)
        await far.allocate(sizes[2], access=Access.WRITE)
        await peer.refresh()
        if not populate:
            assert [resident_of(nbytes) for nbytes in sizes] == sizes  # at its owner
            return
        with anyio.fail_after(20):
            while [resident_of(nbytes) for nbytes in sizes] != [2 * nbytes for nbytes in sizes]:
                await turns()
