"""Parking, waking and holding on asyncio loops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hixl_aio import WrongLoopError
from hixl_aio._bridge.asyncio import AsyncioBridge
from hixl_aio._bridge.detect import detect_bridge
from hixl_aio._core.gate import Gate

pytestmark = pytest.mark.asyncio


def bridge() -> AsyncioBridge:
    return AsyncioBridge(asyncio.get_running_loop())


async def test_a_bridge_belongs_to_the_loop_that_runs() -> None:
    """Its home is what `current` returns there, and nothing elsewhere."""
    found = detect_bridge()
    assert found.home is found.current() is asyncio.get_running_loop()
    assert found.name == "asyncio"
    assert await asyncio.to_thread(found.current) is None
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_waking_twice_or_after_a_cancellation_is_harmless() -> None:
    """No InvalidStateError, whatever the order."""
    b = bridge()
    waiter = b.new_waiter()
    b.wake(waiter)
    b.wake(waiter)
    await b.park(waiter)
    waiter = b.new_waiter()

    async def park() -> None:
        await b.park(waiter)

    task = asyncio.create_task(park())
    await b.checkpoint()
    task.cancel()
    b.wake(waiter)
    with pytest.raises(asyncio.CancelledError):
        await task
    b.wake(waiter)


async def test_parking_has_a_limit() -> None:
    """True when woken, False when the time is over; no timer is left behind."""
    b = bridge()
    assert await b.park_for(b.new_waiter(), 0.001) is False
    waiter = b.new_waiter()
    b.call_soon(b.wake, waiter)
    assert await b.park_for(waiter, 60) is True


async def test_holding_outlasts_every_cancellation() -> None:
    """Native ones and those of an anyio scope that comes again each turn; the first is given back."""
    import anyio

    b = bridge()
    gate = Gate(b.wake)
    seen: list[Any] = []

    async def hold() -> None:
        seen.append(await b.hold(gate, None))

    task = asyncio.create_task(hold())
    await b.checkpoint()
    for _ in range(3):
        task.cancel("first")
        await b.checkpoint()
    gate.open()
    await task
    is_open, first = seen[0]
    assert is_open
    assert isinstance(first, asyncio.CancelledError)
    other = Gate(b.wake)
    turns = 0

    async def count() -> None:
        nonlocal turns
        with anyio.CancelScope() as scope:
            scope.cancel()
            asyncio.get_running_loop().call_later(0.02, other.open)
            await b.hold(other, 5)
            turns += 1
            assert other.is_open

    await count()
    assert turns == 1


async def test_holding_is_bounded() -> None:
    """By time, and if it is to be impatient by the first cancellation."""
    b = bridge()
    assert await b.hold(Gate(b.wake), 0.001) == (False, None)
    assert await b.hold(Gate(b.wake), 0) == (False, None)
    task = asyncio.create_task(b.hold(Gate(b.wake), None, patient=False))
    await b.checkpoint()
    task.cancel()
    is_open, first = await task
    assert not is_open
    assert isinstance(first, asyncio.CancelledError)


async def test_following_watches_and_ends_what_is_ours() -> None:
    """A coroutine becomes a task of ours, cancelled when dropped; a future of the caller's is not touched."""
    b = bridge()
    results: list[BaseException | None] = []
    ended = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fails() -> None:
        raise KeyError("x")

    b.follow(asyncio.sleep(0), results.append)
    b.follow(fails(), results.append)
    drop = b.follow(forever(), results.append)
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    drop_future = b.follow(future, results.append)
    for _ in range(4):
        await b.checkpoint()
    drop()
    drop_future()
    await ended.wait()
    resolved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    drop_resolved = b.follow(resolved, results.append)
    resolved.set_result(None)
    drop_resolved()  # the call back is on its way already
    await b.checkpoint()
    assert not future.cancelled()
    future.set_result(None)
    await b.checkpoint()
    assert len(results) == 2
    assert any(isinstance(result, KeyError) for result in results)
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    b.follow(cancelled, results.append)
    cancelled.cancel()
    await b.checkpoint()
    assert isinstance(results[-1], asyncio.CancelledError)


async def test_what_fails_after_it_was_dropped_is_reported() -> None:
    """Nobody else would hear of it."""
    b = bridge()
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise KeyError("x") from None

    drop = b.follow(stubborn(), lambda _: None)
    await b.checkpoint()
    drop()
    for _ in range(4):
        await b.checkpoint()
    assert isinstance(reports[0]["exception"], KeyError)
    assert reports[0]["message"].startswith("hixl_aio: ")


async def test_the_join_can_be_driven_without_an_engine() -> None:
    """attach, detach and give_up are all that it needs of an operation."""
    b = bridge()
    told: list[str] = []

    class Operation:
        def __init__(self, gate: Gate | None) -> None:
            self.gate = gate
            self.waiter: Any = None

        def attach(self, waiter: Any) -> None:
            self.waiter = waiter

        def detach(self, waiter: Any) -> tuple[Gate, float] | None:
            told.append("detach")
            return None if self.gate is None else (self.gate, 0.01)

        def give_up(self) -> None:
            told.append("give up")

    for gate in (None, Gate(b.wake)):
        task = asyncio.create_task(b.join(Operation(gate)))
        await b.checkpoint()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert told == ["detach", "detach", "give up"]
    operation = Operation(None)
    task = asyncio.create_task(b.join(operation))
    await b.checkpoint()
    b.wake(operation.waiter)
    await task


def no_loop() -> None:
    """Outside of any loop."""
    with pytest.raises(WrongLoopError, match="async with"):
        detect_bridge()


async def test_without_a_loop_there_is_no_bridge() -> None:
    """The message says how to open an engine."""
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, no_loop)
    await loop.shutdown_default_executor()
