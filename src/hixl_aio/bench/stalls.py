"""How long large transfers keep a loop from its other work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from time import perf_counter
from typing import Final

from hixl_aio.bench.measure import Case, Sampled
from hixl_aio.bench.pair import Pair
from hixl_aio.bench.resources import Ticker
from hixl_aio.bench.stage import Stage
from hixl_aio.bench.workload import MIB, Prepare, Target, Workload

__all__ = ("stalls",)

_SIZE: Final = 256 * MIB
_QUICK_SIZE: Final = 16 * MIB
_SECONDS: Final = 0.4
_QUICK_SECONDS: Final = 0.06
_IDLE: Final = "the same ticker, idle"
_P99: Final = 0.99


def stalls() -> Iterator[Workload]:
    """The 99th percentile of the gaps of a ticker of 1 ms, while puts run back to back."""
    for threads in (1, 2):
        for where in ("initiator", "target"):
            yield Workload(
                name=f"stall.{where}.{threads}",
                prepare=_prepare(where, threads),
                params={"link": "shm", "copy_threads": threads},
                target=Target(1.0, 1e-3, against=(_IDLE,)) if threads == 1 else None,
                quick=True,
                weight=2.0,
            )


def _prepare(where: str, threads: int) -> Prepare:
    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        nbytes, seconds = (_QUICK_SIZE, _QUICK_SECONDS) if stage.quick else (_SIZE, _SECONDS)
        # Both engines: whose threads copy is the library's business.
        span = await stage.span("shm", nbytes, {"copy_threads": threads})
        engine = (await stage.side("shm", {"copy_threads": threads})).engine
        ticker = _ticker(stage, where)

        async def busy() -> Sequence[float]:
            await ticker.start()
            end = perf_counter() + seconds
            while perf_counter() < end:
                await engine.put(span.local, span.remote)
            return await ticker.stop()

        async def idle() -> Sequence[float]:
            await ticker.start()
            await asyncio.sleep(seconds)
            return await ticker.stop()

        yield Case(Sampled(busy, _P99), {_IDLE: Sampled(idle, _P99)})

    return prepare


class _Here:
    """A ticker in this process."""

    def __init__(self) -> None:
        self._ticker = Ticker()

    async def start(self) -> None:
        self._ticker.start()

    async def stop(self) -> Sequence[float]:
        return await self._ticker.stop()


class _There:
    """One in the target."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    async def start(self) -> None:
        await self._pair.ask("tick")

    async def stop(self) -> Sequence[float]:
        gaps: list[float] = await self._pair.ask("gaps")
        return gaps


def _ticker(stage: Stage, where: str) -> _Here | _There:
    return _Here() if where == "initiator" else _There(stage.pair)
