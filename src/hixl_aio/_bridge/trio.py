"""The bridge to trio, and so to anyio's programs on it.

A task is parked by `wait_task_rescheduled`, with an abort function that lets it go. In a join that function
asks for the stop and answers that the task cannot go yet; the task then sleeps behind a shield until the
memory is settled, and raises the cancellation that it was given. A wake-up that comes before a cancellation
wins, as everywhere in trio; the cancellation is raised by the next checkpoint.

The descriptor, each timer and each awaitable that is followed has a system task, which ends with what it
serves. trio ends them with the run, and crashes on what they raise: nothing may leave them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from math import inf
from typing import Any, Final

import trio
from trio.lowlevel import Abort, RaiseCancelT, Task

from hixl_aio._bridge.base import Cancellable, Joinable, Waitable, weightier

__all__ = ("TrioBridge", "running_run")

_UNHANDLED: Final = "hixl_aio.unhandled"


def running_run() -> object:
    """The identity of the trio run on this thread, or None."""
    try:
        return trio.lowlevel.current_trio_token()
    except RuntimeError:
        return None


class _Waiter:
    """What one task parks on, once."""

    __slots__ = ("task", "woken")

    def __init__(self) -> None:
        self.task: Task | None = None  # while it is parked
        self.woken = False

    def wake(self) -> None:
        # Woken before it parks, the task does not sleep; cancelled before that, it has gone.
        task, self.task, self.woken = self.task, None, True
        if task is not None:
            trio.lowlevel.reschedule(task)

    def abort(self, raise_cancel: RaiseCancelT) -> Abort:
        self.task = None
        return Abort.SUCCEEDED


class _Joined(_Waiter):
    """A waiter whose task may not just go."""

    __slots__ = ("error", "raise_cancel", "remaining", "target")

    def __init__(self, target: Joinable) -> None:
        super().__init__()
        self.target = target
        self.raise_cancel: RaiseCancelT | None = None
        self.remaining: tuple[Waitable, float] | None = None
        self.error: Exception | None = None

    def abort(self, raise_cancel: RaiseCancelT) -> Abort:
        self.raise_cancel = raise_cancel
        try:
            self.remaining = self.target.detach(self)  # asks for the stop, now
        except Exception as error:  # trio would not survive it
            self.error = error
        self.wake()
        return Abort.FAILED


class TrioBridge:
    """One run of trio."""

    __slots__ = ("_callback", "_fd", "_reader", "_reading", "_token")

    name: str = "trio"
    free_awaits: int = 0
    free_nbytes: int = 0
    debug: bool = False
    current = staticmethod(running_run)

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._reader = trio.CancelScope()
        self._reading = False
        self._fd = -1
        self._callback: Callable[[], None] | None = None

    @property
    def home(self) -> object:
        return self._token

    # ---- waiters

    def new_waiter(self) -> _Waiter:
        return _Waiter()

    def wake(self, waiter: _Waiter) -> None:
        waiter.wake()

    async def park(self, waiter: _Waiter) -> None:
        if waiter.woken:
            await trio.lowlevel.checkpoint()
            return
        waiter.task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(waiter.abort)

    async def park_for(self, waiter: _Waiter, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await self.park(waiter)
        return waiter.woken

    async def join(self, target: Joinable) -> None:
        joined = _Joined(target)
        target.attach(joined)
        await self.park(joined)
        if joined.raise_cancel is None:
            return
        if joined.error is not None:
            raise joined.error
        if joined.remaining is not None:
            settled, further = await self.hold(*joined.remaining)
            if not settled:
                target.give_up()
            if isinstance(further, KeyboardInterrupt):
                raise further  # trio gives it once; a cancellation stands for as long as its scope
        joined.raise_cancel()

    async def hold(
        self, gate: Waitable, seconds: float | None, *, patient: bool = True
    ) -> tuple[bool, BaseException | None]:
        first: BaseException | None = None
        limit = inf if seconds is None else trio.current_time() + seconds
        while not gate.is_open and trio.current_time() < limit:
            try:
                with trio.CancelScope(deadline=limit, shield=patient):
                    await self._once(gate)
            except (trio.Cancelled, KeyboardInterrupt) as cancelled:  # no shield stops the latter
                first = weightier(first, cancelled)
                if not patient:
                    break
        try:
            await trio.lowlevel.checkpoint_if_cancelled()  # what the shield has kept away
        except (trio.Cancelled, KeyboardInterrupt) as cancelled:
            first = weightier(first, cancelled)
        return gate.is_open, first

    async def _once(self, gate: Waitable) -> None:
        if not self._reading and self._callback is not None:
            # The run is at its end and has taken the reader: whoever still waits here reads for all.
            await trio.lowlevel.wait_readable(self._fd)
            self._guarded(self._callback)
            return
        waiter = _Waiter()
        gate.add(waiter)
        try:
            await self.park(waiter)
        finally:
            gate.discard(waiter)

    async def checkpoint(self) -> None:
        # What is done may be awaited anywhere; outside of trio there is nobody to yield to.
        if running_run() is not None:
            await trio.lowlevel.checkpoint()

    # ---- the loop

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._fd, self._callback, self._reading = fd, callback, True
        trio.lowlevel.spawn_system_task(self._read, name="hixl_aio reader")

    async def _read(self) -> None:
        try:
            with self._reader as scope:
                while not scope.cancel_called and self._callback is not None:
                    await trio.lowlevel.wait_readable(self._fd)
                    if not scope.cancel_called:
                        self._guarded(self._callback)
        except Exception as error:
            self.report("the engine's descriptor cannot be watched any more", error)
        finally:
            self._reading = False

    def unwatch(self, fd: int) -> None:
        self._callback = None
        self._reader.cancel()  # takes the descriptor off the poll at once: it may be closed now

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> None:
        context = context or copy_context()
        self._token.run_sync_soon(self._guarded, context.run, callback, *args)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Cancellable:
        timer = trio.CancelScope()
        when = trio.current_time() + seconds
        trio.lowlevel.spawn_system_task(self._ring, timer, when, callback, name="hixl_aio timer")
        return timer

    async def _ring(self, timer: trio.CancelScope, when: float, callback: Callable[[], None]) -> None:
        with timer:
            await trio.sleep_until(when)
        if not timer.cancel_called:
            self._guarded(callback)

    def owns(self, awaitable: object) -> bool:
        return getattr(awaitable, "_asyncio_future_blocking", None) is None  # the mark of asyncio's futures

    def follow(
        self, awaitable: Awaitable[object], callback: Callable[[BaseException | None], None]
    ) -> Callable[[], None]:
        followed = trio.CancelScope()
        context = copy_context()
        trio.lowlevel.spawn_system_task(
            self._await, followed, awaitable, callback, name="hixl_aio follower", context=context
        )
        return followed.cancel

    async def _await(
        self,
        followed: trio.CancelScope,
        awaitable: Awaitable[object],
        callback: Callable[[BaseException | None], None],
    ) -> None:
        error: BaseException | None = None
        try:
            with followed:
                await awaitable
        except BaseException as raised:  # also the end of the run, which is a cancellation from outside
            error = raised
        if not followed.cancel_called:
            self._guarded(callback, error)
        elif isinstance(error, Exception):
            self.report("what a stopped operation was waiting for has failed", error)

    def _guarded(self, callback: Callable[..., object], *args: Any) -> None:
        try:
            callback(*args)
        except BaseException as error:
            self.report("a callback has failed", error)

    def report(self, message: str, error: BaseException | None, **details: object) -> None:
        # trio has no handler for this; like its own, such errors go to a logger of their own.
        text = ", ".join([message, *(f"{name}={value!r}" for name, value in details.items())])
        logging.getLogger(_UNHANDLED).error("hixl_aio: %s", text, exc_info=error)
