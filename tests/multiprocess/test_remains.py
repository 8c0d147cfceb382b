"""What a killed process leaves behind: nothing that moves, nothing that has a name."""

from __future__ import annotations

import asyncio
import mmap
import os
from pathlib import Path

import pytest

from hixl_aio import Access, Engine, EngineOptions, PeerLostError
from hixl_aio.testing import child_process
from tests.soak import rounds

from . import children

pytestmark = pytest.mark.asyncio

MIB = 1 << 20
NBYTES = 16 * MIB
LINKS = [
    pytest.param("shm", "allocate", id="shm"),
    pytest.param("cma", "register", id="cma"),
    pytest.param("cooperative", "register", id="cooperative"),
]


def children_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


@pytest.mark.parametrize(("link", "memory"), LINKS)
async def test_nothing_of_a_killed_writer_lands_after_the_region_has_closed(link: str, memory: str) -> None:
    """It dies in the middle of a put; once our region is closed, the pattern that we put there stays."""
    ours = b"\xa5" * NBYTES
    async with Engine(options=EngineOptions(links=(link,))) as engine:
        for _ in range(rounds(3, 300)):
            if memory == "allocate":
                inbox = await engine.allocate(NBYTES, label="inbox", access=Access.WRITE)
                view = inbox.view()
            else:
                buffer = mmap.mmap(-1, NBYTES)
                inbox = await engine.register(buffer, label="inbox", access=Access.WRITE)
                view = memoryview(buffer)
            async with child_process(
                children.put_for_ever, address=engine.address, links=[link], nbytes=NBYTES
            ) as writer:
                assert (await writer.hear())["started"]
                await engine.accept()
                view[:] = ours
                while view[0] == 0xA5:  # noqa: ASYNC110  (a put without a signal is invisible to its target)
                    await asyncio.sleep(0)
                writer.kill()  # it has begun, and 16 MiB are not written in a turn of the loop
                async with asyncio.timeout(2):
                    await inbox.aclose()
                view[:] = ours
            await asyncio.sleep(0.001)  # not for ordering: time in which a late write would land
            assert view == ours
            view.release()


@pytest.mark.parametrize(("link", "memory"), LINKS)
async def test_gets_from_a_killed_peer_end_within_a_second_and_let_go(link: str, memory: str) -> None:
    """SIGKILL in the middle of a get: done or PeerLostError, and nothing writes our buffer afterwards."""
    async with Engine(options=EngineOptions(links=(link,))) as engine:
        back = await engine.register(bytearray(NBYTES))
        lost, total = 0, rounds(3, 200)
        for _ in range(total):
            async with child_process(children.serve, links=[link], memory=memory, nbytes=NBYTES) as victim:
                peer = await engine.connect((await victim.hear())["address"])
                inbox, part = peer.region("inbox"), NBYTES // 8
                # All take turns, so the short one is over when the others have most of their way before them.
                first = engine.get(inbox[:part], back[:part])
                gets = [first, *(engine.get(inbox, back) for _ in range(400))]
                await first
                victim.kill()
                async with asyncio.timeout(1):
                    outcomes = await asyncio.gather(*(get.wait() for get in gets), return_exceptions=True)
            ends = {type(outcome) for outcome in outcomes}
            assert ends <= {type(None), PeerLostError}
            lost += PeerLostError in ends
            assert not back.busy
            back.view()[:] = b"\x5a" * NBYTES
            await asyncio.sleep(0.001)  # not for ordering: time in which a late write would land
            assert back.view() == b"\x5a" * NBYTES
        assert lost > total // 2  # on a busy machine a kill may come when all is done


async def test_killed_owner_and_killed_attacher_leave_no_name_and_no_tracker() -> None:
    """Shared memory has no name and no helper process: nothing is left in /dev/shm when both are dead."""
    before = set(os.listdir("/dev/shm"))
    async with (
        child_process(children.serve, links=["shm"], memory="allocate", nbytes=NBYTES) as owner,
        child_process(children.serve, links=["shm"], memory="allocate", nbytes=NBYTES) as stable,
        Engine() as engine,
    ):
        address = (await owner.hear())["address"]
        kept = await engine.connect((await stable.hear())["address"])
        lost = await engine.connect(address)
        source = await engine.allocate(NBYTES)
        source.view()[:] = b"\x77" * NBYTES
        await engine.put(source, kept.region("inbox"))
        await engine.put(source, lost.region("inbox"))
        for process in (owner, stable):
            assert children_of(process.pid) == "", "shared memory needs no resource tracker"
        async with child_process(children.visit_nobody, address=kept.address) as attacher:
            await attacher.hear()
            attacher.kill()
        owner.kill()
        back = await engine.allocate(NBYTES)
        await engine.get(kept.region("inbox"), back)
        assert back.view() == source.view()
    assert set(os.listdir("/dev/shm")) == before
