"""Result and custody of the memory: stops, deadlines, quarantine, with the records in the test's hand."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from hixl_aio import (
    AbandonedTransferWarning,
    BatchError,
    ClosedError,
    Completion,
    Get,
    OperationState,
    PartState,
    PeerLostError,
    PeerRestartedError,
    Put,
    RegionBusyError,
    StaleRegionError,
    Status,
    TransferError,
    TransferFailedError,
    TransferLostError,
    TransferStoppedError,
    TransferTimeoutError,
)

from .conftest import Scene, SceneMaker

pytestmark = pytest.mark.asyncio


async def turn(count: int = 5) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


def start(scene: Scene, **options: Any) -> Completion:
    """One posted put."""
    return scene.engine.put(scene.source[0:8], scene.remote[0:8], **options)


async def test_memory_is_busy_until_the_record(scene: SceneMaker) -> None:
    """From the call to the record, and not a turn longer (INV-2)."""
    async with scene() as s:
        operation = start(s)
        assert (operation.state, s.source.busy, operation.done()) == (OperationState.POSTED, True, False)
        assert s.engine.statistics().posted_nbytes == 8
        s.native.end()
        await operation
        assert (operation.state, s.source.busy, operation.done()) == (OperationState.SETTLED, False, True)
        assert s.engine.statistics().in_flight == 0


async def test_a_cancelled_join_lasts_until_the_transport_lets_go(scene: SceneMaker) -> None:
    """Stop requested once, further cancellations absorbed, the first one raised at the record."""
    async with scene() as s:
        operation = start(s)
        task = asyncio.create_task(operation.wait())
        await turn()
        for _ in range(3):
            task.cancel()
            await turn()
        assert not task.done()
        assert s.native.stopped == [s.native.posted[0].handle]
        s.native.end(status=Status.STOPPED)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not s.source.busy
        assert isinstance(operation.exception(), TransferStoppedError)


async def test_a_task_cancelled_in_line_goes_at_once_also_if_others_stay(scene: SceneMaker) -> None:
    """What the transport does not have need not be waited for; the others' operation goes on."""
    async with scene(credits_per_peer=1) as s:
        first, second = start(s), start(s)
        tasks = [asyncio.create_task(second.wait()) for _ in range(2)]
        await turn()
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert second.state is OperationState.WAITING
        s.native.end()
        await first
        s.native.end()
        await tasks[1]


async def test_cancellation_with_the_record_in_the_same_turn_has_one_outcome(scene: SceneMaker) -> None:
    """The bytes are there and the task is cancelled: both are true, nothing is lost."""
    async with scene() as s:
        operation = start(s)
        task = asyncio.create_task(operation.wait())
        await turn()
        s.native.end()
        s.engine._runtime.on_readable()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert operation.done()
        assert operation.exception() is None
        assert s.native.stopped == []


async def test_after_the_grace_the_transfer_is_abandoned_and_the_region_stays_busy(scene: SceneMaker) -> None:
    """The task goes on with a warning; counters say so; the record settles it in the end."""
    async with scene(cancel_grace=0.01, drain_timeout=0.01) as s:
        operation = start(s)
        task = asyncio.create_task(operation.wait())
        await turn()
        task.cancel()
        with pytest.warns(AbandonedTransferWarning), pytest.raises(asyncio.CancelledError):
            await task
        assert (operation.state, operation.done(), s.source.busy) == (OperationState.ABANDONED, False, True)
        assert s.engine.statistics().abandoned_nbytes == 8
        with pytest.raises(RegionBusyError):
            await s.source.aclose()
        s.native.end()
        await operation.settled()
        assert operation.exception() is None
        assert not s.source.busy
        await s.source.aclose()


async def test_the_warning_never_takes_the_place_of_the_cancellation(scene: SceneMaker) -> None:
    """Where warnings are errors, it goes to the loop's exception handler."""
    async with scene(cancel_grace=0.01) as s:
        reports: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        task = asyncio.create_task(start(s).wait())
        await turn()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert isinstance(reports[0]["exception"], AbandonedTransferWarning)
        s.native.end()


