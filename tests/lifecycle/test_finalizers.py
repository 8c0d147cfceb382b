"""The last reference goes at an awkward moment: nothing waits for the GIL with the GIL in hand (A3-17)."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.soak import rounds

from .support import LOOPS, MIB, Pair, engines_are_dropped, open_pair, run

LINKS = ["inproc", "shm", "cma", "cooperative"]


class Cycle:
    """Goes with the collector only, and takes what it holds along."""

    def __init__(self, held: object) -> None:
        self.held = held
        self.me = self


def drop(holder: list[Any]) -> None:
    """The last reference goes now."""
    holder.clear()


def drop_in_collection(holder: list[Any]) -> None:
    """The last reference goes inside the collector."""
    cycle = Cycle(holder.pop())
    del cycle
    gc.collect()


def drop_in_thread(holder: list[Any]) -> None:
    """The last reference goes in a thread that has no loop."""
    thread = threading.Thread(target=drop_in_collection, args=(holder,))
    thread.start()
    thread.join()


WAYS = [drop, drop_in_collection, drop_in_thread]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("loop", LOOPS)
def test_engines_of_a_closed_loop_go_with_their_last_reference(
    loop: str, link: str, way: Callable[[list[Any]], None]
) -> None:
    """With puts in flight and a thousand records that nobody took: threads are joined, nothing hangs."""
    for _ in range(rounds(1, 200)):
        holder: list[Any] = []
        run(loop, fill(holder, link))
        with engines_are_dropped(2):
            way(holder)


async def fill(holder: list[Any], link: str) -> None:
    pair = await open_pair(8 * MIB, link)
    small = [pair.near.put(pair.source[:1], pair.target[:1], timeout=None) for _ in range(1000)]
    holder.append((pair, small, pair.put_many(20)))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("loop", LOOPS)
def test_an_engine_that_is_dropped_in_a_callback_only_warns(
    loop: str, way: Callable[[list[Any]], None]
) -> None:
    """Its loop lives: what it started still ends, and its regions stay whole."""

    async def main() -> None:
        pair = await open_pair(MIB)
        near, far = pair.near._runtime, pair.far._runtime
        source, target = pair.source, pair.target
        called = asyncio.Event()
        put, last = pair.put(), pair.put()
        holder: list[Any] = [pair]
        del pair

        def callback(_: object) -> None:
            way(holder)
            called.set()

        put.add_done_callback(callback)
        with engines_are_dropped(2):
            await called.wait()
        await last
        assert target.nbytes == MIB
        assert not source.closed
        await near.close(1.0)
        await far.close(1.0)
        assert source.closed

    for _ in range(rounds(1, 200)):
        run(loop, main())


@pytest.mark.parametrize("link", ["inproc", "shm", "cma"])
def test_other_threads_run_while_a_destructor_joins(link: str) -> None:
    """The join of a thread that copies one chunk of 512 MiB does not hold the GIL meanwhile."""
    # With the GIL in hand, each of the two joins is about half of it. A loaded machine may be silent once.
    shares = [longest_silence(link) for _ in range(3)]
    assert min(shares) < 0.3, shares


def longest_silence(link: str) -> float:
    """The longest time in which another thread could not run, as a share of what the destructors took."""
    holder: list[Pair] = []

    async def main() -> None:
        pair = await open_pair(512 * MIB, link, chunk_nbytes=1 << 30)
        pair.put_many(3)
        holder.append(pair)

    stop = threading.Event()
    beats: list[float] = []

    def beat() -> None:
        while not stop.is_set():
            beats.append(time.monotonic())
            time.sleep(0.001)

    run("asyncio", main())
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        started = time.monotonic()
        with engines_are_dropped(2):
            holder.clear()
        ended = time.monotonic()
    finally:
        stop.set()
        thread.join()
    assert ended - started > 0.02, "the chunk was copied before the join"
    moments = [started, *(moment for moment in beats if started < moment < ended), ended]
    return max(later - earlier for earlier, later in itertools.pairwise(moments)) / (ended - started)
