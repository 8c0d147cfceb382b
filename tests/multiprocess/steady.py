"""What goes on beside what fails."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Self


class Steady:
    """Does the same over and over beside what fails, and must never fail itself."""

    def __init__(self, once: Callable[[], Awaitable[None]]) -> None:
        self.seconds: list[float] = []  # how long each time took
        self._once = once
        self._target: tuple[int, asyncio.Event] | None = None
        self._task = asyncio.ensure_future(self._run())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Whatever went wrong in it is raised."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            started = time.perf_counter()
            await self._once()
            self.seconds.append(time.perf_counter() - started)
            if self._target is not None and len(self.seconds) >= self._target[0]:
                self._target[1].set()
                self._target = None
            await asyncio.sleep(0)

    async def goes_on(self, count: int) -> None:
        """It is done so often again."""
        reached = asyncio.Event()
        self._target = (len(self.seconds) + count, reached)
        waiting = asyncio.ensure_future(reached.wait())
        await asyncio.wait((waiting, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await self._task
