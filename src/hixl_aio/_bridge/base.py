"""The seam to event loops.

A *waiter* is whatever a bridge parks a task on: private to one task, woken at most once, on the loop's thread
(INV-4). A bridge belongs to one loop and is made when an engine opens on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Protocol, TypeAlias

__all__ = ("Bridge", "Cancellable", "Joinable", "Waitable", "Waiter", "weightier")

Waiter: TypeAlias = Any


def weightier(first: BaseException | None, later: BaseException | None) -> BaseException | None:
    """Of two interruptions of one shielded wait, the one to raise at its end.

    A cancellation stands for as long as its scope or comes again; Ctrl-C is told once, and must not get lost.
    """
    if first is None or (isinstance(later, KeyboardInterrupt) and not isinstance(first, KeyboardInterrupt)):
        return later
    return first


class Cancellable(Protocol):
    """A timer or a callback that can be called off."""

    def cancel(self) -> None:
        """Call it off; harmless when it has run."""


class Waitable(Protocol):
    """Something that becomes true once."""

    @property
    def is_open(self) -> bool:
        """It is true."""

    def add(self, waiter: Waiter) -> bool:
        """Wake `waiter` when it becomes true; False if it is."""

    def discard(self, waiter: Waiter) -> None:
        """Forget a waiter."""


class Joinable(Protocol):
    """An operation as a task that awaits it sees it."""

    def attach(self, waiter: Waiter) -> None:
        """Wake `waiter` when the result is known."""

    def detach(self, waiter: Waiter) -> tuple[Waitable, float] | None:
        """The task was cancelled.

        Returns:
            What it has to wait for before it may go, and for how long at most; None if it may go at once.
        """

    def give_up(self) -> None:
        """That time is over, and the memory is not settled."""


class Bridge(Protocol):
    """One event loop."""

    name: str
    free_awaits: int
    """How many awaits in a row of what is done need not suspend; 0 where every await is a checkpoint."""
    free_nbytes: int
    """How many bytes may be copied within calls before such an await suspends after all."""

    @property
    def home(self) -> object:
        """The identity of the loop: what `current` returns on it."""

    @property
    def debug(self) -> bool:
        """The loop runs in debug mode."""

    def current(self) -> object:
        """The loop that runs on this thread, or None. Costs next to nothing: the hot path calls it."""

    # ---- waiters

    def new_waiter(self) -> Waiter:
        """A waiter for the task that runs now."""

    def wake(self, waiter: Waiter) -> None:
        """Let the task of that waiter go on; harmless when it has gone."""

    def park(self, waiter: Waiter) -> Awaitable[object]:
        """Sleep until woken. A plain wait: cancelling ends it."""

    async def park_for(self, waiter: Waiter, seconds: float) -> bool:
        """Sleep until woken, at most so long; True if woken."""

    async def join(self, target: Joinable) -> None:
        """Sleep until the result is known.

        Cancellation: the first one is kept, further ones are absorbed until the memory is settled or the
        grace is over; then the first is raised.
        """

    async def hold(
        self, gate: Waitable, seconds: float | None, *, patient: bool = True
    ) -> tuple[bool, BaseException | None]:
        """Sleep until the gate is open, at most so long, whatever is cancelled meanwhile.

        Args:
            gate: what is waited for.
            seconds: for how long at most; None for no limit.
            patient: go on waiting after a cancellation, instead of ending there.

        Returns:
            Is it open; and the first cancellation that arrived, or that a shield kept away, which the caller
            must raise when it has cleaned up.
        """

    async def checkpoint(self) -> None:
        """Let others run."""

    # ---- the loop

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back whenever the descriptor is readable."""

    def unwatch(self, fd: int) -> None:
        """Stop that; harmless when the loop is closed."""

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> None:
        """Call in the next turn, on the loop's thread."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Cancellable:
        """Call after so long."""

    def owns(self, awaitable: object) -> bool:
        """It can be awaited on this loop: it is not bound to another one."""

    def follow(
        self, awaitable: Awaitable[object], callback: Callable[[BaseException | None], None]
    ) -> Callable[[], None]:
        """Await something on the side and call back with what it raised.

        Returns:
            A function that ends this; the callback is not called afterwards.
        """

    def report(self, message: str, error: BaseException | None, **details: object) -> None:
        """Tell about a failure that nobody else will hear of: by the loop's exception handler, or a log."""
