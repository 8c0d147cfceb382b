"""A peer that is stopped (SIGSTOP) is suspect: alive, connected, and at once itself again when it goes on."""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from hixl_aio import (
    AbandonedTransferWarning,
    ClosedError,
    Completion,
    ConnectTimeoutError,
    Engine,
    EngineOptions,
    MemoryRegion,
    Peer,
    PeerError,
    PeerLostError,
    PeerState,
    RegionBusyError,
    TransferTimeoutError,
)
from hixl_aio.testing import ChildProcess, child_process

from . import children

pytestmark = pytest.mark.asyncio

MIB = 1 << 20
NBYTES = 4 * MIB
DIRECT = [pytest.param("shm", "allocate", id="shm"), pytest.param("cma", "register", id="cma")]
EVERY = [*DIRECT, pytest.param("cooperative", "register", id="cooperative")]


@dataclass(slots=True)
class Scene:
    """An engine, a target that will be stopped, and one that will not."""

    engine: Engine
    target: ChildProcess
    peer: Peer
    other: Peer
    source: MemoryRegion
    back: MemoryRegion


@asynccontextmanager
async def opened(link: str, memory: str, patience: float = 5.0) -> AsyncIterator[Scene]:
    async with (
        child_process(children.serve, links=[link], memory=memory, nbytes=NBYTES) as target,
        child_process(children.serve, links=[link], memory=memory, nbytes=NBYTES) as stable,
        Engine(options=EngineOptions(links=(link,), cancel_grace=patience, drain_timeout=patience)) as engine,
    ):
        peer = await engine.connect((await target.hear())["address"])
        other = await engine.connect((await stable.hear())["address"])
        source = await engine.register(bytearray(os.urandom(NBYTES)))
        back = await engine.register(bytearray(NBYTES))
        yield Scene(engine, target, peer, other, source, back)
        target.kill()  # it may be stopped


def look(peer: Peer) -> PeerState:
    """Its state at this moment; mypy takes two looks at an attribute for one."""
    return peer.state


@pytest.mark.parametrize(("link", "memory"), EVERY)
async def test_a_stopped_peer_is_suspect_and_nobody_else(link: str, memory: str) -> None:
    """Its state says so while it is stopped, over and over; it is never lost, and stays in `peers`."""
    async with opened(link, memory) as s:
        for _ in range(3):
            s.target.stop()
            assert look(s.peer) is PeerState.SUSPECT
            assert look(s.other) is PeerState.CONNECTED
            await s.engine.put(s.source, s.other.region("inbox"))
            assert s.peer.address in s.engine.peers
            s.target.go_on()
            assert look(s.peer) is PeerState.CONNECTED
        await s.engine.put(s.source, s.peer.region("inbox"))


@pytest.mark.parametrize(("link", "memory"), DIRECT)
async def test_a_stopped_target_still_receives_bytes(link: str, memory: str) -> None:
    """Over shm and cma we copy ourselves: put and get are exact, and its signals wait for it."""
    async with opened(link, memory) as s:
        inbox = s.peer.region("inbox")
        s.target.stop()
        assert look(s.peer) is PeerState.SUSPECT
        async with asyncio.timeout(5):
            await s.engine.put(s.source, inbox, signal="landed", payload=b"asleep")
            await s.engine.get(inbox, s.back)
        assert s.back.view() == s.source.view()
        assert look(s.peer) is PeerState.SUSPECT
        s.target.go_on()
        await s.target.say({"do": "signal", "name": "landed"})
        heard = await s.target.hear()
        assert (heard["payload"], heard["error"]) == ("asleep", False)


async def test_a_stopped_target_over_the_cooperative_link_keeps_its_puts_waiting() -> None:
    """They end at their deadline; those without one complete when it goes on, in full."""
    async with opened("cooperative", "register") as s:
        inbox = s.peer.region("inbox")
        s.target.stop()
        assert look(s.peer) is PeerState.SUSPECT
        patient = s.engine.put(s.source, inbox, timeout=None, signal="landed")
        started = time.monotonic()
        with pytest.raises(TransferTimeoutError):
            await s.engine.put(s.source, inbox, timeout=0.2)
        assert 0.2 <= time.monotonic() - started < 1.0
        assert not patient.done()
        s.target.go_on()
        async with asyncio.timeout(5):
            await patient
            await s.engine.get(inbox, s.back)
        assert s.back.view() == s.source.view()
        await s.engine.flush()
        assert not s.source.busy


