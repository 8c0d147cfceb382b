"""Many small puts at once, batches of blocks, and the shapes that people compare."""

from __future__ import annotations

import contextlib
import random
from array import array
from collections.abc import AsyncIterator, Iterator
from typing import Final

from hixl_aio import Engine, PutBlocks
from hixl_aio.bench import _floors
from hixl_aio.bench.floors import done_copies, processes
from hixl_aio.bench.measure import Case, Measure, Timed
from hixl_aio.bench.places import view_at
from hixl_aio.bench.stage import Span, Stage
from hixl_aio.bench.transfers import AWAITED, SIZES_OF_THE_TABLE, floors_of, puts
from hixl_aio.bench.workload import KIB, Prepare, Target, Workload, size_text

__all__ = ("batches", "rates", "table")

_SMALL: Final = 128
_BLOCK: Final = 4 * KIB
_OUTSTANDING: Final = (1, 8, 64, 1024)
_BLOCKS: Final = (100, 1000, 10_000, 100_000)
_SCATTERED: Final = "memcpy of each block"


# ---- operations a second


def rates() -> Iterator[Workload]:
    """Puts of 128 bytes, issued in a loop and then awaited."""
    for link in ("shm", "cma"):
        for count in _OUTSTANDING:
            yield Workload(
                name=f"rate.{link}.{count}",
                prepare=_prepare_rate(link, count),
                params={"link": link, "nbytes": _SMALL, "outstanding": count},
                target=Target(2.5, against=(AWAITED,)) if link == "shm" and count == 64 else None,
                quick=True,
            )


def _prepare_rate(link: str, count: int) -> Prepare:
    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        span = await stage.span(link, _SMALL)
        engine = (await stage.side(link)).engine
        work = Timed(many_puts(engine, span, count).run, per=count)
        floors: dict[str, Measure]
        if span.mapped_address is None:
            pid, there, here = stage.pair.pid, span.remote_address, span.local_address
            floors = {**processes(pid, there, here, _SMALL, read=False, cores=1)}
        else:
            to, source = view_at(span.mapped_address, _SMALL), view_at(span.local_address, _SMALL)
            floors = {AWAITED: Timed(done_copies(to, source, count), per=count)}
        yield Case(work, floors)

    return prepare


def many_puts(engine: Engine, span: Span, count: int) -> Timed:
    """So many puts at once, then awaited one after the other."""

    async def run(repetitions: int) -> None:
        put, source, target = engine.put, span.local, span.remote
        for _ in range(repetitions):
            for operation in [put(source, target) for _ in range(count)]:
                await operation

    return Timed(run, per=count)


# ---- batches


_TARGET: Final = Target(1.3, against=(_SCATTERED,))


def batches() -> Iterator[Workload]:
    """Blocks of 4 KiB, whose offsets are given as arrays."""
    for order in ("adjacent", "shuffled"):
        for count in _BLOCKS:
            yield Workload(
                name=f"batch.{order}.{count}",
                prepare=_prepare_batch(order, count),
                params={"link": "shm", "nbytes": count * _BLOCK, "blocks": count},
                target=_TARGET if (order, count) == ("shuffled", 100_000) else None,
                quick=count <= 1000,
            )


def _offsets(order: str, count: int) -> tuple[array[int], array[int]]:
    places = [number * _BLOCK for number in range(count)]
    sources, targets = array("q", places), array("q", places)
    if order == "shuffled":
        generator = random.Random(count)
        for each in (sources, targets):
            generator.shuffle(each)
    return sources, targets


def _prepare_batch(order: str, count: int) -> Prepare:
    nbytes = count * _BLOCK

    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        span = await stage.span("shm", nbytes)
        engine = (await stage.side("shm")).engine
        sources, targets = _offsets(order, count)
        floors: dict[str, Measure] = {_SCATTERED: _scattered(span, sources, targets)}
        if order == "adjacent":
            floors |= floors_of(stage, span, nbytes, is_get=False)[0]
        yield Case(_batches(engine, span, sources, targets), floors)

    return prepare


def _batches(engine: Engine, span: Span, sources: array[int], targets: array[int]) -> Timed:
    async def run(repetitions: int) -> None:
        for _ in range(repetitions):
            await engine.batch([PutBlocks(span.local, span.remote, sources, targets, _BLOCK)])

    return Timed(run)


def _scattered(span: Span, sources: array[int], targets: array[int]) -> Timed:
    to, source = span.mapped_address, span.local_address
    assert to is not None

    async def run(repetitions: int) -> None:
        _floors.copy_blocks(to, source, targets, sources, _BLOCK, repetitions)

    return Timed(run)


# ---- the shapes that people compare


def table() -> Iterator[Workload]:
    """What articles about transfer libraries measure, beside what one would write without one."""
    for nbytes in SIZES_OF_THE_TABLE:
        yield Workload(
            name=f"table.{size_text(nbytes)}",
            prepare=_prepare_single(nbytes),
            params={"link": "shm", "nbytes": nbytes},
            quick=nbytes <= 128 * KIB,
        )
    for form in ("batch", "calls"):
        yield Workload(
            name=f"table.128x4KiB-{form}",
            prepare=_prepare_many(form),
            params={"link": "shm", "nbytes": 128 * _BLOCK, "blocks": 128},
            target=Target(1.5, 10e-6, against=(_SCATTERED,)) if form == "batch" else None,
            quick=True,
        )


def _prepare_single(nbytes: int) -> Prepare:
    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        span = await stage.span("shm", nbytes)
        engine = (await stage.side("shm")).engine
        floors, others = floors_of(stage, span, nbytes, is_get=False)
        yield Case(puts(engine, span), floors, {**others, **stage.socket_floors(nbytes)})

    return prepare


def _prepare_many(form: str) -> Prepare:
    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        nbytes = 128 * _BLOCK
        span = await stage.span("shm", nbytes)
        engine = (await stage.side("shm")).engine
        places = array("q", range(0, nbytes, _BLOCK))
        work = _batches(engine, span, places, places) if form == "batch" else _calls(engine, span, places)
        yield Case(work, {_SCATTERED: _scattered(span, places, places)}, stage.socket_floors(nbytes))

    return prepare


def _calls(engine: Engine, span: Span, places: array[int]) -> Timed:
    source, target = span.local.region, span.remote.region
    views = [(source[place : place + _BLOCK], target[place : place + _BLOCK]) for place in places]

    async def run(repetitions: int) -> None:
        put = engine.put
        for _ in range(repetitions):
            for operation in [put(one, other) for one, other in views]:
                await operation

    return Timed(run)
