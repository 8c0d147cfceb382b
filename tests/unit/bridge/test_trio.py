"""Parking, waking, joining and holding on trio, and what serves the loop there."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import signal
import warnings
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from hixl_aio._bridge.asyncio import AsyncioBridge
from hixl_aio._bridge.base import Bridge, Cancellable
from hixl_aio._bridge.detect import detect_bridge
from hixl_aio._bridge.trio import TrioBridge
from hixl_aio._core.gate import Gate

from ...loops import Promise, reports

pytestmark = pytest.mark.trio_only


async def test_a_bridge_belongs_to_the_run() -> None:
    """Its home is what `current` returns in that run, and neither in another one nor outside of any."""
    found = detect_bridge()
    assert found.home is found.current()
    assert (found.name, found.free_awaits, found.debug) == ("trio", 0, False)
    seen: list[object] = []

    async def look() -> None:
        seen.append(found.current())

    def elsewhere() -> None:
        seen.append(found.current())
        trio.run(look)

    await in_thread(elsewhere)
    assert seen[0] is None
    assert seen[1] is not None
    assert seen[1] is not found.home


async def in_thread(work: Callable[[], object]) -> None:
    """Run something in a thread that ends with it; trio's own threads stay for a while."""
    import threading

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_each_task_gets_the_bridge_of_its_own_loop_where_two_run() -> None:
    """A run of trio that is the guest of an asyncio loop: both are on one thread, and are told apart."""
    found: dict[str, Bridge] = {}

    async def guest() -> None:
        found["trio"] = detect_bridge()

    async def host() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=done.set_result,
            host_uses_signal_set_wakeup_fd=True,
        )
        found["asyncio"] = detect_bridge()
        (await done).unwrap()

    asyncio.run(host())
    assert isinstance(found["trio"], TrioBridge)
    assert isinstance(found["asyncio"], AsyncioBridge)


# ---- waiters


async def test_waking_twice_early_or_after_a_cancellation_is_harmless() -> None:
    """A task is rescheduled once at most, whatever the order."""
    b = TrioBridge()
    waiter = b.new_waiter()
    b.wake(waiter)
    b.wake(waiter)
    with trio.testing.assert_checkpoints():
        await b.park(waiter)
    waiter = b.new_waiter()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(b.park, waiter)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            b.wake(waiter)
    assert scope.cancelled_caught
    b.wake(waiter)


async def test_a_wake_up_before_a_cancellation_wins() -> None:
    """The task goes on with what it was woken for; the cancellation comes at its next checkpoint."""
    b = TrioBridge()
    waiter = b.new_waiter()
    told: list[str] = []

    async def parked() -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await b.park(waiter)
            told.append("woken")
            await trio.lowlevel.checkpoint()
            told.append("not reached")

    scopes: list[trio.CancelScope] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parked)
        await trio.testing.wait_all_tasks_blocked()
        b.wake(waiter)
        scopes[0].cancel()
    assert told == ["woken"]


async def test_parking_has_a_limit() -> None:
    """True when woken, False when the time is over."""
    b = TrioBridge()
    assert await b.park_for(b.new_waiter(), 0.001) is False
    waiter = b.new_waiter()
    b.call_soon(b.wake, waiter)
    assert await b.park_for(waiter, 60) is True


async def test_holding_outlasts_every_cancellation_and_gives_the_first_back() -> None:
    """A cancelled scope is kept away until the gate is open; then the caller gets what it must raise."""
    b = TrioBridge()
    gate = Gate(b.wake)
    with trio.CancelScope() as outer:
        outer.cancel()
        b.call_later(0.001, gate.open)
        is_open, first = await b.hold(gate, 5)
        assert is_open
        assert isinstance(first, trio.Cancelled)
        raise first
    assert outer.cancelled_caught
    assert await b.hold(gate, None) == (True, None)


async def test_holding_is_bounded() -> None:
    """By time, and if it is to be impatient by the first cancellation."""
    b = TrioBridge()
    assert await b.hold(Gate(b.wake), 0.001) == (False, None)
    assert await b.hold(Gate(b.wake), 0) == (False, None)
    with trio.CancelScope() as scope:
        scope.cancel()
        is_open, first = await b.hold(Gate(b.wake), None, patient=False)
        assert not is_open
        assert isinstance(first, trio.Cancelled)


async def test_holding_outlasts_an_interrupt_from_the_keyboard() -> None:
    """No shield keeps it away, trio gives it once: it is given back like a cancellation, and not lost."""
    b = TrioBridge()
    gate = Gate(b.wake)

    async def interrupt() -> None:
        await trio.testing.wait_all_tasks_blocked()
        b.call_soon(signal.raise_signal, signal.SIGINT)  # where trio keeps it for the main task
        await trio.testing.wait_all_tasks_blocked()
        gate.open()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(interrupt)
        is_open, first = await b.hold(gate, 5)
    assert is_open
    assert isinstance(first, KeyboardInterrupt)


