"""What the first use of a dead peer finds at its address."""

from __future__ import annotations

import asyncio

import pytest

from hixl_aio import (
    ClosedError,
    Completion,
    OperationState,
    PeerLostError,
    PeerRestartedError,
    StaleRegionError,
    TransferQueueFullError,
    TransferStoppedError,
    TransferTimeoutError,
)
from hixl_aio._status import Status

from .conftest import Scene, SceneMaker

pytestmark = pytest.mark.asyncio

NEW_LIFE = "ab" * 16


async def turn(count: int = 5) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


def put(s: Scene, timeout: float | None = None) -> Completion:
    return s.engine.put(s.source[:8], s.remote[:8], timeout=timeout)


async def lose(s: Scene, status: Status = Status.PEER_LOST) -> None:
    s.native.peer_down(1, status)
    await turn()


async def test_nobody_there_is_a_lost_peer_and_asked_again_each_time(scene: SceneMaker) -> None:
    """While its address is silent the peer is lost, not restarted."""
    async with scene() as s:
        await lose(s)
        assert s.native.looks == []
        for _ in range(2):
            with pytest.raises(PeerLostError):
                await put(s)
        assert s.native.looks == ["127.0.0.1:2"] * 2


async def test_a_successor_is_asked_for_once_and_named(scene: SceneMaker) -> None:
    """All calls of one moment share one look; later ones know; both lives are named; connecting cures it."""
    async with scene() as s:
        await lose(s)
        s.native.living = NEW_LIFE
        calls = [put(s).wait(), put(s).wait(), s.engine.flush(s.peer), s.engine.wait_capacity(s.peer)]
        calls += [s.peer.refresh(), s.engine.signal(s.peer, "s").wait()]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, PeerRestartedError)
            assert NEW_LIFE in str(outcome)
            assert s.peer.incarnation in str(outcome)
        assert isinstance(put(s).exception(), PeerRestartedError)
        with pytest.raises(PeerRestartedError):
            s.peer.region("remote")
        assert s.native.looks == ["127.0.0.1:2"]
        s.native.accepted(9, "127.0.0.1:2", NEW_LIFE)
        await turn()
        again = await s.engine.connect("127.0.0.1:2")
        with pytest.raises(StaleRegionError):
            put(s)
        fresh = s.engine.put(s.source[:8], again.region("remote")[:8])
        s.native.end()
        await fresh


async def test_the_same_life_at_the_address_is_no_restart(scene: SceneMaker) -> None:
    """Its connection broke and it lives on: lost."""
    async with scene() as s:
        s.native.living = s.peer.incarnation
        await lose(s)
        with pytest.raises(PeerLostError):
            await put(s)


async def test_a_peer_that_left_in_good_order_is_not_looked_for(scene: SceneMaker) -> None:
    """It said good-bye: the call fails within itself."""
    async with scene() as s:
        await lose(s, Status.PEER_CLOSED)
        assert isinstance(put(s).exception(), PeerLostError)
        assert s.native.looks == []


async def test_what_waits_for_a_look_can_be_stopped_timed_and_closed(scene: SceneMaker) -> None:
    """Its memory is pinned meanwhile; a stop, a deadline and the engine's end each end it at once, once."""
    async with scene(line_capacity=3) as s:
        await lose(s)
        s.native.silent = True
        stopped, late, closed = put(s), put(s, timeout=0.01), put(s)
        flush = asyncio.create_task(s.engine.flush(s.peer))
        with pytest.raises(TransferQueueFullError):
            put(s)
        assert {operation.state for operation in (stopped, late, closed)} == {OperationState.WAITING}
        assert s.source.busy
        assert stopped.cancel()
        with pytest.raises(TransferStoppedError):
            await stopped
        with pytest.raises(TransferTimeoutError):
            await late
        await s.engine.aclose()
        for ended in (closed, flush):
            with pytest.raises(ClosedError):
                await ended
        assert s.engine._runtime.requests._open
        s.engine._runtime.requests._open.clear()  # the stand-in was silent; native code answers each