async def test_anyio_scopes_join_as_well(scene: SceneMaker) -> None:
    """A cancelled scope delivers again and again: the join holds against that too."""
    import anyio

    async with scene() as s:
        operation = start(s)
        ended: list[str] = []

        async def inside() -> None:
            try:
                await operation
            finally:
                ended.append(operation.state.name)

        async with anyio.create_task_group() as group:
            group.start_soon(inside)
            await turn()
            group.cancel_scope.cancel()
            asyncio.get_running_loop().call_later(0.02, s.native.end, None, Status.STOPPED)
        assert ended == ["SETTLED"]
        assert len(s.native.stopped) == 1
        with anyio.move_on_after(0.01) as scope:
            other = start(s)
            asyncio.get_running_loop().call_later(0.02, s.native.end)
            await other
        assert scope.cancelled_caught
        assert other.state is OperationState.SETTLED


async def test_the_deadline_gives_a_stop_a_moment_and_then_tells(scene: SceneMaker) -> None:
    """Stopped in time: settled when it raises. Not stopped: it raises all the same, the region busy."""
    async with scene() as s:
        quick = start(s, timeout=0.01)
        asyncio.get_running_loop().call_later(0.03, lambda: s.native.end(status=Status.STOPPED))
        with pytest.raises(TransferTimeoutError):
            await quick
        assert quick.state is OperationState.SETTLED
        slow = start(s, timeout=0.01)
        with pytest.raises(TransferTimeoutError) as late:
            await slow
        assert late.value.timeout == 0.01
        assert (slow.state, s.source.busy) == (OperationState.ABANDONED, True)
        assert 0.1 <= slow.elapsed < 2
        assert len(s.native.stopped) == 2
        s.native.end()
        await slow.settled()
        assert isinstance(slow.exception(), TransferTimeoutError)
        failed = start(s, timeout=0.01)
        told: list[Completion] = []
        failed.add_done_callback(told.append)
        with pytest.raises(TransferTimeoutError) as first:
            await failed
        s.native.end(status=Status.FAILED)
        await failed.settled()
        await turn()
        assert failed.exception() is first.value  # what came later is no second result
        assert told == [failed]


async def test_a_deadline_that_passed_while_the_loop_was_busy_does_not_count(scene: SceneMaker) -> None:
    """The record was there in time; only nobody had looked."""
    async with scene() as s:
        operation = start(s, timeout=0.01)
        s.native.end()
        limit = asyncio.get_running_loop().time() + 0.03
        while asyncio.get_running_loop().time() < limit:
            pass
        await operation
        assert s.native.stopped == []


async def test_what_completes_within_the_moment_is_a_success(scene: SceneMaker) -> None:
    """The record says what came of it."""
    async with scene() as s:
        operation = start(s, timeout=0.01)
        asyncio.get_running_loop().call_later(0.03, s.native.end)
        await operation


async def test_the_abort_policy_tears_the_peer_down(scene: SceneMaker) -> None:
    """After a deadline all operations of that peer end, and its memory is free."""
    async with scene(timeout_policy="abort") as s:
        late, other = start(s, timeout=0.01), start(s)
        with pytest.raises(TransferTimeoutError):
            await late
        with pytest.raises((PeerLostError, ClosedError)):
            await other
        await late.settled()
        assert not s.source.busy
        assert not s.engine.peers


@pytest.mark.parametrize(
    ("status", "error"), [(Status.FAILED, TransferFailedError), (Status.LOST, TransferLostError)]
)
async def test_a_failure_that_may_still_write_is_quarantined(
    scene: SceneMaker, status: Status, error: type[Exception]
) -> None:
    """The error comes at once; the memory stays pinned until the link is gone: never a clock (INV-2)."""
    async with scene(drain_timeout=0.01) as s:
        operation = start(s)
        s.native.end(status=status, quiescent=False)
        with pytest.raises(error):
            await operation
        assert (operation.state, s.source.busy) == (OperationState.QUARANTINED, True)
        assert s.engine.statistics().quarantined == 1
        assert s.peer.inflight == 0
        with pytest.raises(RegionBusyError):
            await s.source.aclose()
        s.native.peer_down(1)
        await operation.settled()
        assert not s.source.busy
        assert s.engine.statistics().quarantined == 0


