"""What a Completion promises to those who await it, watch it, stop it or drop it."""

from __future__ import annotations

import contextvars
import gc
import sys
import weakref
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hixl_aio import (
    ClosedError,
    Completion,
    OperationKind,
    OperationState,
    PeerLostError,
    Put,
    StaleRegionError,
    TransferFailedError,
    TransferStoppedError,
    TransferTimeoutError,
)
from hixl_aio.testing import FaultPlan

from ..loops import CANCELLED, Promise, Tasks, on_trio, outcomes, reports, turns
from .support import Pair, faulty

LARGE = 32 << 20


async def test_a_small_put_is_done_within_its_call(pair: Pair) -> None:
    """Where the link can, small puts are copied at once, and awaiting them does not suspend."""
    region, remote = await pair.target(128)
    source = await pair.source(128, 7)
    operation = pair.near.put(source, remote)
    assert operation.done() == (pair.link in ("inproc", "shm"))
    await operation
    assert operation.kind is OperationKind.PUT
    assert (operation.peer, operation.nbytes, operation.state) == (pair.peer, 128, OperationState.SETTLED)
    assert operation.exception() is None
    assert 0 < operation.elapsed < 10
    assert bytes(region.view()) == b"\x07" * 128


@pytest.mark.asyncio_only
async def test_awaiting_what_is_done_yields_once_in_a_while(pair: Pair, tasks: Tasks) -> None:
    """Thirty-two awaits in a row do not suspend; then one does, so that others are not starved."""
    _, remote = await pair.target(8)
    source = await pair.source(8)
    operation = pair.near.put(source, remote)
    await operation
    await turns()
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await turns()

    task = tasks.start(other())
    for _ in range(330):
        await operation
    assert 9 <= others <= 12
    task.cancel()


@pytest.mark.asyncio_only
@pytest.mark.parametrize("link", ["inproc", "shm"])  # the others copy nothing within a call
@pytest.mark.parametrize("parts", [0, 4])
async def test_copying_within_calls_yields_after_so_many_bytes(link: str, parts: int, tasks: Tasks) -> None:
    """Each two MiB that were copied within calls give others a turn, also where the awaits are few."""
    nbytes = 128 << 10
    async with faulty(link) as pair:
        _, remote = await pair.target(nbytes)
        source = await pair.source(nbytes)
        others = 0

        async def other() -> None:
            nonlocal others
            while True:
                others += 1
                await turns()

        task = tasks.start(other())
        await turns()
        before = others
        count = 256 // (parts or 1)
        for _ in range(count):
            if parts:
                await pair.near.batch([Put(source, remote)] * parts)
            else:
                await pair.near.put(source, remote)
        assert pair.near.statistics().inlined == count
        assert 15 <= others - before <= 18
        task.cancel()


async def test_what_is_done_within_its_call_is_like_any_other(pair: Pair) -> None:
    """It can be referred to weakly, watched, read and marked, and it goes away with its last reference."""
    _, remote = await pair.target(64)
    source = await pair.source(64)
    for is_get in (False, True):
        operation = pair.near.get(remote, source) if is_get else pair.near.put(source, remote, signal="s")
        await operation.settled()
        assert operation.user_data is None
        operation.user_data = {"mine": operation}  # a cycle, for the collector
        told: list[Completion] = []
        operation.add_done_callback(told.append)
        await turns(2)
        assert told.pop() is operation
        assert not operation.cancel()
        assert "of 64 bytes" in repr(operation)
        with pytest.raises(AttributeError):
            operation.nbytes = 65  # type: ignore[misc]
        weak = weakref.ref(operation)
        del operation
        gc.collect()
        assert weak() is None


async def test_calls_leave_no_references_behind(pair: Pair) -> None:
    """What a thousand puts and gets were made of has as many references as before."""
    _, remote = await pair.target(64)
    source = await pair.source(64)
    mine, theirs = source[:], remote[:]
    held = (pair.near._runtime, pair.near._runtime.pace, pair.peer, mine, theirs, remote, OperationKind.PUT)

    async def move(times: int) -> None:
        for _ in range(times):
            await pair.near.put(mine, theirs)
            await pair.near.get(theirs, mine)

    await move(10)
    gc.collect()
    before = [sys.getrefcount(item) for item in held]
    await move(1000)
    gc.collect()
    for item, count in zip(held, before, strict=True):
        assert abs(sys.getrefcount(item) - count) < 100, item


async def test_any_number_of_tasks_may_await(pair: Pair) -> None:
    """Everybody who awaits gets the result, before and after it is there."""
    _, remote = await pair.target(LARGE)
    source = await pair.source(LARGE)
    operation = pair.near.put(source, remote)
    async with Tasks() as group:
        for join in (True, False, True, False):
            group.start(operation.wait(join=join))
    await operation
    await operation.wait()
    await operation.settled()


