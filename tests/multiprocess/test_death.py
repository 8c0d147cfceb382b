"""A peer that is killed: its operations and waiters fail within a second, everybody else notices nothing."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from hixl_aio import Access, Engine, EngineOptions, HixlAioError, PeerLostError
from hixl_aio.testing import child_process

from . import children

MIB = 1 << 20
LINKS = [
    pytest.param(("shm",), "allocate", id="shm"),
    pytest.param(("cma",), "register", id="cma"),
    pytest.param(("cooperative",), "register", id="cooperative"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("links", "memory"), LINKS)
async def test_a_killed_target_fails_its_operations_and_waiters(links: tuple[str, ...], memory: str) -> None:
    """SIGKILL ends puts in flight, waiters and later calls within a second; a stable pair goes on."""
    nbytes = 64 * MIB
    options = EngineOptions(links=links)
    async with (
        child_process(children.serve, links=list(links), memory=memory, nbytes=nbytes) as victim,
        child_process(children.serve, links=list(links), memory=memory, nbytes=nbytes) as stable,
        Engine(options=options) as engine,
    ):
        victim_address, stable_address = (await victim.hear())["address"], (await stable.hear())["address"]
        source = await engine.allocate(nbytes)
        lost = await engine.connect(victim_address)
        kept = await engine.connect(stable_address)
        puts = [engine.put(source, lost.region("inbox")) for _ in range(200)]
        waiter = asyncio.ensure_future(engine.wait_signal("never", peer=lost))
        steady = engine.put(source, kept.region("inbox"), signal="arrived")
        await engine.put(source[:1], kept.region("inbox")[:1])

        started = time.monotonic()
        victim.kill()
        with pytest.raises(PeerLostError):
            await waiter
        outcomes = await asyncio.gather(*(put.wait() for put in puts), return_exceptions=True)
        assert time.monotonic() - started < 1.0
        failures = [outcome for outcome in outcomes if outcome is not None]
        assert failures, "some were in flight"
        assert all(isinstance(failure, HixlAioError) for failure in failures)
        with pytest.raises(HixlAioError):
            await engine.put(source, lost.region("inbox"))

        await steady
        await stable.say({"do": "signal", "name": "arrived"})
        assert not (await stable.hear())["error"]
        assert not source.busy
        assert list(engine.peers) == [stable_address]


@pytest.mark.asyncio
@pytest.mark.parametrize(("links", "memory"), LINKS)
async def test_a_killed_initiator_leaves_the_target_whole(links: tuple[str, ...], memory: str) -> None:
    """Our region can be closed at once after a peer that was writing into it was killed."""
    nbytes = 16 * MIB
    async with Engine(options=EngineOptions(links=links)) as engine:
        if memory == "allocate":
            inbox = await engine.allocate(nbytes, label="inbox", access=Access.WRITE)
        else:
            inbox = await engine.register(bytearray(nbytes), label="inbox", access=Access.WRITE)
        async with child_process(
            children.put_for_ever, address=engine.address, links=list(links), nbytes=nbytes
        ) as writer:
            await engine.accept()
            assert (await writer.hear())["started"]
            writer.kill()
        async with asyncio.timeout(2):
            await inbox.aclose()
        assert not inbox.busy


@pytest.mark.asyncio
async def test_a_peer_that_comes_and_goes_in_one_turn_of_the_loop_is_heard() -> None:
    """All signals of a peer that connected, spoke and left while the loop was busy reach their waiters."""
    async with Engine() as engine:
        inbox = await engine.allocate(4096, label="inbox", access=Access.WRITE)
        waiter = asyncio.ensure_future(engine.wait_signal("done"))
        await asyncio.sleep(0)
        async with child_process(children.visit, address=engine.address) as visitor:
            os.waitid(os.P_PID, visitor.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222  (the loop is to be busy)
        async with asyncio.timeout(5):
            done = await waiter
            bye = await engine.wait_signal("bye")
        assert (done.payload, bytes(inbox.view()[:6])) == (b"1", b"result")
        assert bye.peer is done.peer
        assert not engine.peers


@pytest.mark.asyncio
@pytest.mark.parametrize(("links", "memory"), LINKS)
async def test_a_peer_that_leaves_in_good_order_is_told_as_such(links: tuple[str, ...], memory: str) -> None:
    """Puts that run while the peer closes end with PeerLostError: it left, and nothing of ours was wrong."""
    async with Engine(options=EngineOptions(links=links)) as engine:
        source = await engine.allocate(16 * MIB)
        async with child_process(children.serve, links=list(links), memory=memory, nbytes=16 * MIB) as target:
            peer = await engine.connect((await target.hear())["address"])
            inbox = peer.region("inbox")
            puts = [engine.put(source, inbox) for _ in range(400)]
        outcomes = await asyncio.gather(*(put.wait() for put in puts), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {type(None), PeerLostError}
