"""Memory that somebody may still write to is not given back: the pattern of whoever has it next survives."""

from __future__ import annotations

import asyncio
import gc

import pytest

from hixl_aio import (
    AbandonedTransferWarning,
    Access,
    BatchError,
    Completion,
    OperationState,
    Put,
    RegionBusyError,
    StaleRegionError,
    TransferFailedError,
    TransferLostError,
)
from hixl_aio.testing import FaultPlan
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


async def test_a_target_that_is_closed_and_made_anew_gets_nothing_of_the_old_put(link: str) -> None:
    """Before anything has moved, or in the middle of it: the rest fails, and the new region is untouched."""
    for at in ("posted", "half"):
        plan = FaultPlan()
        async with faulty(link, near=plan) as pair:
            target, remote = await pair.target(SIZE)
            source = await pair.source(SIZE, NEW[0])
            held = plan.hold(at="posted" if at == "posted" else "half")
            op = pair.near.put(source, remote, signal="done")
            await held.wait_caught()
            await target.aclose()
            anew = await memory(pair.far, link, SIZE, label="target", access=Access.READ_WRITE)
            anew.view()[:] = PATTERN
            held.release()
            with pytest.raises(StaleRegionError):
                await op
            assert (await pair.far.wait_signal("done")).error is not None
            assert bytes(anew.view()) == PATTERN


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
    """The error may be early; no region of any part is free before the whole has settled."""
    plan = FaultPlan()
    async with faulty(link, near=plan, drain_timeout=0.02) as pair:
        _, remote = await pair.target(SIZE)
        sources = [await pair.source(1 << 10) for _ in range(8)]
        plan.lie()
        parts = [Put(source, remote[1 << 10 : 2 << 10]) for source in sources]
        batch = pair.near.batch(parts)
        with pytest.raises(BatchError) as failed:
            await batch
        assert [index for index, _ in failed.value.failures] == list(range(8))
        assert all(source.busy for source in sources)
        for source in sources[:2]:
            with pytest.raises(RegionBusyError):
                await source.aclose()
        await pair.peer.abort()
        await batch.settled()
        assert not any(source.busy for source in sources)


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