async def test_a_peer_that_dies_ends_what_waits_for_it(scene: SceneMaker) -> None:
    """In line, in flight, waiting for room or for a flush: each hears of it, once."""
    async with scene(credits_per_peer=1, line_capacity=1) as s:
        posted, waiting = start(s), start(s)
        room = asyncio.create_task(s.engine.wait_capacity(s.peer))
        flush = asyncio.create_task(s.engine.flush())
        await turn()
        s.native.peer_down(1)
        s.native.end(status=Status.PEER_LOST)
        for waiter in (posted, waiting, room, flush):
            with pytest.raises(PeerLostError):
                await waiter
        with pytest.raises(PeerLostError):
            await start(s)
        with pytest.raises(PeerLostError):
            await s.engine.wait_capacity(s.peer)


async def test_the_loss_of_a_peer_is_reported_once_however_many_operations_it_ends(scene: SceneMaker) -> None:
    """In flight, in line and called afterwards; and not at all where somebody has looked at one of them."""
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    for look in (False, True):
        async with scene(credits_per_peer=2) as s:
            operations = [start(s) for _ in range(10)]
            s.native.peer_down(1)
            s.native.end(status=Status.PEER_LOST)
            s.native.end(status=Status.PEER_LOST)
            await turn()
            operations += [start(s) for _ in range(10)]
            await turn()
            assert all(operation.done() and operation.peer is s.peer for operation in operations)
            if look:
                assert operations[3].exception() is not None
            del operations
            gc.collect()
        assert len(reports) == 1


async def test_a_restarted_peer_is_told_first_and_stale_afterwards(scene: SceneMaker) -> None:
    """The first use after a restart says so; after a reconnect the old views are stale."""
    async with scene() as s:
        s.native.peer_down(1)
        s.native.accepted(9, "127.0.0.1:2", "ab" * 16)
        await turn()
        assert isinstance(start(s).exception(), PeerRestartedError)
        again = await s.engine.connect("127.0.0.1:2")
        assert again.incarnation == "ab" * 16
        with pytest.raises(StaleRegionError):
            start(s)


async def test_a_record_that_names_nothing_is_reported_and_harms_nobody(scene: SceneMaker) -> None:
    """A duplicate never matches a new operation (INV-9), and the records beside it are handled (INV-1)."""
    async with scene() as s:
        reports: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        first = start(s)
        token = s.native.posted[0].token
        s.native.end()
        await first
        second = start(s)
        s.native.repeat_record(token)
        s.native.end()
        await second
        assert len(reports) == 1


async def test_a_dropped_operation_is_kept_by_the_table(scene: SceneMaker) -> None:
    """Without anybody who holds the Completion, the region stays pinned until the record."""
    async with scene() as s:
        start(s)
        gc.collect()
        assert s.source.busy
        s.native.end()
        await turn()
        assert not s.source.busy


async def test_a_batch_names_the_parts_that_did_not_complete(scene: SceneMaker) -> None:
    """BatchError carries (index, error) of each, and `parts` the state of all."""
    async with scene() as s:
        batch = s.engine.batch([Put(s.source[0:8], s.remote[0:8])] * 4)
        states = bytes([PartState.DONE, PartState.FAILED, PartState.STALE, PartState.DONE])
        s.native.end(status=Status.FAILED, parts=states)
        with pytest.raises(BatchError) as failed:
            await batch
        assert [index for index, _ in failed.value.failures] == [1, 2]
        assert isinstance(failed.value.failures[1][1], StaleRegionError)
        assert [part.state for part in batch.parts] == [PartState(state) for state in states]
        assert [part.error is None for part in batch.parts] == [True, False, False, True]
        assert batch.parts[-1].index == 3
        with pytest.raises(IndexError):
            _ = batch.parts[4]


