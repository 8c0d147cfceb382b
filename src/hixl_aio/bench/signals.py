"""Signals between the two processes: how long until the waiter's task runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

from hixl_aio import Access, Engine
from hixl_aio.bench.measure import Case, Measure, Timed
from hixl_aio.bench.stage import LINKS, NO_OPTIONS, Side, Span, Stage
from hixl_aio.bench.workload import Prepare, Target, Workload

__all__ = ("signals",)

_SMALL: Final = 128
_INBOX: Final = "inbox"
LOOPED: Final = "eventfd through both loops"
_SPIN: Final[Mapping[str, Any]] = {"spin": 0.001}
_BARE: Final = "eventfd, blocking"


def signals() -> Iterator[Workload]:
    """A signal there and back; and half of that with a put each way, until the waiter runs."""
    yield Workload(
        name="signal.roundtrip", prepare=_prepare_alone, params={"link": "shm", "nbytes": 0}, quick=True
    )
    ways = {link: (link, NO_OPTIONS) for link in LINKS} | {"shm-spin": ("shm", _SPIN)}
    for name, (link, options) in ways.items():
        yield Workload(
            name=f"signal.wake.{name}",
            prepare=_prepare_with_put(link, options),
            params={"link": link, "nbytes": _SMALL, **options},
            target=Target(1.3, against=(LOOPED,)) if name == "shm" else None,
            quick=True,
        )


@contextlib.asynccontextmanager
async def _prepare_alone(stage: Stage) -> AsyncIterator[Case]:
    side = await stage.side("shm")
    engine, peer = side.engine, side.peer
    looped, bare = stage.pair.looped_ping(), stage.pair.bare_ping()

    async def run(repetitions: int) -> None:
        signal, wait = engine.signal, engine.wait_signal
        for _ in range(repetitions):
            signal(peer, "ping")
            await wait("pong")

    async with _answered(stage, side, with_put=False):
        yield Case(Timed(run), {LOOPED: Timed(looped.run)}, {_BARE: Timed(bare.run)})


def _prepare_with_put(link: str, options: Mapping[str, Any]) -> Prepare:
    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        span = await stage.span(link, _SMALL, options)
        side = await stage.side(link, options)
        others: dict[str, Measure] = {_BARE: stage.pair.bare_ping()}
        async with _answered(stage, side, with_put=True):
            yield Case(_puts(side.engine, span), {LOOPED: stage.pair.looped_ping()}, others)

    return prepare


def _puts(engine: Engine, span: Span) -> Timed:
    async def run(repetitions: int) -> None:
        put, wait, source, target = engine.put, engine.wait_signal, span.local, span.remote
        for _ in range(repetitions):
            put(source, target, signal="ping")
            await wait("pong")

    return Timed(run, per=2)


@contextlib.asynccontextmanager
async def _answered(stage: Stage, side: Side, *, with_put: bool) -> AsyncIterator[None]:
    """The target answers signals in the block, by a put into a region of ours or without."""
    inbox = await stage.memory(side, _SMALL, label=_INBOX, access=Access.WRITE)
    try:
        await stage.pair.ask("echo", label=_INBOX, with_put=with_put)
        yield
    finally:
        await stage.pair.ask("quiet")
        await inbox.aclose()
