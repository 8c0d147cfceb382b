"""What is asyncio's own: its timeouts, its count of cancellations, futures and loops of the caller's."""

from __future__ import annotations

import asyncio
import select

import pytest

from hixl_aio import Engine, InvalidArgumentError, OperationState

from .support import Pair

pytestmark = pytest.mark.asyncio_only

LARGE = 32 << 20


async def test_timeouts_of_asyncio_join_too(pair: Pair) -> None:
    """asyncio.timeout around an await: TimeoutError, `cancelling()` back at zero, memory free."""
    _, remote = await pair.target(LARGE)
    source = await pair.source(LARGE, 1)
    task = asyncio.current_task()
    assert task is not None
    operations = [pair.near.put(source, remote) for _ in range(8)]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await operations[-1]
    assert task.cancelling() == 0
    assert operations[-1].state is OperationState.SETTLED
    await pair.near.flush()
    assert not source.busy


async def test_ready_must_belong_to_this_loop(pair: Pair) -> None:
    """A future of another loop is refused at the call, and the region is free."""
    _, remote = await pair.target(64)
    source = await pair.source(64)
    other = asyncio.new_event_loop()
    try:
        with pytest.raises(InvalidArgumentError, match="loop"):
            pair.near.put(source, remote, ready=other.create_future())
    finally:
        other.close()
    assert not source.busy
    assert pair.near.statistics().waiting == 0


async def test_tasks_and_gather_take_completions_as_they_are(pair: Pair) -> None:
    """`gather(*operations)`, `ensure_future(operation)`, `wait_for(operation)` and TaskGroup."""
    region, remote = await pair.target(LARGE)
    source = await pair.source(LARGE, 1)
    await asyncio.gather(*(pair.near.put(source, remote) for _ in range(4)))
    await asyncio.ensure_future(pair.near.put(source, remote))
    await asyncio.wait_for(pair.near.put(source, remote), 10)
    async with asyncio.TaskGroup() as group:
        group.create_task(pair.near.put(source, remote).wait())
    assert region.view()[-1] == 1
    assert not source.busy


async def test_a_connect_does_not_suffer_from_a_cancelled_one_before_it(one: Engine) -> None:
    """The connection that the cancelled call has left behind is not taken from the call that shares it."""
    async with Engine() as other:
        for _ in range(50):
            cancelled = asyncio.create_task(one.connect(other.address))
            await asyncio.sleep(0)
            cancelled.cancel()
            # Its answer is here, and nobody has seen it yet.
            select.select([one._runtime.native], [], [], 5)
            second = asyncio.create_task(one.connect(other.address))
            await asyncio.sleep(0)
            one._runtime.on_readable()
            peer = await second
            assert cancelled.cancelled()
            await one.signal(peer, "s")
            assert (await other.wait_signal("s")).name == "s"
            await peer.aclose()