@pytest.mark.parametrize(("link", "memory"), EVERY)
async def test_a_stopped_peer_that_is_killed_is_lost(link: str, memory: str) -> None:
    """Suspect first, then dead: what is under way ends within a second, and the state is LOST."""
    async with opened(link, memory) as s:
        inbox = s.peer.region("inbox")
        s.target.stop()
        assert look(s.peer) is PeerState.SUSPECT
        puts = [s.engine.put(s.source, inbox, timeout=None) for _ in range(50)]
        waiter = asyncio.ensure_future(s.engine.wait_signal("never", peer=s.peer))
        s.target.kill()
        async with asyncio.timeout(1):
            with pytest.raises(PeerLostError):
                await waiter
            await asyncio.gather(*(put.wait() for put in puts), return_exceptions=True)
        assert look(s.peer) is PeerState.LOST
        assert not s.source.busy
        await s.engine.put(s.source, s.other.region("inbox"))


async def test_memory_of_cancelled_gets_comes_back_with_the_death_of_who_may_write_it() -> None:
    """The peer copies, is stopped, and cannot say that it has let go: what it was given stays busy, however
    long. Once it is dead all is free, and what the next owner writes there stays."""
    async with opened("cooperative", "register", patience=0.05) as s:
        s.target.stop()
        assert look(s.peer) is PeerState.SUSPECT
        pool: list[MemoryRegion] = []
        gets: list[Completion] = []
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            # A get that is cancelled before its first chunk is with the peer is simply stopped.
            while not any(memory.busy for memory in pool):
                pool += [await s.engine.register(bytearray(NBYTES)) for _ in range(4)]
                gets += [s.engine.get(s.peer.region("inbox"), memory, timeout=None) for memory in pool[-4:]]
                tasks = [asyncio.create_task(get.wait()) for get in gets[-4:]]
                await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        assert {warning.category for warning in told} == {AbandonedTransferWarning}
        told.clear()  # a warning of that kind knows its Completion
        views = [memory.view() for memory in pool]
        busy = [memory for memory in pool if memory.busy]
        counts = s.engine.statistics()
        assert (counts.abandoned, counts.abandoned_nbytes) == (len(busy), len(busy) * NBYTES)
        with pytest.raises(RegionBusyError):  # those that were not given to it have been let go of
            await busy[0].aclose()
        s.target.kill()
        async with asyncio.timeout(1):
            for get in gets:
                await get.settled()
        assert s.engine.statistics().abandoned == s.engine.statistics().busy_regions == 0
        for view in views:
            view[:] = b"\xa5" * NBYTES
        for memory in pool:
            await memory.aclose()
        assert all(view == b"\xa5" * NBYTES for view in views)


async def test_leaving_a_stopped_peer_takes_its_patience_and_no_longer() -> None:
    """Its connection is torn down, or the engine closed, although it never answers; who waits is told."""
    async with opened("cooperative", "register", patience=0.2) as s:
        s.target.stop()
        assert look(s.peer) is PeerState.SUSPECT
        put = s.engine.put(s.source, s.peer.region("inbox"), timeout=None)
        async with asyncio.timeout(3):
            await s.peer.abort()
        with pytest.raises((ClosedError, PeerError)):
            await put
        assert look(s.peer) is PeerState.CLOSED
    async with opened("cooperative", "register", patience=0.2) as s:
        s.target.stop()
        assert look(s.peer) is PeerState.SUSPECT
        put = s.engine.put(s.source, s.peer.region("inbox"), timeout=None)
        with pytest.warns(AbandonedTransferWarning, match="1 operations unsettled"):
            await asyncio.wait_for(s.engine.aclose(drain_timeout=0.1), 5)
        assert isinstance(put.exception(), ClosedError)
        assert not s.source.busy


async def test_an_engine_that_is_stopped_does_not_answer_a_connect() -> None:
    """The error names the suspicion."""
    async with (
        child_process(children.serve, links=["shm"], memory="allocate", nbytes=4096) as target,
        Engine() as engine,
    ):
        address = (await target.hear())["address"]
        target.stop()
        with pytest.raises(ConnectTimeoutError, match="is the process stopped"):
            await engine.connect(address, timeout=0.2)
        target.go_on()
        assert (await engine.connect(address)).state is PeerState.CONNECTED


async def test_asking_for_the_state_is_cheap() -> None:
    """A thousand questions take far less than a second, whether the peer runs or not."""
    async with opened("shm", "allocate") as s:
        for state in (PeerState.CONNECTED, PeerState.SUSPECT):
            if state is PeerState.SUSPECT:
                s.target.stop()
            started = time.monotonic()
            assert {s.peer.state for _ in range(1000)} == {state}
            assert time.monotonic() - started < 0.5