async def test_a_batch_names_the_region_of_each_part_that_failed(scene: SceneMaker) -> None:
    """Each failure speaks of its own part: direction, size, region; and `parts` gives the same errors."""
    async with scene() as s:
        batch = s.engine.batch([Put(s.source[0:8], s.remote[0:8]), Get(s.remote[0:16], s.source[0:16])])
        s.native.end(status=Status.FAILED, parts=bytes([PartState.STALE, PartState.FAILED]))
        with pytest.raises(BatchError) as failed:
            await batch
        (_, stale), (_, other) = failed.value.failures
        assert isinstance(stale, StaleRegionError)
        assert (stale.label, stale.generation) == (s.remote.label, s.remote.generation)
        assert isinstance(other, TransferFailedError)
        assert (other.op, other.nbytes) == ("get", 16)
        assert [part.error for part in batch.parts] == [stale, other]


@pytest.mark.parametrize("status", [Status.FAILED, Status.LOST])
async def test_a_batch_that_failed_without_a_failed_part_is_unknown_as_a_whole(
    scene: SceneMaker, status: Status
) -> None:
    """The transport cannot say which parts are there: none counts as done, and the error does not say "0"."""
    async with scene() as s:
        batch = s.engine.batch([Put(s.source[0:8], s.remote[0:8])] * 2)
        s.native.end(status=status, parts=bytes([PartState.DONE, PartState.DONE]))
        with pytest.raises(TransferError) as failed:
            await batch
        assert not isinstance(failed.value, BatchError)
        assert failed.value.status is status
        assert [part.state for part in batch.parts] == [PartState.FAILED] * 2
        assert [part.error for part in batch.parts] == [failed.value] * 2


@pytest.mark.parametrize("ended_by", ["its deadline", "the close of the engine"])
async def test_a_batch_that_was_cut_short_says_which_parts_are_there(
    scene: SceneMaker, ended_by: str
) -> None:
    """Its error speaks of the whole; what had arrived before the stop is done all the same."""
    async with scene() as s:
        batch = s.engine.batch(
            [Put(s.source[0:8], s.remote[0:8])] * 2, timeout=0.01 if ended_by == "its deadline" else None
        )
        closing = None
        if ended_by != "its deadline":
            closing = asyncio.create_task(s.engine.aclose(drain_timeout=0))
        while not s.native.stopped:
            await turn(1)
        s.native.end(status=Status.STOPPED, parts=bytes([PartState.DONE, PartState.STOPPED]))
        with pytest.raises(TransferTimeoutError if closing is None else ClosedError) as cut:
            await batch
        assert [part.state for part in batch.parts] == [PartState.DONE, PartState.STOPPED]
        assert [part.error for part in batch.parts] == [None, cut.value]
        if closing is not None:
            await closing


@pytest.mark.parametrize("status", [Status.OK, Status.FAILED])
async def test_the_parts_of_a_batch_that_outlives_its_deadline_are_pending_and_then_what_they_are(
    scene: SceneMaker, status: Status
) -> None:
    """The error comes first; what became of the bytes is said when the record is there."""
    async with scene() as s:
        batch = s.engine.batch([Put(s.source[0:8], s.remote[0:8])] * 2, timeout=0.01)
        with pytest.raises(TransferTimeoutError) as late:
            await batch
        assert batch.state is OperationState.ABANDONED
        assert [part.state for part in batch.parts] == [PartState.PENDING] * 2
        s.native.end(
            status=status,
            parts=bytes([PartState.DONE, PartState.FAILED]) if status is Status.FAILED else None,
        )
        await batch.settled()
        second = PartState.DONE if status is Status.OK else PartState.FAILED
        assert [part.state for part in batch.parts] == [PartState.DONE, second]
        assert [part.error for part in batch.parts] == [None, None if status is Status.OK else late.value]


