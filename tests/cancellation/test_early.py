"""Cancelled before the first await: the peer hears of it in one round trip, and memory is free at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import pytest

from hixl_aio import Completion, OperationState
from hixl_aio.testing import FaultPlan
from tests.conformance.support import Pair, faulty

pytestmark = pytest.mark.asyncio

SIZE = 4096
Starts = Callable[[], Completion]


async def task_is_cancelled(start: Starts) -> Completion:
    """The task has a cancellation to deliver before it calls."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    op = start()
    with pytest.raises(asyncio.CancelledError):
        await op
    task.uncancel()
    return op


async def between_call_and_await(start: Starts) -> Completion:
    """It comes after the call and before the first poll."""
    task = asyncio.current_task()
    assert task is not None
    op = start()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await op
    task.uncancel()
    return op


async def no_time_at_all(start: Starts) -> Completion:
    """`asyncio.timeout(0)`."""
    op: Completion | None = None
    try:
        async with asyncio.timeout(0):
            op = start()
            await op
    except TimeoutError:
        assert op is not None
        return op
    raise AssertionError("asyncio.timeout did not raise")


async def scope_is_cancelled(start: Starts) -> Completion:
    """An anyio scope that was cancelled before it was entered."""
    op: Completion | None = None
    with anyio.CancelScope() as scope:
        scope.cancel()
        op = start()
        await op
    assert scope.cancelled_caught
    assert op is not None
    return op


WAYS: Final = (task_is_cancelled, between_call_and_await, no_time_at_all, scope_is_cancelled)


async def posted(pair: Pair, plan: FaultPlan) -> Starts:
    """It gets as far as the transport, which holds it."""
    plan.hold()
    source, remote = await pair.source(SIZE), (await pair.target(SIZE))[1]
    return lambda: pair.near.put(source, remote, signal="s", payload=b"1")


async def in_line(pair: Pair, plan: FaultPlan) -> Starts:
    """Another one has the only credit."""
    held = plan.hold()
    source, remote = await pair.source(SIZE), (await pair.target(SIZE))[1]
    pair.near.put(await pair.source(SIZE), remote)
    await held.wait_caught()
    return lambda: pair.near.put(source, remote, signal="s", payload=b"1")


async def not_ready(pair: Pair, plan: FaultPlan) -> Starts:
    """What it is ready on does not come."""
    source, remote = await pair.source(SIZE), (await pair.target(SIZE))[1]
    never = asyncio.get_running_loop().create_future()
    return lambda: pair.near.put(source, remote, signal="s", payload=b"1", ready=never)


async def after_another(pair: Pair, plan: FaultPlan) -> Starts:
    """A signal of its own, which waits for an operation."""
    held = plan.hold()
    remote = (await pair.target(SIZE))[1]
    first = pair.near.put(await pair.source(SIZE), remote)
    await held.wait_caught()
    return lambda: pair.near.signal(pair.peer, "s", b"1", after=first)


STATES: Final = (posted, in_line, not_ready, after_another)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
async def test_the_peer_hears_of_it_and_the_memory_is_free(
    state: Callable[[Pair, FaultPlan], Awaitable[Starts]], way: Callable[[Starts], Awaitable[Completion]]
) -> None:
    """The negative signal is there within a round trip, and the await ends with the memory let go of."""
    plan = FaultPlan()
    async with faulty("shm", near=plan, credits_per_peer=1, cancel_grace=30, drain_timeout=30) as pair:
        start = await state(pair, plan)
        busy = pair.near.statistics().busy_regions
        async with asyncio.timeout(5):  # far from the grace
            op = await way(start)
            assert op.state is OperationState.SETTLED
            assert pair.near.statistics().busy_regions == busy
            signal = await pair.far.wait_signal("s")
        assert (signal.payload, signal.error is not None) == (b"1", True)
        assert pair.far.statistics().unread_signals == 0
        plan.release_all()
        await pair.near.flush()


async def test_a_task_that_never_began_leaves_its_operation_to_itself() -> None:
    """Cancelled before its first step it has awaited nothing: the bytes and the signal still arrive."""
    plan = FaultPlan()
    async with faulty("shm", near=plan) as pair:
        held = plan.hold()
        target, remote = await pair.target(SIZE)
        op = pair.near.put(await pair.source(SIZE, 7), remote, signal="s")
        waiting = asyncio.Task(op.wait())  # create_task would begin it where tasks are eager
        waiting.cancel()
        await asyncio.wait([waiting])
        await held.wait_caught()
        assert op.state is OperationState.POSTED
        held.release()
        assert (await pair.far.wait_signal("s")).error is None
        assert bytes(target.view()) == bytes([7]) * SIZE
