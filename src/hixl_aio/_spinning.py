"""Looking for news instead of sleeping, for a bounded time: what a wake-up across cores costs is saved.

The loop is not stalled: it goes round with nothing to wait for, and everything else that is ready runs.
"""

from __future__ import annotations

from os import sched_yield
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hixl_aio._runtime import Runtime

__all__ = ("Spinner",)


class Spinner:
    """The looks of one engine between two sleeps of its loop."""

    __slots__ = ("_runtime", "_spinning", "_until", "turns")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._spinning = False
        self._until = 0.0
        self.turns = 0

    def expect(self, seconds: float) -> None:
        """A task is about to wait for news: look for it for so long, or until some has come."""
        self._until = monotonic() + seconds
        if not self._spinning:
            self._spinning = True
            self._runtime.bridge.call_soon(self._look)

    def _look(self) -> None:
        self._spinning = False
        runtime = self._runtime
        if not runtime.life.is_live:
            return
        self.turns += 1
        runtime.drain()
        if monotonic() < self._until:
            self._spinning = True
            sched_yield()  # who is to bring the news may share our core
            runtime.bridge.call_soon(self._look)

    def rest(self) -> None:
        """News has come: whoever waits for more will say so."""
        self._until = 0.0
