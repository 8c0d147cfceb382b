"""Making regions, touching them first, and copying into them: with and without what prepares pages."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, Final

from hixl_aio import EngineOptions
from hixl_aio.bench.floors import copies, memcpy
from hixl_aio.bench.measure import Case, Sampled, Timed
from hixl_aio.bench.places import address_of
from hixl_aio.bench.resources import resident_nbytes
from hixl_aio.bench.stage import Stage
from hixl_aio.bench.transfers import puts
from hixl_aio.bench.workload import MIB, Prepare, Workload

__all__ = ("pages",)

_SIZE: Final = 64 * MIB
_QUICK_SIZE: Final = 8 * MIB
_TOUCHED: Final = "memcpy into memory that was touched"
_MEMFD: Final = "memfd, reserved and mapped"
_PATIENCE: Final = 200  # looks, a millisecond apart, at whether a mapping was populated


def _ways() -> dict[str, Mapping[str, Any]]:
    """The ways that this version offers, as options of engines."""
    ways: dict[str, Mapping[str, Any]] = {"plain": {}}
    for name in ("populate", "huge_pages"):
        if name in EngineOptions.__dataclass_fields__:
            ways[name] = {name: True}
    return ways


def pages() -> Iterator[Workload]:
    """`make`: allocate and close; `first`: the first put into a new region of a peer; `copy`: a later one."""
    for way, options in _ways().items():
        for step, prepare in (("make", _prepare_make), ("first", _prepare_first), ("copy", _prepare_copy)):
            yield Workload(
                name=f"pages.{step}.{way}",
                prepare=prepare(options),
                params={"link": "shm", "way": way},
                quick=True,
            )


def _size(stage: Stage) -> int:
    return _QUICK_SIZE if stage.quick else _SIZE


def _prepare_make(options: Mapping[str, Any]) -> Prepare:
    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        engine, nbytes = (await stage.side("shm", options)).engine, _size(stage)

        async def make(repetitions: int) -> None:
            for _ in range(repetitions):
                await (await engine.allocate(nbytes)).aclose()

        yield Case(Timed(make), {_MEMFD: _memfd(nbytes)})

    return prepare


def _memfd(nbytes: int) -> Timed:
    async def run(repetitions: int) -> None:
        for _ in range(repetitions):
            fd = os.memfd_create("bench", os.MFD_CLOEXEC)
            try:
                os.posix_fallocate(fd, 0, nbytes)
                mmap.mmap(fd, nbytes).close()
            finally:
                os.close(fd)

    return Timed(run)


def _prepare_first(options: Mapping[str, Any]) -> Prepare:
    """Each round has a new region in the target; where it is mapped ahead, after that."""

    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        side, nbytes = await stage.side("shm", options), _size(stage)
        source, other = await stage.memory(side, nbytes), await stage.memory(side, nbytes)

        async def first() -> Sequence[float]:
            before = resident_nbytes()
            await stage.pair.ask("region", label="new", nbytes=nbytes, shared=True)
            try:
                await side.peer.refresh()
                if options.get("populate"):
                    await _until_resident(before + nbytes * 9 // 10)
                began = perf_counter()
                await side.engine.put(source, side.peer.region("new"))
                return [perf_counter() - began]
            finally:
                await stage.pair.ask("drop", label="new")

        yield Case(Sampled(first), {_TOUCHED: memcpy(address_of(other), address_of(source), nbytes)})
        for region in (source, other):
            await region.aclose()

    return prepare


async def _until_resident(nbytes: int) -> None:
    for _ in range(_PATIENCE):
        if resident_nbytes() >= nbytes:
            return
        await asyncio.sleep(0.001)


def _prepare_copy(options: Mapping[str, Any]) -> Prepare:
    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        nbytes = _size(stage)
        span = await stage.span("shm", nbytes, options)
        assert span.mapped_address is not None
        floors = copies(span.mapped_address, span.local_address, nbytes, cores=stage.cores)
        yield Case(puts((await stage.side("shm", options)).engine, span), {**floors})

    return prepare
