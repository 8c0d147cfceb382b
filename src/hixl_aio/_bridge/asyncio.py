"""The bridge to asyncio, and to everything that speaks its loop interface (uvloop).

A task is parked on a future of its own, which nobody else sees. The join loop follows `docs/concepts`:
shielded against anyio's scopes and against native cancels, each time on a fresh future; the first
cancellation is raised at the end. It never calls `uncancel()` and never looks at `task.cancelling()`: both
belong to whoever cancelled.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from typing import Any, Final

from hixl_aio._bridge.base import Cancellable, Joinable, Waitable

__all__ = ("AsyncioBridge", "running_loop")

running_loop: Final = asyncio._get_running_loop
_ANYIO: Final = "anyio._backends._asyncio"  # loaded when the first of its scopes is made on asyncio


def _shield() -> AbstractContextManager[object]:
    """A shield against anyio's cancel scopes. Without anyio's asyncio half loaded, there are none."""
    if _ANYIO not in sys.modules:
        return nullcontext()
    from anyio import CancelScope

    return CancelScope(shield=True)


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


class AsyncioBridge:
    """One asyncio loop."""

    __slots__ = ("_loop", "_tasks")

    name: str = "asyncio"
    free_awaits: int = 32
    free_nbytes: int = 2 << 20  # some 0.2 ms of copying
    current = staticmethod(running_loop)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Future[Any]] = set()  # the loop itself holds tasks weakly

    @property
    def home(self) -> object:
        return self._loop

    @property
    def debug(self) -> bool:
        return self._loop.get_debug()

    # ---- waiters

    def new_waiter(self) -> asyncio.Future[bool]:
        return self._loop.create_future()

    def wake(self, waiter: asyncio.Future[bool]) -> None:
        # Cancelled in this very turn, or expired: the task goes on by itself.
        if not waiter.done():
            waiter.set_result(True)

    def park(self, waiter: asyncio.Future[bool]) -> Awaitable[object]:
        return waiter

    async def park_for(self, waiter: asyncio.Future[bool], seconds: float) -> bool:
        timer = self._loop.call_later(seconds, _expire, waiter)
        try:
            return await waiter
        finally:
            timer.cancel()

    async def join(self, target: Joinable) -> None:
        waiter = self._loop.create_future()
        target.attach(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            remaining = target.detach(waiter)
            if remaining is not None:
                gate, grace = remaining
                settled, _ = await self.hold(
                    gate, grace
                )  # further cancellations are absorbed: the first one stands
                if not settled:
                    target.give_up()
            raise

    async def hold(
        self, gate: Waitable, seconds: float | None, *, patient: bool = True
    ) -> tuple[bool, BaseException | None]:
        first: BaseException | None = None
        limit = None if seconds is None else self._loop.time() + seconds
        with _shield() if patient else nullcontext():
            while not gate.is_open:
                remaining = None if limit is None else limit - self._loop.time()
                if remaining is not None and remaining <= 0:
                    break
                try:
                    await self._once(gate, remaining)
                except asyncio.CancelledError as cancelled:
                    first = first or cancelled
                    if not patient:
                        break
        return gate.is_open, first or await self._kept_away()

    @staticmethod
    async def _kept_away() -> BaseException | None:
        """The cancellation of an anyio scope that the shield has kept away."""
        if _ANYIO not in sys.modules:
            return None
        from anyio.lowlevel import checkpoint_if_cancelled

        try:
            await checkpoint_if_cancelled()
        except asyncio.CancelledError as cancelled:
            return cancelled
        return None

    async def _once(self, gate: Waitable, seconds: float | None) -> None:
        waiter = self._loop.create_future()
        gate.add(waiter)
        timer = None if seconds is None else self._loop.call_later(seconds, _expire, waiter)
        try:
            await waiter
        finally:
            gate.discard(waiter)
            if timer is not None:
                timer.cancel()

    async def checkpoint(self) -> None:
        await asyncio.sleep(0)

    # ---- the loop

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._loop.add_reader(fd, callback)

    def unwatch(self, fd: int) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(fd)

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> None:
        self._loop.call_soon(callback, *args, context=context)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Cancellable:
        return self._loop.call_later(seconds, callback)

    def owns(self, awaitable: object) -> bool:
        return not isinstance(awaitable, asyncio.Future) or awaitable.get_loop() is self._loop

    def follow(
        self, awaitable: Awaitable[object], callback: Callable[[BaseException | None], None]
    ) -> Callable[[], None]:
        # A future of the caller's is only watched: it is not ours to cancel.
        future: asyncio.Future[Any] = asyncio.ensure_future(awaitable, loop=self._loop)
        ours = future is not awaitable
        dropped = False

        def done(ended: asyncio.Future[Any]) -> None:
            self._tasks.discard(ended)
            if dropped:
                return  # this call was on its way already
            callback(asyncio.CancelledError() if ended.cancelled() else ended.exception())

        def drop() -> None:
            nonlocal dropped
            dropped = True
            future.remove_done_callback(done)
            if ours:
                future.add_done_callback(self._finished)
                future.cancel()
            else:
                self._tasks.discard(future)

        self._tasks.add(future)
        future.add_done_callback(done)
        return drop

    def _finished(self, ended: asyncio.Future[Any]) -> None:
        self._tasks.discard(ended)
        if not ended.cancelled() and ended.exception() is not None:
            self.report("what a stopped operation was waiting for has failed", ended.exception())

    def report(self, message: str, error: BaseException | None, **details: object) -> None:
        context: dict[str, Any] = {"message": f"hixl_aio: {message}", **details}
        if error is not None:
            context["exception"] = error
        self._loop.call_exception_handler(context)
