"""Where the time of one put goes: the loop's thread, the copy, and handing over between threads."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Final

from hixl_aio.bench.floors import memcpy
from hixl_aio.bench.measure import Case, Measure, Timed
from hixl_aio.bench.stage import Stage
from hixl_aio.bench.transfers import puts
from hixl_aio.bench.workload import KIB, MIB, Prepare, Workload, size_text

__all__ = ("shares",)

_SIZES: Final = (128, 128 * KIB, 16 * MIB)
_PARTS: Final = ("loop", "copy", "handover")
_WHOLE: Final = "whole"
# Nothing is copied within the call, so that each size goes the whole way.
_QUEUED: Final = {"inline_nbytes": 0}


def shares() -> Iterator[Workload]:
    """Parts of a put that is handed to a copy thread: the ratio is a part's share of the whole.

    *loop* is processor time of the loop's thread: our Python, and its system calls. *copy* is a memcpy of
    that size. *handover* is the rest: waking the copy thread, and waking the loop.
    """
    for nbytes in _SIZES:
        for part in _PARTS:
            yield Workload(
                name=f"share.{size_text(nbytes)}.{part}",
                prepare=_prepare(nbytes, part),
                params={"link": "shm", "nbytes": nbytes},
                quick=True,
            )


@dataclass(frozen=True, slots=True)
class _Loop:
    """Processor time of this thread, instead of time."""

    whole: Timed

    async def calibrate(self, seconds: float) -> int:
        return await self.whole.calibrate(seconds)

    async def round(self, repetitions: int) -> float:
        began = thread_time()
        await self.whole.run(repetitions)
        return (thread_time() - began) / repetitions

    async def singles(self, seconds: float, most: int) -> Sequence[float]:
        return ()


@dataclass(frozen=True, slots=True)
class _Handover:
    """What is left of the whole without the thread's processor time and the copy."""

    whole: Timed
    copy: Timed
    copies: list[int]

    async def calibrate(self, seconds: float) -> int:
        self.copies[:] = [await self.copy.calibrate(seconds)]
        return await self.whole.calibrate(seconds)

    async def round(self, repetitions: int) -> float:
        spent, began = thread_time(), perf_counter()
        await self.whole.run(repetitions)
        rest = (perf_counter() - began) - (thread_time() - spent)
        return max(0.0, rest / repetitions - await self.copy.round(self.copies[0]))

    async def singles(self, seconds: float, most: int) -> Sequence[float]:
        return ()


def _prepare(nbytes: int, part: str) -> Prepare:
    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        span = await stage.span("shm", nbytes, _QUEUED)
        whole = puts((await stage.side("shm", _QUEUED)).engine, span)
        assert span.mapped_address is not None
        plain = memcpy(span.mapped_address, span.local_address, nbytes)
        work: Measure
        if part == "loop":
            work = _Loop(whole)
        elif part == "copy":
            work = plain
        else:
            work = _Handover(whole, plain, [])
        yield Case(work, {_WHOLE: whole})

    return prepare