async def test_a_batch_that_ends_early_keeps_every_part_until_the_link_has_gone(scene: SceneMaker) -> None:
    """Part 3 of 64 has failed, part 40 is under way: the error is early and names both, all stay pinned."""
    async with scene(drain_timeout=0.01) as s:
        inboxes = [await s.engine.register(bytearray(8)) for _ in range(64)]
        batch = s.engine.batch([Get(s.remote[0:8], inbox) for inbox in inboxes])
        states = [PartState.DONE] * 64
        states[3], states[40] = PartState.FAILED, PartState.PENDING
        s.native.end(status=Status.FAILED, quiescent=False, parts=bytes(states))
        with pytest.raises(BatchError) as failed:
            await batch
        assert [index for index, _ in failed.value.failures] == [3]
        assert [part.state for part in batch.parts] == states
        assert all(inbox.busy for inbox in inboxes)
        with pytest.raises(RegionBusyError):
            await inboxes[0].aclose()
        del inboxes[:]
        gc.collect()
        assert s.engine.statistics().busy_regions == 64
        assert not batch.cancel()
        s.native.peer_down(1)
        await batch.settled()
        assert s.engine.statistics().busy_regions == 0


async def test_credits_and_native_slots_hold_the_line_in_order(scene: SceneMaker) -> None:
    """Posted in the order of the calls, also when native code has no slot for a while (INV-5)."""
    async with scene(credits_per_peer=2) as s:
        s.native.answers = [1, 1]
        operations = [s.engine.put(s.source[0:n], s.remote[0:n]) for n in range(1, 8)]
        assert [held.nbytes for held in s.native.posted] == [1, 2]
        s.native.answers = [-Status.QUEUE_FULL]
        s.native.end()
        await turn()
        assert [held.nbytes for held in s.native.posted] == [2, 3]
        while s.native.posted:
            s.native.end()
            await turn()
        assert all(operation.done() and operation.exception() is None for operation in operations)


async def test_a_stop_in_line_never_reaches_native_code(scene: SceneMaker) -> None:
    """It ends at once, its signal place is used for the negative form, and what is behind it goes on."""
    async with scene(credits_per_peer=1) as s:
        first, stopped, last = start(s), start(s, signal="s"), start(s)
        task = asyncio.create_task(stopped.wait())
        await turn()
        assert s.native.reserved == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stopped.state is OperationState.SETTLED
        assert s.native.signals == [(b"s", b"", Status.STOPPED)]
        assert s.native.reserved == 0
        for operation in (first, last):
            s.native.end()
            await operation
        assert s.native.calls == 2


async def test_a_refusal_that_is_the_callers_fault_raises_and_one_of_the_world_does_not(
    scene: SceneMaker,
) -> None:
    """Stale, denied: at the call. A peer that is gone: in the Completion. Signals go negative."""
    async with scene() as s:
        s.native.answers = [-Status.STALE_REGION]
        with pytest.raises(StaleRegionError):
            start(s, signal="s")
        assert s.native.signals == [(b"s", b"", Status.STALE_REGION)]
        s.native.answers = [-Status.PEER_LOST, -Status.PEER_LOST]
        assert isinstance(start(s).exception(), PeerLostError)
        assert isinstance(start(s, timeout=1).exception(), PeerLostError)
        assert not s.source.busy
        assert s.native.reserved == 0


async def test_closing_hears_nothing_from_a_stuck_transport_for_long(scene: SceneMaker) -> None:
    """Drain and grace are bounded; then links are torn down, and everybody hears ClosedError."""
    async with scene(cancel_grace=0.01) as s:
        operations = [start(s) for _ in range(3)]
        tasks = [asyncio.create_task(operation.wait()) for operation in operations]
        await turn()
        with pytest.warns(AbandonedTransferWarning):
            await s.engine.aclose(drain_timeout=0.01)
        assert len(s.native.stopped) == 3
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, ClosedError)
        assert {operation.state for operation in operations} == {OperationState.SETTLED}


async def test_places_of_signals_are_given_back_when_they_are_taken(scene: SceneMaker) -> None:
    """Drained is not taken (and a signal put back is not either)."""
    async with scene() as s:
        for number in range(1, 4):
            s.native.arrive(1, number, "s", bytes([number]))
        await turn()
        assert s.native.taken == []
        assert s.engine.statistics().unread_signals == 3
        assert (await s.engine.wait_signal("s")).sequence == 1
        assert s.native.taken == [(1, 1)]
        for _ in range(2):
            await s.engine.wait_signal("s", peer=s.peer)
        assert s.native.taken == [(1, 1)] * 3
