"""Loops to run on, and a pair of engines that nobody closes."""

from __future__ import annotations

import asyncio
import gc
import mmap
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import uvloop

from hixl_aio import (
    Access,
    Completion,
    Engine,
    EngineOptions,
    MemoryRegion,
    Peer,
    RemoteRegion,
    UnclosedResourceWarning,
)

T = TypeVar("T")

MIB: Final = 1 << 20


def debug_loop() -> asyncio.AbstractEventLoop:
    """asyncio's own, in debug mode."""
    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 60.0  # a loaded machine is no news
    return loop


LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": debug_loop,
    "uvloop": uvloop.new_event_loop,
}


def run(loop: str, main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on a loop of that kind."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(main)


@dataclass(slots=True)
class Pair:
    """Two engines that are open and connected."""

    near: Engine
    far: Engine
    peer: Peer
    source: MemoryRegion
    target: RemoteRegion

    def put(self, **options: Any) -> Completion:
        """One put of everything."""
        return self.near.put(self.source, self.target, **options)

    def put_many(self, count: int) -> list[Completion]:
        """So many puts, none of which can have ended: the last is in flight."""
        puts = [self.put() for _ in range(count)]
        assert not puts[-1].done()
        return puts


async def open_pair(nbytes: int, link: str = "cma", **options: Any) -> Pair:
    """Open, connect, register. Whoever asked sees to the end, or does not."""
    settings = EngineOptions(links=(link,), **options)
    far, near = Engine(options=settings), Engine(options=settings)
    await far.__aenter__()
    await near.__aenter__()
    if link == "shm":
        await far.allocate(nbytes, label="target", access=Access.READ_WRITE)
    else:
        await far.register(mmap.mmap(-1, nbytes), label="target", access=Access.READ_WRITE)
    peer = await near.connect(far.address)
    source = await near.register(mmap.mmap(-1, nbytes))
    return Pair(near, far, peer, source, peer.region("target"))


@contextmanager
def engines_are_dropped(count: int) -> Iterator[None]:
    """So many engines go in here, with a warning each; when this is left they are gone."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [warning.category for warning in seen] == [UnclosedResourceWarning] * count, seen
    seen.clear()  # a record of such a warning has the engine
    gc.collect()


async def close(pair: Pair) -> None:
    """The usual end."""
    await pair.near.aclose()
    await pair.far.aclose()