# ---- join


class Operation:
    """All that a join needs of one."""

    def __init__(self, gate: Gate | None, grace: float = 5.0, failure: Exception | None = None) -> None:
        self.gate = gate
        self.grace = grace
        self.failure = failure
        self.waiter: Any = None
        self.told: list[str] = []

    def attach(self, waiter: Any) -> None:
        self.waiter = waiter

    def detach(self, waiter: Any) -> tuple[Gate, float] | None:
        assert waiter is self.waiter
        self.told.append("detach")
        if self.failure is not None:
            raise self.failure
        return None if self.gate is None else (self.gate, self.grace)

    def give_up(self) -> None:
        self.told.append("give up")


async def test_a_join_asks_for_the_stop_in_the_step_of_the_cancellation() -> None:
    """And goes on sleeping until the gate is open; then the cancellation is the one of its scope."""
    b = TrioBridge()
    gate = Gate(b.wake)
    operation = Operation(gate)
    scope = trio.CancelScope()
    ended = False

    async def join() -> None:
        nonlocal ended
        with scope:
            await b.join(operation)
        ended = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(join)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        assert operation.told == ["detach"]
        nursery.cancel_scope.shield = True
        scope.cancel()
        b.wake(operation.waiter)  # its result does not matter any more
        await trio.testing.wait_all_tasks_blocked()
        assert not ended
        gate.open()
    assert ended
    assert scope.cancelled_caught
    assert operation.told == ["detach"]


async def test_a_join_ends_at_once_where_nothing_is_left_to_wait_for() -> None:
    """And with a warning to the operation where the grace is over first."""
    b = TrioBridge()
    for operation, told in (
        (Operation(None), ["detach"]),
        (Operation(Gate(b.wake), 0.001), ["detach", "give up"]),
    ):
        with trio.CancelScope() as scope:
            scope.cancel()
            await b.join(operation)
        assert scope.cancelled_caught
        assert operation.told == told


async def test_a_join_without_a_cancellation_ends_when_it_is_woken() -> None:
    """Once, and as a checkpoint."""
    b = TrioBridge()
    operation = Operation(None)
    b.call_soon(lambda: b.wake(operation.waiter))
    with trio.testing.assert_checkpoints():
        await b.join(operation)
    assert operation.told == []


async def test_a_stop_that_cannot_be_asked_for_fails_its_task_and_not_the_run() -> None:
    """trio would end with an internal error if the abort function raised."""
    b = TrioBridge()
    with trio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(KeyError):
            await b.join(Operation(None, failure=KeyError("x")))


async def test_an_interrupt_during_a_join_is_not_lost() -> None:
    """It comes out of the join in place of the cancellation, when the memory is settled."""
    b = TrioBridge()
    gate = Gate(b.wake)
    scope = trio.CancelScope()

    async def interrupt() -> None:
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        b.call_soon(signal.raise_signal, signal.SIGINT)  # where trio keeps it for the main task
        await trio.testing.wait_all_tasks_blocked()
        gate.open()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(interrupt)
        with pytest.raises(KeyboardInterrupt), scope:
            await b.join(Operation(gate))
    assert gate.is_open


# ---- the loop


async def test_callbacks_run_in_order_in_their_context() -> None:
    """One that fails is reported and takes nothing with it, not even with an exit."""
    b = TrioBridge()
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    variable.set("mine")
    seen: list[object] = []

    def leave() -> None:
        raise SystemExit(3)

    given = contextvars.copy_context()
    given.run(variable.set, "given")
    with reports() as told:
        b.call_soon(lambda: seen.append(variable.get()))
        b.call_soon(leave)
        b.call_soon(lambda: seen.append(variable.get()), context=given)
        assert seen == []
        await trio.testing.wait_all_tasks_blocked()
    assert seen == ["mine", "given"]
    assert [type(error) for _, error in told] == [SystemExit]


async def test_timers_run_once_or_are_called_off() -> None:
    """Before they have begun, while they wait, and in the very moment in which their time is over."""
    b = TrioBridge()
    seen: list[str] = []
    b.call_later(0, lambda: seen.append("new")).cancel()
    waiting = b.call_later(60, lambda: seen.append("waiting"))
    await trio.testing.wait_all_tasks_blocked()
    waiting.cancel()
    rivals: list[Cancellable] = []
    done = trio.Event()

    def ring(number: int) -> None:
        seen.append("rival")
        rivals[1 - number].cancel()
        done.set()

    rivals += [b.call_later(0.001, lambda: ring(0)), b.call_later(0.001, lambda: ring(1))]
    await done.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert seen == ["rival"]


