"""What a fault plan promises to whoever writes tests with it."""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Callable

import pytest

from hixl_aio import (
    Engine,
    EngineError,
    EngineForkedError,
    HixlAioError,
    OperationState,
    PartState,
    Put,
    PutBlocks,
    Status,
    TransferFailedError,
    TransferStoppedError,
    TransferTimeoutError,
    WrongLoopError,
)
from hixl_aio.testing import FaultPlan

from .support import faulty


async def test_a_plan_ends_with_its_engine(link: str) -> None:
    """Its rules too; and an engine that was never opened, or could not be, does not keep the plan."""
    plan = FaultPlan()
    plan.engine()
    async with Engine() as other:
        with pytest.raises(EngineError):
            async with plan.engine(other.address):
                pass
    async with faulty(link, near=plan) as pair:
        _, remote = await pair.target(8)
        plan.fail(count=None)
        with pytest.raises(TransferFailedError):
            await pair.near.put(await pair.source(8), remote)
    async with faulty(link, near=plan) as pair:
        _, remote = await pair.target(8)
        await pair.near.put(await pair.source(8), remote)


async def test_a_window_does_not_wait_for_who_was_stopped(link: str) -> None:
    """One of three that are to be reversed is cancelled: the other two go on, in reverse."""
    plan = FaultPlan()
    # One thread, so that they end in the order in which the plan hands them on.
    async with faulty(link, near=plan, copy_threads=1) as pair:
        _, remote = await pair.target(8)
        source = await pair.source(8)
        window = plan.reorder(3)
        first, second = (pair.near.put(source, remote, signal=name) for name in ("1", "2"))
        await window.wait_caught(2)
        assert first.cancel()
        await first.settled()
        third = pair.near.put(source, remote, signal="3")
        await second
        await third
        assert isinstance(first.exception(), TransferStoppedError)
        names = [(await anext(pair.far.signals())).name for _ in range(3)]
        assert names == ["1", "3", "2"]


async def test_a_frozen_peer_gets_no_signal_either(link: str) -> None:
    """Signals of their own wait until it thaws, in order; the place is taken at the call."""
    plan = FaultPlan()
    async with faulty(link, near=plan) as pair:
        plan.freeze(pair.peer)
        for number in range(3):
            await pair.near.signal(pair.peer, "s", bytes([number]))
        await pair.far.signal(pair.back, "t")
        assert (pair.far.statistics().unread_signals, plan.pending) == (0, 3)
        plan.thaw(pair.peer)
        assert [(await pair.far.wait_signal("s")).payload[0] for _ in range(3)] == [0, 1, 2]
        await pair.near.wait_signal("t")


async def test_lifting_a_throttle_frees_what_is_under_way(link: str) -> None:
    """Operations go on at once, and no later signal overtakes an earlier one."""
    plan = FaultPlan()
    async with faulty(link, near=plan) as pair:
        _, remote = await pair.target(1000)
        source = await pair.source(1000)
        plan.throttle(1.0, latency=1000.0)
        slow = pair.near.put(source, remote, timeout=None)
        await pair.near.signal(pair.peer, "s", b"1")
        plan.throttle(None)
        await pair.near.signal(pair.peer, "s", b"2")
        await slow
        assert [(await pair.far.wait_signal("s")).payload for _ in range(2)] == [b"1", b"2"]


async def test_a_transport_that_is_full_for_long_does_not_keep_the_loop_busy(link: str) -> None:
    """It is asked again after a moment, not in every turn."""
    plan = FaultPlan()
    async with faulty(link, near=plan) as pair:
        _, remote = await pair.target(8)
        refusing = plan.refuse(Status.QUEUE_FULL, count=None)
        started = time.monotonic()
        with pytest.raises(TransferTimeoutError):
            await pair.near.put(await pair.source(8), remote, timeout=0.2)
        milliseconds = (time.monotonic() - started) * 1000
        # About one a millisecond, and a few more when something else wakes the loop; not thousands.
        assert 1 < refusing.hits <= 2 * milliseconds


async def test_a_batch_that_found_no_room_keeps_the_offsets_of_its_call(link: str) -> None:
    """What becomes of the caller's arrays while it waits in line changes nothing."""
    plan = FaultPlan()
    async with faulty(link, near=plan) as pair:
        region, remote = await pair.target(64)
        source = await pair.source(64, 7)
        places = array("q", [0, 16])
        plan.refuse(Status.QUEUE_FULL, count=2)  # the call, and the line that asks again at once
        batch = pair.near.batch([PutBlocks(source, remote, places, places, 8)])
        assert batch.state is OperationState.WAITING
        places[0] = 48
        await batch
        assert bytes(region.view()) == (b"\x07" * 8 + bytes(8)) * 2 + bytes(32)


async def test_parts_of_a_batch_that_was_held_and_stopped(link: str) -> None:
    """They are stopped, as without a plan."""
    plan = FaultPlan()
    async with faulty(link, near=plan) as pair:
        _, remote = await pair.target(64)
        source = await pair.source(64)
        held = plan.hold()
        batch = pair.near.batch([Put(source[n : n + 8], remote[n : n + 8]) for n in (0, 16, 32)])
        await held.wait_caught()
        assert batch.cancel()
        with pytest.raises(TransferStoppedError):
            await batch
        assert [part.state for part in batch.parts] == [PartState.STOPPED] * 3


async def test_a_plan_is_reached_from_its_own_loop_and_process_only() -> None:
    """A forked child and another thread are refused, and touch nothing."""
    plan = FaultPlan()
    async with faulty("shm", near=plan) as pair:
        held = plan.hold()
        calls: list[Callable[[], object]] = [
            lambda: plan.thaw(pair.peer),
            plan.fail,
            held.release,
            lambda: held.caught,
            lambda: plan.pending,
        ]
        found: list[type[BaseException]] = []

        def call_all() -> None:
            for call in calls:
                try:
                    call()
                except HixlAioError as error:
                    found.append(type(error))

        thread = threading.Thread(target=call_all)
        thread.start()
        thread.join()
        assert found == [WrongLoopError] * len(calls)
        child = os.fork()
        if child == 0:
            found.clear()
            call_all()
            os._exit(0 if found == [EngineForkedError] * len(calls) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222
