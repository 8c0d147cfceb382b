"""The other waits: a cancellation ends them at once, and leaves behind what the page says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from hixl_aio import (
    Access,
    ClosedError,
    Completion,
    Engine,
    OperationState,
    TransferQueueFullError,
    TransferStoppedError,
)
from hixl_aio.testing import FaultPlan, Hold
from tests.conformance.support import Pair, faulty

from .ways import WAYS, Way

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__),
]


async def end(way: type[Way], wait: Callable[[], Awaitable[object]], before: Callable[[], object]) -> None:
    """Wait in a task, do something and cancel it in one turn."""

    async def plainly() -> None:
        await wait()

    chosen = way()
    running = asyncio.create_task(chosen.run(plainly))
    await chosen.begun.wait()
    for _ in range(3):
        await asyncio.sleep(0)
    before()
    chosen.cancel()
    await running


async def stuck(plan: FaultPlan, pair: Pair) -> tuple[Hold, Completion]:
    """A put that is held."""
    held = plan.hold(can_stop=False)
    _, remote = await pair.target(8)
    op = pair.near.put(await pair.source(8), remote)
    await held.wait_caught()
    return held, op


def nothing() -> None:
    """Before the cancellation nothing happens."""


async def test_observing(way: type[Way]) -> None:
    """`wait(join=False)` and `settled()` leave the operation alone."""
    plan = FaultPlan()
    async with faulty("shm", near=plan) as pair:
        held, op = await stuck(plan, pair)
        await end(way, lambda: op.wait(join=False), nothing)
        await end(way, op.settled, nothing)
        assert op.state is OperationState.POSTED
        held.release()
        await op


async def test_one_of_two(way: type[Way]) -> None:
    """Cancelling one of two who await leaves the operation to the other."""
    plan = FaultPlan()
    async with faulty("shm", near=plan) as pair:
        held, op = await stuck(plan, pair)
        other = asyncio.create_task(op.wait())
        await asyncio.sleep(0)
        ending = asyncio.create_task(end(way, op.wait, nothing))
        for _ in range(10):
            await asyncio.sleep(0)
        held.release()
        await ending
        await other


async def test_wait_signal(way: type[Way]) -> None:
    """A signal that arrives in the very turn of the cancellation is taken, or lies at the front."""
    async with faulty("shm") as pair:
        taken: list[int] = []

        async def take() -> None:
            taken.append((await pair.near.wait_signal("s")).sequence)

        for name in ("s", "s", "t"):
            pair.far.signal(pair.back, name)
        await pair.near.wait_signal("t")  # so both are here
        assert pair.near.statistics().unread_signals == 2
        await take()
        await take()

        await end(way, take, lambda: pair.far.signal(pair.back, "s"))
        pair.far.signal(pair.back, "s")
        while len(taken) < 4:
            await take()
        assert taken == sorted(taken)
        assert len(set(taken)) == 4
        assert pair.near.statistics().unread_signals == 0


async def test_the_stream_of_signals(way: type[Way]) -> None:
    """The same for the iteration."""
    async with faulty("shm") as pair:
        taken: list[int] = []

        async def take() -> None:
            taken.append((await anext(pair.near.signals())).sequence)

        await end(way, take, lambda: pair.far.signal(pair.back, "s"))
        pair.far.signal(pair.back, "u")
        while len(taken) < 2:
            await take()
        assert taken == [1, 2]


async def test_flush_and_wait_capacity(way: type[Way]) -> None:
    """They stop nothing, and another one may wait at once."""
    plan = FaultPlan()
    async with faulty("shm", near=plan, credits_per_peer=1, line_capacity=1) as pair:
        held, op = await stuck(plan, pair)
        remote = pair.peer.region("target")
        waiting = pair.near.put(await pair.source(8), remote)
        with pytest.raises(TransferQueueFullError):
            pair.near.put(await pair.source(8), remote)
        await end(way, lambda: pair.near.flush(pair.peer), nothing)
        await end(way, lambda: pair.near.wait_capacity(pair.peer), nothing)
        assert (op.state, waiting.state) == (OperationState.POSTED, OperationState.WAITING)
        held.release()
        await asyncio.gather(op, waiting, pair.near.flush(), pair.near.wait_capacity(pair.peer))


async def test_connect(way: type[Way]) -> None:
    """No half-made connection stays, on neither side; and a later connect works."""
    async with Engine() as far, Engine() as near:
        with socket.create_server(("127.0.0.1", 0)) as silent:  # it never answers the handshake
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            await end(way, lambda: near.connect(address, timeout=30.0), nothing)
        await end(way, lambda: near.accept(), nothing)
        assert not near.peers
        peer = await near.connect(far.address)
        await far.accept()
        await near.signal(peer, "s")
        await far.wait_signal("s")


async def test_accept(way: type[Way]) -> None:
    """A peer that comes in the turn of the cancellation goes to the next who asks."""
    async with Engine() as far, Engine() as near:
        accepted: list[str] = []

        async def accept() -> None:
            accepted.append((await far.accept()).incarnation)

        connecting: list[asyncio.Task[object]] = []
        await end(way, accept, lambda: connecting.append(asyncio.create_task(near.connect(far.address))))
        await connecting[0]
        if not accepted:
            await accept()
        assert accepted == [near.incarnation]


async def test_allocate_and_register(way: type[Way]) -> None:
    """What was made for nobody is given back."""
    async with Engine() as engine:
        kept: list[object] = []

        async def make() -> None:
            kept.append(await engine.allocate(64 << 20, label="big", access=Access.READ_WRITE))

        chosen = way()
        running = asyncio.create_task(chosen.run(make))
        await chosen.begun.wait()
        chosen.cancel()
        try:
            await running
        except AssertionError:
            assert kept  # it was over before this way took effect
        again = await engine.allocate(4096, label="small")
        await again.aclose()
        # Requests are answered in their order: what was made for nobody has been given back before that.
        assert engine.statistics().native["regions"] == engine.statistics().regions == len(kept)


async def test_closing_goes_on(way: type[Way]) -> None:
    """A region, a peer and an engine are closed all the same, and then the cancellation comes."""
    plan = FaultPlan()
    async with faulty("shm", near=plan, drain_timeout=10.0, cancel_grace=0.2) as pair:
        held, op = await stuck(plan, pair)
        region = await pair.near.register(bytearray(8))
        remote = pair.peer.region("target")
        second = plan.hold()
        busy = pair.near.put(region, remote)
        await second.wait_caught()
        closing = asyncio.create_task(end(way, region.aclose, nothing))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closing.done()
        second.release()
        await closing
        assert region.closed
        await busy
        held.release()
        await op
        stopped = plan.hold()
        last = pair.near.put(await pair.source(8), remote)
        await stopped.wait_caught()
        await end(way, lambda: pair.near.aclose(drain_timeout=None), nothing)
        assert pair.near.closed
        assert isinstance(last.exception(), ClosedError | TransferStoppedError)
        assert last.state is OperationState.SETTLED
