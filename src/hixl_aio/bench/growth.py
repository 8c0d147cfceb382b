"""What an operation costs when there is much of everything, and how much memory that takes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from itertools import cycle, islice
from typing import Final

from hixl_aio import Engine, LocalView, RemoteView
from hixl_aio.bench.measure import Case, Known, Timed
from hixl_aio.bench.operations import many_puts
from hixl_aio.bench.resources import make_regions, resident_nbytes
from hixl_aio.bench.stage import Stage
from hixl_aio.bench.transfers import puts
from hixl_aio.bench.workload import Prepare, Target, Workload

__all__ = ("growth",)

_SMALL: Final = 128
_INBOX: Final = "inbox"
_ONE: Final = "with one"
_TARGET: Final = Target(1.2, against=(_ONE,))
_PEERS: Final = (16, 256)
_REGIONS: Final = (1000, 100_000)
_OUTSTANDING: Final = (1000, 100_000)
# A line that holds them all; the slots of native code are for what is posted.
_LONG_LINE: Final = {"line_capacity": 1 << 18}


def growth() -> Iterator[Workload]:
    """Puts of 128 bytes among many peers, regions and operations; and memory for one of each."""
    for count in _PEERS:
        yield _workload("peers", count, _prepare_peers(count), quick=count == _PEERS[0])
    for count in _REGIONS:
        yield _workload("regions", count, _prepare_regions(count), quick=count == _REGIONS[0])
    for count in _OUTSTANDING:
        yield _workload("outstanding", count, _prepare_outstanding(count), quick=count == _OUTSTANDING[0])
    for name, prepare in (
        ("peer", _prepare_peer_memory),
        ("region", _prepare_region_memory),
        ("operation", _prepare_operation_memory),
    ):
        yield Workload(name=f"memory.{name}", prepare=prepare, unit="B", quick=True, once=True, weight=0.0)


def _workload(kind: str, count: int, prepare: Prepare, *, quick: bool) -> Workload:
    target = None if quick else _TARGET
    params: dict[str, int | str] = {kind: count, "nbytes": _SMALL}
    return Workload(f"growth.{kind}.{count}", prepare, params, target, quick=quick)


# ---- peers


async def _connected(engine: Engine, addresses: list[str]) -> list[RemoteView]:
    """The inboxes of the engines at these addresses."""
    peers = [await engine.connect(address) for address in addresses]
    return [peer.region(_INBOX)[0:_SMALL] for peer in peers]


def _in_turn(engine: Engine, source: LocalView, targets: list[RemoteView]) -> Timed:
    """Puts into all of them, one after the other."""
    turn = cycle(targets)

    async def run(repetitions: int) -> None:
        put = engine.put
        for target in islice(turn, repetitions):
            await put(source, target)

    return Timed(run)


def _prepare_peers(count: int) -> Prepare:
    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        await stage.clear()
        async with Engine() as many, Engine() as single, stage.crowd(count, _SMALL) as addresses:
            source, other = [await each.allocate(_SMALL) for each in (many, single)]
            work = _in_turn(many, source[0:_SMALL], await _connected(many, addresses))
            floor = _in_turn(single, other[0:_SMALL], await _connected(single, addresses[:1]))
            await work.run(count)  # the first put to each peer maps its memory
            yield Case(work, {_ONE: floor})

    return prepare


# ---- regions


def _prepare_regions(count: int) -> Prepare:
    """So many in the target, and one put into each in turn."""

    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        side = await stage.side("shm", {"max_regions": 1 << 18})
        await stage.pair.ask("regions", count=count, nbytes=_SMALL)
        await side.peer.refresh()
        async with await side.engine.allocate(_SMALL) as region:
            source = region[0:_SMALL]
            targets = [side.peer.region(str(number))[0:_SMALL] for number in range(count)]
            work = _in_turn(side.engine, source, targets)
            await work.run(count)
            yield Case(work, {_ONE: _in_turn(side.engine, source, targets[:1])})
        await stage.clear()

    return prepare


# ---- operations


def _prepare_outstanding(count: int) -> Prepare:
    """So many puts that a copy thread makes, before the first one is awaited."""

    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        span = await stage.span("cma", _SMALL, _LONG_LINE)
        engine = (await stage.side("cma", _LONG_LINE)).engine
        work = many_puts(engine, span, count)
        yield Case(work, {_ONE: puts(engine, span)}, {"with 64": many_puts(engine, span, 64)})

    return prepare


# ---- memory


@contextlib.asynccontextmanager
async def _prepare_peer_memory(stage: Stage) -> AsyncIterator[Case]:
    """Of this process, for a peer that has been written to."""
    await stage.clear()
    count = _PEERS[0]
    async with Engine() as engine, stage.crowd(count + 1, _SMALL) as addresses:
        source = await engine.allocate(_SMALL)
        await _in_turn(engine, source[0:_SMALL], await _connected(engine, addresses[:1])).run(1)
        before = resident_nbytes()
        await _in_turn(engine, source[0:_SMALL], await _connected(engine, addresses[1:])).run(count)
        yield Case(Known((resident_nbytes() - before) / count))


@contextlib.asynccontextmanager
async def _prepare_region_memory(stage: Stage) -> AsyncIterator[Case]:
    """Beyond the bytes of the region itself."""
    count = 5000 if stage.quick else _REGIONS[-1]
    async with Engine() as engine:
        await make_regions(engine, 64, _SMALL, "warm")
        before = resident_nbytes()
        kept = await make_regions(engine, count, _SMALL)
        yield Case(Known((resident_nbytes() - before) / count - _SMALL))
        kept.clear()


@contextlib.asynccontextmanager
async def _prepare_operation_memory(stage: Stage) -> AsyncIterator[Case]:
    """Of an operation in line or under way, with the Completion that the caller holds."""
    count = 20_000 if stage.quick else _OUTSTANDING[-1]  # far more than what the heap has in reserve
    span = await stage.span("cma", _SMALL, _LONG_LINE)
    engine = (await stage.side("cma", _LONG_LINE)).engine
    await many_puts(engine, span, 64).run(1)
    before = resident_nbytes()
    operations = [engine.put(span.local, span.remote) for _ in range(count)]
    used = (resident_nbytes() - before) / count
    for operation in operations:
        await operation
    yield Case(Known(used))
