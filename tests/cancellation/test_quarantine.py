"""Memory that somebody may still write to is not given back: the pattern of whoever has it next survives."""

from __future__ import annotations

import asyncio
import gc
import mmap

import pytest

from hixl_aio import (
    AbandonedTransferWarning,
    Access,
    BatchError,
    Completion,
    Get,
    MemoryRegion,
    OperationState,
    PartState,
    RegionBusyError,
    StaleRegionError,
    TransferFailedError,
    TransferLostError,
)
from hixl_aio.testing import FaultPlan, HoldPoint
from tests.conformance.conftest import link
from tests.conformance.support import Pair, faulty, memory

__all__ = ("link",)

pytestmark = pytest.mark.asyncio

SIZE = 64 << 10
OLD, NEW, PATTERN = b"o" * SIZE, b"n" * SIZE, b"p" * SIZE


async def abandon(op: Completion) -> None:
    """Await it, and be cancelled for longer than its grace."""
    waiting = asyncio.create_task(op.wait())
    await asyncio.sleep(0)  # a task that is cancelled before its first step has not joined anything
    waiting.cancel()
    with pytest.warns(AbandonedTransferWarning, match="has not settled within"):
        await asyncio.wait([waiting])
    assert op.state is OperationState.ABANDONED


async def test_a_put_that_failed_may_still_land(link: str) -> None:
    """Its source stays busy and refuses to be closed, until the link is torn down; then nothing lands."""
    plan = FaultPlan()
    async with faulty(link, near=plan, drain_timeout=0.05) as pair:
        target, remote = await pair.target(SIZE)
        source = await pair.source(SIZE, NEW[0])
        lies = plan.lie(count=2)
        first, second = pair.near.put(source, remote), pair.near.put(source, remote)
        for op in (first, second):
            with pytest.raises(TransferFailedError):
                await op
            assert op.state is OperationState.QUARANTINED
        counts = pair.near.statistics()
        assert (counts.quarantined, counts.quarantined_nbytes, counts.busy_regions) == (2, 2 * SIZE, 1)
        with pytest.raises(RegionBusyError, match="2"):
            await source.aclose()
        # The first one lands now, long after its failure was reported. That is what the pin is for.
        assert bytes(target.view()) == bytes(SIZE)
        assert lies.release(0) == 1
        await plan.wait_pending(1)
        assert bytes(target.view()) == NEW
        assert first.state is OperationState.QUARANTINED
        # The second one never does: the teardown of the link is the proof.
        target.view()[:] = PATTERN
        await pair.peer.abort()
        await second.settled()
        assert pair.near.statistics().quarantined == 0
        await source.aclose()
        assert lies.release() == 0
        assert bytes(target.view()) == PATTERN


async def test_a_get_that_failed_does_not_write_into_memory_that_was_reused(link: str) -> None:
    """The destination is busy while it may be written to; after the teardown its next owner's bytes stay."""
    plan = FaultPlan()
    async with faulty(link, near=plan, drain_timeout=0.05) as pair:
        target, remote = await pair.target(SIZE)
        target.view()[:] = NEW
        inbox = await memory(pair.near, link, SIZE)
        view = inbox.view()
        lies = plan.lie(count=2)
        first, second = pair.near.get(remote, inbox), pair.near.get(remote, inbox)
        for op in (first, second):
            with pytest.raises(TransferFailedError):
                await op
        with pytest.raises(RegionBusyError):
            await inbox.aclose()
        view[:] = OLD
        lies.release(0)
        await plan.wait_pending(1)
        assert bytes(view) == NEW  # it came, into memory that nobody could have reused
        await pair.peer.abort()
        await asyncio.gather(first.settled(), second.settled())
        await inbox.aclose()
        view[:] = PATTERN
        assert lies.release() == 0
        assert bytes(view) == PATTERN


async def test_memory_of_an_abandoned_get_is_not_freed_when_all_references_are_gone() -> None:
    """The late bytes go where they were to go, and into nobody else's memory."""
    plan = FaultPlan(can_stop=False)
    async with faulty("cma", near=plan, cancel_grace=0.02) as pair:
        target, remote = await pair.target(SIZE)
        target.view()[:] = NEW
        inbox = await pair.near.register(bytearray(SIZE))
        held = plan.hold()
        op = pair.near.get(remote, inbox)
        await held.wait_caught()
        await abandon(op)
        del inbox
        gc.collect()
        others = [bytearray(PATTERN) for _ in range(64)]
        assert pair.near.statistics().abandoned == 1
        held.release()
        await op.settled()
        assert all(other == PATTERN for other in others)
        assert pair.near.statistics().abandoned == 0


