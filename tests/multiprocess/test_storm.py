"""A peer that is killed at any moment of everything at once: whatever it held then, nobody is stuck.

Rings and pins are shared memory, and the dead hold them for ever: a pin that was taken, a slot that was half
written, a region that was being announced, an answer that will not come.
"""

from __future__ import annotations

import asyncio
import mmap
import random

import pytest

from hixl_aio import Access, Engine, EngineOptions, Peer, PeerError, PeerLostError, SignalQueueFullError
from hixl_aio.testing import child_process
from tests.soak import rounds

from . import children
from .steady import Steady

pytestmark = pytest.mark.asyncio

NBYTES = 2 << 20
ROUNDS = rounds(4, 300)
LINKS = [
    pytest.param("shm", "allocate", id="shm"),
    pytest.param("cma", "register", id="cma"),
    pytest.param("cooperative", "register", id="cooperative"),
]
OURS = b"\xa5" * NBYTES


async def answer(engine: Engine, peer: Peer, nbytes: int) -> None:
    """We do to the victim what it does to us, until it is gone."""
    source = await engine.register(bytearray(nbytes))
    try:
        while True:
            try:
                await engine.put(source, peer.region("storm")[:nbytes], signal="answer")
            except SignalQueueFullError:
                await asyncio.sleep(0)  # the victim is slower than we are
            await engine.get(peer.region("storm")[:nbytes], source)
    except PeerError:
        pass
    finally:
        await source.aclose()


async def hear_all(engine: Engine, peer: Peer) -> None:
    """What it said before it died is still heard, and then its death."""
    while True:
        await engine.wait_signal("storm", peer=peer)


async def kill_one(engine: Engine, link: str, memory: str, after: int) -> None:
    if memory == "allocate":
        inbox = await engine.allocate(NBYTES, label="inbox", access=Access.READ_WRITE)
        view = inbox.view()
    else:
        buffer = mmap.mmap(-1, NBYTES)
        inbox = await engine.register(buffer, label="inbox", access=Access.READ_WRITE)
        view = memoryview(buffer)
    victim = child_process(children.storm, address=engine.address, links=[link], memory=memory, nbytes=NBYTES)
    async with victim as running:
        assert (await running.hear())["started"]
        peer = await engine.accept()
        answers = [asyncio.create_task(answer(engine, peer, nbytes)) for nbytes in (1, NBYTES)]
        for _ in range(after):
            await engine.wait_signal("storm", peer=peer)
        running.kill()
        async with asyncio.timeout(2):
            await asyncio.gather(*answers)
    with pytest.raises(PeerLostError):
        await asyncio.wait_for(hear_all(engine, peer), 2)
    async with asyncio.timeout(2):
        await inbox.aclose()
    view[:] = OURS
    await asyncio.sleep(0)
    assert view == OURS
    view.release()


@pytest.mark.timeout(60 + 2 * ROUNDS)
@pytest.mark.parametrize(("link", "memory"), LINKS)
async def test_a_peer_killed_in_the_middle_of_everything_leaves_nobody_stuck(link: str, memory: str) -> None:
    """Our calls end, its pins count no longer, its memory is let go of, and a steady pair never fails."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    options = EngineOptions(links=(link,))
    async with (
        child_process(children.serve, links=[link], memory=memory, nbytes=NBYTES) as stable,
        Engine(options=options) as engine,
    ):
        kept = await engine.connect((await stable.hear())["address"])
        source = await engine.register(bytearray(4096))
        async with Steady(lambda: engine.put(source, kept.region("inbox")[:4096]).wait()) as steady:
            for number in range(ROUNDS):
                try:
                    await kill_one(engine, link, memory, chance.randrange(1, 40))
                except BaseException as error:
                    error.add_note(f"seed {seed}, round {number}")
                    raise
                counts = engine.statistics()
                assert (counts.peers, counts.regions) == (1, 1)
            await steady.goes_on(1)
        assert list(engine.peers) == [kept.address]
        assert engine.statistics().regions == 1
