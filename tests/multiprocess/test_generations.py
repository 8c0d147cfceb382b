"""The owner's table protects target memory: no byte lands outside a live generation."""

from __future__ import annotations

import asyncio
import mmap

import pytest

from hixl_aio import Access, Engine, EngineOptions, MemoryRegion
from hixl_aio.testing import child_process

from . import children

ROUNDS = 150
NBYTES = 1 << 20


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("links", "memory"),
    [
        pytest.param(("shm",), "allocate", id="shm"),
        pytest.param(("cma",), "register", id="cma"),
        pytest.param(("cooperative",), "register", id="cooperative"),
    ],
)
async def test_no_byte_lands_after_a_region_was_closed(links: tuple[str, ...], memory: str) -> None:
    """A region is closed and registered anew under a writer; closed memory keeps what is put there then."""
    mapping = mmap.mmap(-1, NBYTES)
    ours = b"\xa5" * NBYTES
    reached = 0
    async with (
        Engine(options=EngineOptions(links=links)) as engine,
        child_process(
            children.write_generations, address=engine.address, links=list(links), nbytes=NBYTES
        ) as writer,
    ):
        await engine.accept()
        assert (await writer.hear())["started"]
        for round_number in range(ROUNDS):
            if memory == "allocate":
                region = await engine.allocate(NBYTES, label="inbox", access=Access.WRITE)
            else:
                region = await engine.register(mapping, label="inbox", access=Access.WRITE)
            view = region.view()
            # Every other round closes while the writer may be in the middle, the rest once it has begun.
            # A put without a signal is invisible to its target, so it has to look.
            while round_number % 2 and view[0] != 0x57:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await region.aclose()
            reached += view[0] == 0x57
            view[:] = ours
            await asyncio.sleep(0.001)  # not for ordering: time in which a late write would land
            assert view == ours, f"round {round_number}: a byte landed in a closed region"
            if memory == "register":
                view.release()
        await writer.say({"stop": True})
        counts = await writer.hear()
    assert reached >= ROUNDS // 2
    assert counts["written"] > 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("links", "memory"),
    [
        pytest.param(("shm",), "allocate", id="shm"),
        pytest.param(("cma",), "register", id="cma"),
        pytest.param(("cooperative",), "register", id="cooperative"),
    ],
)
async def test_an_old_key_reaches_nothing_of_the_same_memory_registered_anew(
    links: tuple[str, ...], memory: str
) -> None:
    """Under a writer that refreshes all the time, memory is closed and registered anew at once: what the
    writer then tries with its old key is stale, and no byte changes."""
    mapping = mmap.mmap(-1, NBYTES)
    ours = b"\xa5" * NBYTES
    rounds_left = 50

    async def make(engine: Engine) -> MemoryRegion:
        if memory == "allocate":
            return await engine.allocate(NBYTES, label="inbox", access=Access.WRITE)
        return await engine.register(mapping, label="inbox", access=Access.WRITE)

    async with (
        Engine(options=EngineOptions(links=links)) as engine,
        child_process(
            children.write_with_kept_key, address=engine.address, links=list(links), nbytes=NBYTES
        ) as writer,
    ):
        peer = await engine.accept()
        region = await make(engine)
        while rounds_left:
            rounds_left -= 1
            view, place = region.view(), region._record.address
            await engine.signal(peer, "go on")
            # A put without a signal is invisible to its target, so it has to look.
            while view[0] != 0x57:  # noqa: ASYNC110
                await asyncio.sleep(0)
            view.release()
            await region.aclose()
            await peer.refresh()  # a turn of the thread that has closed it, so that the memory is free
            region = await make(engine)
            assert region._record.address == place
            region.view()[:] = ours
            await engine.wait_signal("stale", peer=peer)
            assert region.view() == ours, "a byte landed under an old key"
        await engine.signal(peer, "go on", b"end")
        await writer.result()
