"""Pages of regions: huge ones where the system has any, and peers' ones mapped before they are used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hixl_aio import Access, EngineOptions

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


def resident_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("huge", [False, True])
async def test_statistics_say_how_much_lies_on_huge_pages(huge: bool) -> None:
    """As much as was asked for where the system has any, else nothing; the bytes arrive all the same."""
    async with connected(EngineOptions(links=("shm",), huge_pages=huge)) as pair:
        target = await pair.far.allocate(NBYTES, label="target", access=Access.READ_WRITE)
        source = await pair.near.allocate(NBYTES)
        source.view()[:] = b"\x3c" * NBYTES
        await pair.peer.refresh()
        await pair.near.put(source, pair.peer.region("target"))
        assert target.view() == source.view()
        found = pair.far.statistics().native["huge_nbytes"]
        assert found == (NBYTES if huge and system_has_huge_pages() else 0)
        await target.aclose()
        assert pair.far.statistics().native["huge_nbytes"] == 0


@pytest.mark.parametrize("populate", [False, True])
async def test_peers_memory_is_mapped_before_it_is_used(populate: bool) -> None:
    """With the option the pages are there without any transfer; without it none is."""
    async with connected(EngineOptions(links=("shm",), populate=populate)) as pair:
        before = resident_nbytes() + NBYTES  # what its owner has mapped
        await pair.far.allocate(NBYTES, label="target", access=Access.READ_WRITE)
        await pair.peer.refresh()
        if populate:
            # Each answer of the thread that maps them comes after some more; the test's timeout is the limit.
            while resident_nbytes() < before + NBYTES * 9 // 10:
                await pair.peer.refresh()
        else:
            assert resident_nbytes() < before + NBYTES // 2
        assert pair.peer.region("target").nbytes == NBYTES