async def test_a_failure_can_be_read_by_all_and_again(link: str, tasks: Tasks) -> None:
    """One record, read once; who waits, watches, is cancelled meanwhile or asks later takes nothing away."""
    plan = FaultPlan()
    async with faulty(link, near=plan) as pair:
        target, remote = await pair.target(8)
        source = await pair.source(8)
        before = pair.near.statistics().native["completed"]
        held = plan.hold()
        op = pair.near.put(source, remote)
        await held.wait_caught()
        joined = [tasks.start(op.wait(join=join)) for join in (True, False, True)]
        gone = tasks.start(op.wait())
        await turns()
        gone.cancel()
        for _ in range(10):
            assert (pair.near.statistics().posted, op.done(), op.exception()) == (1, False, None)
            await turns()
        await target.aclose()
        held.release()
        results = [await task.outcome() for task in joined]
        assert await gone.cancelled()
        for _ in range(2):
            with pytest.raises(StaleRegionError) as again:
                await op
            assert again.value is op.exception()
        assert all(result is op.exception() for result in results)
        counts = pair.near.statistics()
        assert (counts.in_flight, counts.native["completed"] - before) == (0, 1)


async def test_cancelling_one_awaiting_task_does_not_touch_the_others(pair: Pair, tasks: Tasks) -> None:
    """The operation goes on for as long as one task joins it."""
    region, remote = await pair.target(LARGE)
    source = await pair.source(LARGE, 1)
    operation = pair.near.put(source, remote)
    first, second = tasks.start(operation.wait()), tasks.start(operation.wait())
    await turns()
    first.cancel()
    assert await first.cancelled()
    assert operation.state is OperationState.SETTLED
    await second.result()
    assert region.view()[-1] == 1


async def test_cancelling_the_last_awaiting_task_stops_and_joins(pair: Pair, tasks: Tasks) -> None:
    """When the cancelled task goes on, the transport has let go: never a busy region, and one outcome."""
    _, remote = await pair.target(LARGE)
    source = await pair.source(LARGE, 1)
    for round_ in range(20):
        operation = pair.near.put(source, remote, signal="s")
        task = tasks.start(operation.wait())
        for _ in range(round_ % 4):
            await anyio.lowlevel.checkpoint()
        asked = task.cancel()
        result = await task.outcome()
        # trio gives a result that comes with the cancellation to the task, asyncio gives it the cancellation.
        assert isinstance(result, CANCELLED) == asked or (on_trio() and result is None)
        await operation.settled()
        assert operation.done()
        assert not source.busy
        signal = await pair.far.wait_signal("s")
        stopped = operation.exception()
        assert (signal.error is None) == (stopped is None)
        assert stopped is None or isinstance(stopped, TransferStoppedError)


async def test_deadlines_of_a_scope_join_too(pair: Pair) -> None:
    """A scope whose time is over around an await: TimeoutError, memory free."""
    _, remote = await pair.target(LARGE)
    source = await pair.source(LARGE, 1)
    operations = [pair.near.put(source, remote) for _ in range(8)]
    with pytest.raises(TimeoutError), anyio.fail_after(0):
        await operations[-1]
    assert operations[-1].state is OperationState.SETTLED
    await pair.near.flush()
    assert not source.busy


async def test_observing_neither_stops_nor_joins(pair: Pair, tasks: Tasks) -> None:
    """Cancelling `wait(join=False)` leaves the operation alone."""
    region, remote = await pair.target(LARGE)
    source = await pair.source(LARGE, 4)
    operation = pair.near.put(source, remote)
    task = tasks.start(operation.wait(join=False))
    await turns()
    task.cancel()
    assert await task.cancelled()
    await operation
    assert region.view()[-1] == 4


async def test_an_operation_with_callbacks_is_not_stopped_by_a_cancelled_wait(
    pair: Pair, tasks: Tasks
) -> None:
    """A callback is an interest of its own."""
    region, remote = await pair.target(LARGE)
    source = await pair.source(LARGE, 6)
    called: list[Completion] = []
    gate = anyio.Event()
    operation = pair.near.put(source, remote)
    operation.add_done_callback(called.append)
    operation.add_done_callback(lambda _: gate.set())
    task = tasks.start(operation.wait())
    await turns()
    task.cancel()
    assert await task.cancelled()
    await gate.wait()
    assert called == [operation]
    assert operation.exception() is None
    assert region.view()[-1] == 6


async def test_callbacks_run_once_in_their_context(pair: Pair) -> None:
    """On the loop, in a later turn, in the context they were added in or the one they were given."""
    _, remote = await pair.target(8)
    source = await pair.source(8)
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    seen: list[tuple[str, Any]] = []
    variable.set("outer")
    context = contextvars.copy_context()
    context.run(variable.set, "given")
    operation = pair.near.put(source, remote)
    operation.add_done_callback(lambda done: seen.append((variable.get(), done)))
    operation.add_done_callback(lambda done: seen.append((variable.get(), done)), context=context)
    assert seen == []
    variable.set("later")
    await operation
    operation.add_done_callback(lambda done: seen.append((variable.get(), done)))
    await turns(4)
    assert sorted(seen, key=lambda item: item[0]) == [
        ("given", operation),
        ("later", operation),
        ("outer", operation),
    ]