async def again(pair: Pair, region: MemoryRegion, buffer: mmap.mmap) -> MemoryRegion:
    """A new region where that one was."""
    place = region._record.address
    await pair.back.refresh()  # a turn of the thread that has closed it: by now it holds nothing of it either
    if pair.link == "shm":
        anew = await pair.far.allocate(SIZE, label="target", access=Access.READ_WRITE)
    else:
        anew = await pair.far.register(buffer, label="target", access=Access.READ_WRITE)
    assert anew._record.address == place, "the same memory is in use again"
    await pair.peer.refresh()
    return anew


@pytest.mark.parametrize("at", ["posted", "half"])
async def test_memory_that_has_a_new_owner_gets_nothing_of_the_old_put(link: str, at: HoldPoint) -> None:
    """The target takes the block back from a held put and gives it to another: whose bytes stay, first and
    last, and the old put fails."""
    plan = FaultPlan()
    buffer = mmap.mmap(-1, SIZE)
    async with faulty(link, near=plan) as pair:
        if link == "shm":
            target = await pair.far.allocate(SIZE, label="target", access=Access.READ_WRITE)
        else:
            target = await pair.far.register(buffer, label="target", access=Access.READ_WRITE)
        await pair.peer.refresh()
        late, source = await pair.source(SIZE, OLD[0]), await pair.source(SIZE, NEW[0])
        held = plan.hold(at=at)
        op = pair.near.put(late, pair.peer.region("target"), signal="old")
        await held.wait_caught()
        assert bytes(target.view()) == (
            bytes(SIZE) if at == "posted" else OLD[: SIZE // 2] + bytes(SIZE // 2)
        )
        await target.aclose()
        anew = await again(pair, target, buffer)
        await pair.near.put(source, pair.peer.region("target"), signal="new")
        assert (await pair.far.wait_signal("new")).error is None
        assert bytes(anew.view()) == NEW
        held.release()
        with pytest.raises(StaleRegionError):
            await op
        assert (await pair.far.wait_signal("old")).error is not None
        assert bytes(anew.view()) == NEW


@pytest.mark.parametrize("at", ["posted", "half"])
async def test_the_source_of_a_put_that_everybody_has_dropped_stays_what_it_was(
    link: str, at: HoldPoint
) -> None:
    """Completion, region and buffer are gone for the program, which uses memory on: the bytes arrive."""
    plan = FaultPlan()
    async with faulty(link, near=plan) as pair:
        target, remote = await pair.target(SIZE)
        held = plan.hold(at=at)
        pair.near.put(await pair.source(SIZE, NEW[0]), remote, signal="landed")
        await held.wait_caught()
        gc.collect()
        others = [await memory(pair.near, link, SIZE) for _ in range(32)]
        for other in others:
            other.view()[:] = PATTERN
        assert pair.near.statistics().busy_regions == 1
        held.release()
        assert (await pair.far.wait_signal("landed")).error is None
        assert bytes(target.view()) == NEW
        await pair.near.flush()
        assert pair.near.statistics().busy_regions == 0


async def test_a_lost_completion_keeps_its_memory_until_the_link_is_torn_down(link: str) -> None:
    """Giving up ends the await, not the custody; the record that comes with the teardown does."""
    plan = FaultPlan()
    async with faulty(link, near=plan, drain_timeout=0.05, cancel_grace=0.05) as pair:
        target, remote = await pair.target(SIZE)
        source = await pair.source(SIZE, NEW[0])
        lost = plan.lose()
        op = pair.near.put(source, remote)
        await lost.wait_caught()
        await abandon(op)
        assert (op.state, lost.caught) == (OperationState.ABANDONED, 1)
        assert bytes(target.view()) == NEW
        with pytest.raises(RegionBusyError):
            await source.aclose()
        again = plan.lose()
        without_deadline = pair.near.put(await pair.source(SIZE), remote)
        await again.wait_caught()
        await pair.peer.abort()
        await op.settled()
        with pytest.raises(TransferLostError):
            await without_deadline
        assert pair.near.statistics().abandoned == 0
        await source.aclose()


async def test_a_late_completion_settles_what_was_abandoned(link: str) -> None:
    """A completion is a proof too, however late it comes."""
    plan = FaultPlan()
    async with faulty(link, near=plan, cancel_grace=0.02) as pair:
        _, remote = await pair.target(SIZE)
        source = await pair.source(SIZE)
        lost = plan.lose()
        op = pair.near.put(source, remote)
        await lost.wait_caught()
        await abandon(op)
        assert source.busy
        assert lost.release() == 1
        await op.settled()
        assert not source.busy
        await source.aclose()


async def test_a_batch_that_failed_keeps_all_its_parts(link: str) -> None:
    """The error may be early: all 64 destinations stay where the late bytes go, though nobody holds them."""
    plan = FaultPlan()
    async with faulty(link, near=plan, drain_timeout=0.02) as pair:
        target, remote = await pair.target(64 << 10)
        target.view()[:] = bytes(range(64)) * (1 << 10)
        buffers = [mmap.mmap(-1, 1 << 10) for _ in range(64)]  # none of them is known to anybody else
        inboxes = [await pair.near.register(buffer) for buffer in buffers]
        lies = plan.lie(count=2)
        parts = [Get(remote[n << 10 : (n + 1) << 10], inbox) for n, inbox in enumerate(inboxes)]
        first, second = pair.near.batch(parts), pair.near.batch(parts)
        for batch in (first, second):
            with pytest.raises(BatchError) as failed:
                await batch
            assert [index for index, _ in failed.value.failures] == list(range(64))
            assert batch.state is OperationState.QUARANTINED
        assert pair.near.statistics().busy_regions == 64
        for inbox in (inboxes[0], inboxes[3], inboxes[40]):
            with pytest.raises(RegionBusyError):
                await inbox.aclose()
        del inboxes, inbox, parts
        gc.collect()
        with pytest.raises(BufferError):
            buffers[63].resize(2 << 10)  # still exported
        for buffer in buffers:
            buffer[:] = PATTERN[: 1 << 10]
        assert lies.release(0) == 1
        await plan.wait_pending(1)
        assert [buffer[:] for buffer in buffers] == [bytes(range(64)) * 16] * 64
        # What has not landed before the teardown never does, and then all of it is free.
        for buffer in buffers:
            buffer[:] = PATTERN[: 1 << 10]
        await pair.peer.abort()
        await asyncio.gather(first.settled(), second.settled())
        assert pair.near.statistics().busy_regions == 0
        assert lies.release() == 0
        assert all(buffer[:] == PATTERN[: 1 << 10] for buffer in buffers)


async def test_a_batch_with_a_part_that_failed_ends_when_the_others_have(link: str) -> None:
    """Part 3 of 64 has become stale and others are held: no end before, and after it nothing is written."""
    plan = FaultPlan()
    size = 1 << 10
    async with faulty(link, near=plan) as pair:
        gone, stale = await pair.target(size, label="gone")
        target, remote = await pair.target(64 * size)
        target.view()[:] = NEW
        inboxes = [await memory(pair.near, link, size) for _ in range(64)]
        views = [inbox.view() for inbox in inboxes]
        sources = [stale if n == 3 else remote[n * size : (n + 1) * size] for n in range(64)]
        held = plan.hold(at="half")
        batch = pair.near.batch([Get(source, inbox) for source, inbox in zip(sources, inboxes, strict=True)])
        await held.wait_caught()
        await gone.aclose()
        waiting = asyncio.create_task(batch.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert all(inbox.busy for inbox in inboxes)
        held.release()
        with pytest.raises(BatchError) as failed:
            await waiting
        assert [(index, type(error)) for index, error in failed.value.failures] == [(3, StaleRegionError)]
        states = [part.state for part in batch.parts]
        assert states == [PartState.STALE if n == 3 else PartState.DONE for n in range(64)]
        assert [bytes(view) for view in views] == [bytes(size) if n == 3 else NEW[:size] for n in range(64)]
        # It has ended, so all of it is free and nobody writes it.
        assert not any(inbox.busy for inbox in inboxes)
        for view in views:
            view[:] = PATTERN[:size]
        await pair.near.flush()
        assert all(bytes(view) == PATTERN[:size] for view in views)


async def test_what_is_quarantined_ends_with_the_engine() -> None:
    """Closing tears the links down, so nothing is left (INV-10)."""
    plan = FaultPlan()
    async with faulty("shm", near=plan, cancel_grace=0.02) as pair:
        await _fail_two(plan, pair)
        with pytest.warns(AbandonedTransferWarning, match="2 operations unsettled"):
            await pair.near.aclose(drain_timeout=0)
        counts = pair.near.statistics()
        assert (counts.in_flight, counts.quarantined, counts.busy_regions) == (0, 0, 0)


async def _fail_two(plan: FaultPlan, pair: Pair) -> None:
    _, remote = await pair.target(SIZE)
    source = await pair.source(SIZE)
    plan.lie(count=2)
    for op in [pair.near.put(source, remote), pair.near.get(remote, source)]:
        with pytest.raises(TransferFailedError):
            await op
