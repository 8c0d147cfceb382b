"""Puts and gets of one run, over all sizes and links; and the sizes that people compare."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, TypeVar

from hixl_aio import Completion, Engine
from hixl_aio.bench.floors import (
    HANDED_OVER,
    HANDED_OVER_STREAMING,
    awaited_bare_copy,
    awaited_copy,
    awaited_memmove,
    copies,
    copies_handed_over,
    processes,
)
from hixl_aio.bench.measure import Case, Measure, Timed
from hixl_aio.bench.places import view_at
from hixl_aio.bench.stage import INPROC, LINKS, Span, Stage
from hixl_aio.bench.workload import GIB, KIB, MIB, Prepare, Target, Workload, size_text

__all__ = ("AWAITED", "SIZES_OF_THE_TABLE", "floors_of", "gets", "puts", "transfers")

_POWERS: Final = tuple(8 << 2 * power for power in range(14))
_SIZES: Final = tuple(sorted({*_POWERS, 16 * MIB, 256 * MIB, GIB}))
_QUICK: Final = frozenset({8, 128, 128 * KIB, 16 * MIB})
AWAITED: Final = "call + memcpy + await"
_CTYPES: Final = "ctypes.memmove + await"
_BARE: Final = "bare call + memcpy + await"
_HANDED_OVER: Final = MIB
_SMALL: Final = 64 * KIB  # up to here the call and the await weigh
_From = TypeVar("_From")
_To = TypeVar("_To")
SIZES_OF_THE_TABLE: Final = (128, 128 * KIB, 128 * MIB, 256 * MIB, GIB)


def transfers() -> Iterator[Workload]:
    """All of them."""
    for link in (*LINKS, INPROC):
        for kind in ("put", "get"):
            for nbytes in sorted(_QUICK) if link == INPROC else _SIZES:
                yield Workload(
                    name=f"{kind}.{link}.{size_text(nbytes)}",
                    prepare=_prepare(kind, link, nbytes),
                    params={"link": link, "nbytes": nbytes},
                    target=_target(kind, link, nbytes),
                    quick=nbytes in _QUICK,
                )


def _target(kind: str, link: str, nbytes: int) -> Target | None:
    if link == "shm" and nbytes == 128:
        return Target(3.0, against=(AWAITED,))
    if link == "shm" and kind == "put" and nbytes == 128 * KIB:
        return Target(1.3, 5e-6, against=("memcpy",))
    if link == "shm" and kind == "put" and nbytes == 16 * MIB:
        # The two wake-ups of a copy that does not stall the loop are a tenth of the whole here.
        return Target(1 / 0.95, against=(HANDED_OVER, HANDED_OVER_STREAMING))
    if link == "shm" and kind == "put" and nbytes in (128 * MIB, GIB):
        return Target(1 / 0.95, against=("memcpy", "memcpy, 2 threads", "streaming", "streaming, 2 threads"))
    if link == "cma" and kind == "put" and nbytes in (128 * MIB, GIB):
        return Target(1 / 0.95, against=("process_vm_writev",))
    return None


def _prepare(kind: str, link: str, nbytes: int) -> Prepare:
    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        span = await stage.span(link, nbytes)
        engine = (await stage.side(link)).engine
        floors, others = floors_of(stage, span, nbytes, is_get=kind == "get")
        work = puts(engine, span) if kind == "put" else gets(engine, span)
        yield Case(work, floors, others)

    return prepare


def puts(engine: Engine, span: Span) -> Timed:
    """One put after the other, each awaited."""
    return _awaited(engine.put, span.local, span.remote)


def gets(engine: Engine, span: Span) -> Timed:
    """One get after the other, each awaited."""
    return _awaited(engine.get, span.remote, span.local)


def _awaited(move: Callable[[_From, _To], Completion], source: _From, target: _To) -> Timed:
    async def run(repetitions: int) -> None:
        for _ in range(repetitions):
            await move(source, target)

    return Timed(run)


def floors_of(
    stage: Stage, span: Span, nbytes: int, *, is_get: bool
) -> tuple[dict[str, Measure], dict[str, Measure]]:
    """Floors, and what else is worth a look."""
    if span.mapped_address is None:
        here, there, pid = span.local_address, span.remote_address, stage.pair.pid
        return {**processes(pid, there, here, nbytes, read=is_get, cores=stage.cores)}, {}
    ends = span.mapped_address, span.local_address
    to, source = reversed(ends) if is_get else ends
    if nbytes > _SMALL:
        found = copies(to, source, nbytes, cores=stage.cores)
        if nbytes >= _HANDED_OVER:
            found |= copies_handed_over(to, source, nbytes, cores=stage.cores)
        return {**found}, {}
    floor = awaited_copy(view_at(to, nbytes), view_at(source, nbytes))
    others: dict[str, Measure] = {
        _BARE: awaited_bare_copy(to, source, nbytes),
        _CTYPES: awaited_memmove(to, source, nbytes),
    }
    return {AWAITED: floor}, others
