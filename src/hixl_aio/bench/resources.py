"""What a process holds and spends: memory, the gaps of a ticker, many regions at once."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from time import perf_counter
from typing import Final

from hixl_aio import Access, Engine, MemoryRegion

__all__ = ("Load", "Ticker", "make_regions", "resident_nbytes")

_TICK: Final = 0.001
_AT_ONCE: Final = 256  # regions asked for before the first one is awaited


def resident_nbytes() -> int:
    """Bytes of memory that this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Load:
    """How busy others keep the processors while we run."""

    def __init__(self) -> None:
        self._began = perf_counter()
        self._before = _busy_seconds() - _own_seconds()

    def others(self) -> float:
        """Cores that were busy with something else since, on average. Children count once they have ended."""
        spent = _busy_seconds() - _own_seconds() - self._before
        return max(0.0, spent / (perf_counter() - self._began))


def _busy_seconds() -> float:
    """Of all processors, since they run: not idle, not waiting for a disk."""
    user, nice, system, _, _, irq, softirq, steal, *_ = (
        Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    ticks = sum(map(int, (user, nice, system, irq, softirq, steal)))
    return ticks / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


class Ticker:
    """A task that wants to run every millisecond, and notes how far apart its turns were."""

    def __init__(self) -> None:
        self._gaps: list[float] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running loop."""
        self._gaps = []
        self._task = asyncio.create_task(self._tick())

    async def stop(self) -> list[float]:
        """End. The gaps in seconds, at least one."""
        task, self._task = self._task, None
        assert task is not None
        task.cancel()
        await asyncio.wait([task])
        return self._gaps or [0.0]

    async def _tick(self) -> None:
        gaps, last = self._gaps, perf_counter()
        while True:
            await asyncio.sleep(_TICK)
            now = perf_counter()
            gaps.append(now - last)
            last = now


async def make_regions(engine: Engine, count: int, nbytes: int, prefix: str = "") -> list[MemoryRegion]:
    """So many regions of this size, labelled by a prefix and their numbers, for peers to read and write."""
    made: list[MemoryRegion] = []
    while len(made) < count:
        some = range(len(made), min(count, len(made) + _AT_ONCE))
        asked = [
            engine.allocate(nbytes, label=f"{prefix}{number}", access=Access.READ_WRITE) for number in some
        ]
        made += await asyncio.gather(*asked)
    return made
