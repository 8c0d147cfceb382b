"""Every line of the tables, for every way to end it, for put, get and batch."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from hixl_aio import AbandonedTransferWarning, ClosedError, OperationState, TransferTimeoutError

from .stage import KINDS, Stage, staged
from .tables import CANNOT_STOP, OPERATIONS, Answer, row_id
from .ways import WAYS, TaskCancel, Way

pytestmark = pytest.mark.asyncio

CANCELLED = [answer for answer in OPERATIONS if answer.end == "cancelled"]
TIMED_OUT = [answer for answer in OPERATIONS if answer.end == "its own timeout"]
CLOSED = [answer for answer in OPERATIONS if answer.end == "engine closed"]


def check_usable(stage: Stage) -> None:
    """The buffer is free, or the region says that it is not."""
    busy = stage.answer.usable == "when settled"
    assert stage.local.busy == busy
    assert (stage.op.state is OperationState.SETTLED) == (not busy)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("answer", CANCELLED, ids=row_id)
async def test_cancelled(answer: Answer, way: type[Way], kind: str) -> None:
    """Whoever cancels, in whatever state: the await ends as the table says, and so do bytes and signal."""
    await _cancel(answer, way, kind, "shm")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("link", ["inproc", "cma", "cooperative"])
@pytest.mark.parametrize("answer", CANCELLED, ids=row_id)
async def test_cancelled_over_the_other_links(answer: Answer, link: str, kind: str) -> None:
    """Whoever copies: we within the process or across, or the peer."""
    await _cancel(answer, TaskCancel, kind, link)


async def _cancel(answer: Answer, way: type[Way], kind: str, link: str) -> None:
    async with staged(answer, kind, link=link) as stage:
        chosen = way()
        before = _cancelling()
        waiting = asyncio.create_task(_checked(chosen, stage))
        await chosen.begun.wait()
        await stage.joined()
        if stage.in_same_turn:
            stage.let_go()
        chosen.cancel()
        if answer.state.startswith("landed"):
            # It cannot be stopped any more: the await goes on until the record comes.
            for _ in range(5):
                await asyncio.sleep(0)
            assert not waiting.done()
            assert stage.op.state is OperationState.POSTED
            stage.hold.release()
        await waiting
        assert _cancelling() == before
        await stage.check_signal()
        stage.check_bytes()


async def _checked(way: Way, stage: Stage) -> None:
    before = _cancelling()

    async def wait() -> None:
        try:
            await stage.op
        finally:
            check_usable(stage)

    await way.run(wait)
    assert not way.restores_count or _cancelling() == before
    assert stage.op.done()
    landed = stage.answer.bytes == "complete"
    assert (stage.op.exception() is None) == landed


def _cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", TIMED_OUT, ids=row_id)
async def test_its_own_timeout(answer: Answer, kind: str) -> None:
    """The deadline of the operation, with a task that awaits it."""
    async with staged(answer, kind, timeout=0.05) as stage:
        waiting = asyncio.create_task(stage.op.wait())
        await stage.joined()
        if stage.in_same_turn:
            stage.let_go()
        if answer.raises == "nothing":
            await waiting
        else:
            with pytest.raises(TransferTimeoutError):
                await waiting
        check_usable(stage)
        told = stage.op.exception()
        stage.hold.release()
        await stage.op.settled()
        assert stage.op.exception() is told
        assert not stage.local.busy
        await stage.check_signal()
        stage.check_bytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", CLOSED, ids=row_id)
async def test_engine_closed(answer: Answer, kind: str) -> None:
    """Closing does not wait for what can be stopped, and tears down what cannot."""
    async with staged(answer, kind, grace=0.1) as stage:
        waiting = asyncio.create_task(stage.op.wait())
        await stage.joined()
        if stage.in_same_turn:
            stage.let_go()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AbandonedTransferWarning)
            await stage.pair.near.aclose(drain_timeout=0)
        assert waiting.done()
        if answer.raises == "nothing":
            await waiting
        else:
            with pytest.raises(ClosedError):
                await waiting
        assert stage.op.state is OperationState.SETTLED
        await stage.check_signal()
        if kind != "get":
            stage.check_bytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", CANNOT_STOP, ids=row_id)
async def test_a_transport_that_cannot_stop(answer: Answer, kind: str) -> None:
    """The await ends when its grace is over; the region is busy until the record comes."""
    cancelled = answer.end == "cancelled"
    async with staged(answer, kind, can_stop=False, grace=0.05, timeout=None if cancelled else 0.05) as stage:
        assert not stage.pair.near.capabilities.can_stop
        waiting = asyncio.create_task(stage.op.wait())
        await stage.joined()
        if cancelled:
            waiting.cancel()
            with pytest.warns(AbandonedTransferWarning, match="has not settled within"):
                await asyncio.wait([waiting])
            assert waiting.cancelled()
        else:
            with pytest.raises(TransferTimeoutError):
                await waiting
        check_usable(stage)
        assert stage.op.state is OperationState.ABANDONED
        counts = stage.pair.near.statistics()
        assert (counts.abandoned, counts.abandoned_nbytes) == (1, stage.op.nbytes)
        stage.check_bytes()
        stage.hold.release()
        await stage.op.settled()
        assert not stage.local.busy
        await stage.check_signal()


@pytest.mark.parametrize("answer", [answer for answer in CANCELLED if "turn" not in answer.state], ids=row_id)
async def test_the_loop_shuts_down(answer: Answer) -> None:
    """A task that is left at the end is cancelled by the loop: for the operation that is a cancellation."""
    async with staged(answer, "put") as stage:
        waiting = asyncio.create_task(stage.op.wait())
        await stage.joined()
        loop = asyncio.get_running_loop()
        # What asyncio.run does at the end.
        waiting.cancel()
        if answer.state.startswith("landed"):
            loop.call_soon(stage.hold.release)
        results = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        check_usable(stage)
        await stage.check_signal()
        stage.check_bytes()
    gc.collect()