async def test_a_stop_asked_for_is_told_as_such(pair: Pair) -> None:
    """`cancel()` on a posted operation: TransferStoppedError, or success after all; never anything else."""
    _, remote = await pair.target(LARGE)
    source = await pair.source(LARGE)
    operations = [pair.near.put(source, remote) for _ in range(6)]
    asked = [operation.cancel() for operation in operations]
    results = await outcomes(*operations)
    assert any(asked)
    assert any(isinstance(result, TransferStoppedError) for result in results)
    assert all(result is None or isinstance(result, TransferStoppedError) for result in results)
    assert not source.busy


async def test_an_operation_past_its_deadline_says_so(pair: Pair) -> None:
    """Many large puts with a tiny deadline: each ends with success or TransferTimeoutError, and settles."""
    _, remote = await pair.target(LARGE)
    source = await pair.source(LARGE)
    operations = [pair.near.put(source, remote, timeout=0.001) for _ in range(20)]
    results = await outcomes(*operations)
    late = [result for result in results if result is not None]
    assert late
    for error in late:
        assert isinstance(error, TransferTimeoutError)
        assert isinstance(error, TimeoutError)
        assert (error.op, error.nbytes, error.timeout) == ("put", LARGE, 0.001)
    for operation in operations:
        await operation.settled()
    assert not source.busy
    assert pair.near.statistics().in_flight == 0


async def test_a_dropped_completion_still_transfers_and_keeps_its_memory(pair: Pair) -> None:
    """Nobody holds the Completion, the region or the buffer: the bytes arrive all the same."""
    region, remote = await pair.target(LARGE)
    source = await pair.source(LARGE, 8)
    reference = weakref.ref(source)
    pair.near.put(source, remote, signal="landed")
    del source
    gc.collect()
    assert reference() is None
    await pair.far.wait_signal("landed")
    assert region.view()[0] == region.view()[-1] == 8


async def test_a_failure_that_nobody_looked_at_is_reported_once(pair: Pair) -> None:
    """Through the loop's exception handler or the log, when it goes; not if somebody looked."""
    _, remote = await pair.target(8)
    source = await pair.source(8)

    async def fails() -> None:
        raise KeyError

    with reports() as told:
        for look in (False, True):
            operation = pair.near.put(source, remote, ready=fails())
            await turns(2)
            assert operation.done()
            if look:
                assert operation.exception() is not None
            del operation
            gc.collect()
    assert len(told) == 1
    assert "nobody looked" in told[0][0]
    assert isinstance(told[0][1], TransferFailedError)


@pytest.mark.parametrize("heard", ["nowhere", "waiting", "waiting too late", "flushing"])
async def test_the_loss_of_a_peer_is_one_piece_of_news(pair: Pair, heard: str) -> None:
    """What it ended, and nobody looked at, is reported only if nobody heard of the loss elsewhere."""
    _, remote = await pair.target(8)
    source = await pair.source(8)
    with reports() as told:
        async with Tasks() as tasks:
            operation = pair.near.put(source, remote, ready=Promise().awaitable)
            waiting = None
            if heard == "waiting":
                waiting = tasks.start(pair.near.wait_signal("never", peer=pair.peer))
                await turns(3)
            await pair.back.abort()
            with anyio.fail_after(5):
                while not operation.done():
                    await turns()
            if waiting is not None:
                assert isinstance(await waiting.outcome(), PeerLostError)
            if heard == "waiting too late":
                with pytest.raises(PeerLostError):
                    await pair.near.wait_signal("never", peer=pair.peer)
            if heard == "flushing":
                with pytest.raises(PeerLostError):
                    await pair.near.flush(pair.peer)
        del operation
        await turns(3)  # what still holds it lets go
        gc.collect()
    assert [type(error) for _, error in told] == ([PeerLostError] if heard == "nowhere" else [])


async def test_user_data_is_the_users(pair: Pair) -> None:
    """A place for whatever the application wants to find again."""
    _, remote = await pair.target(8)
    operation = pair.near.put(await pair.source(8), remote)
    assert operation.user_data is None
    operation.user_data = {"request": 7}
    await operation
    assert operation.user_data == {"request": 7}
    assert "put" in repr(operation)


async def test_what_is_in_flight_is_joined_also_while_the_engine_drains(link: str, tasks: Tasks) -> None:
    """Whoever begins to await, settle, watch or stop it then gets its own end, never a busy region."""
    plan = FaultPlan()
    async with faulty(link, near=plan) as pair:
        _, remote = await pair.target(8)
        source = await pair.source(8)
        held = plan.hold(count=3)
        ops = [pair.near.put(source, remote, timeout=None) for _ in range(3)]
        await held.wait_caught(3)
        closing = tasks.start(pair.near.aclose(drain_timeout=30))
        await turns(3)
        assert not closing.done()
        called: list[Completion] = []
        ops[2].add_done_callback(called.append)
        joined, settled = tasks.start(ops[0].wait()), tasks.start(ops[0].settled())
        watching = tasks.start(ops[1].wait(join=False))
        assert ops[1].cancel()
        assert isinstance(await watching.outcome(), TransferStoppedError | ClosedError)
        assert not joined.done()
        held.release()
        await joined.result()
        await settled.result()
        await ops[2]
        assert not source.busy
        await closing.result()
        assert called == [ops[2]]