async def test_a_descriptor_is_watched_until_it_is_not() -> None:
    """Its callback may fail; after `unwatch` it may be closed, and its number used again, at once."""
    b = TrioBridge()
    fd = os.eventfd(0)
    calls = 0

    def readable() -> None:
        nonlocal calls
        calls += 1
        os.eventfd_read(fd)
        raise KeyError(calls)

    b.watch(fd, readable)
    with reports() as told:
        for _ in range(2):
            os.eventfd_write(fd, 1)
            await trio.testing.wait_all_tasks_blocked()
    assert calls == 2
    assert [type(error) for _, error in told] == [KeyError, KeyError]
    os.eventfd_write(fd, 1)
    b.unwatch(fd)
    os.close(fd)
    again = os.eventfd(0)
    assert again == fd
    with trio.move_on_after(0.001) as scope:
        await trio.lowlevel.wait_readable(again)
    assert scope.cancelled_caught
    os.close(again)
    assert calls == 2


async def test_a_descriptor_that_breaks_is_reported() -> None:
    """The run goes on without it."""
    b = TrioBridge()
    fd = os.eventfd(0)
    b.watch(fd, lambda: None)
    await trio.testing.wait_all_tasks_blocked()
    with reports() as told:
        trio.lowlevel.notify_closing(fd)
        await trio.testing.wait_all_tasks_blocked()
    assert isinstance(told[0][1], trio.ClosedResourceError)
    b.unwatch(fd)
    os.close(fd)


async def test_following_tells_what_came_of_it() -> None:
    """A result, a failure, an exit: each is told once, in the context of the caller."""
    b = TrioBridge()
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    variable.set("mine")
    told: list[BaseException | None] = []

    async def works() -> None:
        assert variable.get() == "mine"
        await trio.lowlevel.checkpoint()

    async def raises(error: BaseException) -> None:
        raise error

    b.follow(works(), told.append)
    b.follow(raises(KeyError("x")), told.append)
    b.follow(raises(SystemExit(3)), told.append)
    await trio.testing.wait_all_tasks_blocked()
    assert {type(error) for error in told} == {type(None), KeyError, SystemExit}
    assert len(told) == 3


async def test_what_is_followed_no_more_is_cancelled_and_silent() -> None:
    """Begun or not; what it raises on the way out is reported."""
    b = TrioBridge()
    told: list[BaseException | None] = []
    ended: list[str] = []

    async def forever(name: str, *, stubborn: bool = False) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(name)
            if stubborn:
                raise KeyError(name)

    drops = [b.follow(forever("plain"), told.append), b.follow(forever("bad", stubborn=True), told.append)]
    await trio.testing.wait_all_tasks_blocked()
    drops.append(b.follow(forever("new"), told.append))
    with reports() as reported:
        for drop in drops:
            drop()
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(ended) == ["bad", "new", "plain"]
    assert told == []
    assert [type(error) for _, error in reported] == [KeyError]


def test_what_is_followed_at_the_end_of_the_run_is_told_of_it() -> None:
    """As a cancellation from outside."""
    told: list[BaseException | None] = []

    async def forever() -> None:
        await trio.sleep_forever()

    async def main() -> None:
        TrioBridge().follow(forever(), told.append)
        await trio.testing.wait_all_tasks_blocked()

    trio.run(main)
    assert [type(error) for error in told] == [trio.Cancelled]


def test_who_holds_when_the_run_has_taken_the_reader_reads_for_all() -> None:
    """A generator that is closed by the end of the run can still wait for the descriptor."""
    found: list[tuple[bool, BaseException | None]] = []
    kept: list[AsyncGenerator[None, None]] = []

    async def generator() -> AsyncGenerator[None, None]:
        b = TrioBridge()
        gate = Gate(b.wake)
        fd = os.eventfd(0)

        def readable() -> None:
            os.eventfd_read(fd)
            gate.open()

        b.watch(fd, readable)
        try:
            yield
        finally:
            os.eventfd_write(fd, 1)
            found.append(await b.hold(gate, 5))
            b.unwatch(fd)
            os.close(fd)

    async def main() -> None:
        kept.append(generator())
        await kept[0].__anext__()
        await trio.testing.wait_all_tasks_blocked()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # trio's own, about such generators
        trio.run(main)
        kept.clear()
        gc.collect()
    assert found[0][0] is True
    assert isinstance(found[0][1], trio.Cancelled)


async def test_asyncio_futures_are_told_from_what_trio_can_await() -> None:
    """They would never resolve here."""
    b = TrioBridge()
    loop = asyncio.new_event_loop()
    try:
        assert not b.owns(loop.create_future())
    finally:
        loop.close()
    assert b.owns(Promise().awaitable)


async def test_reports_go_to_a_logger_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    """With their details and the traceback; trio has no handler for that."""
    TrioBridge().report("this went wrong", KeyError("x"), where="here")
    record = caplog.records[-1]
    assert (record.name, record.levelname) == ("hixl_aio.unhandled", "ERROR")
    assert record.getMessage() == "hixl_aio: this went wrong, where='here'"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)
