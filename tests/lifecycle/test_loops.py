"""Engines and loops that do not live equally long."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hixl_aio import (
    Access,
    ClosedError,
    Completion,
    Engine,
    WrongLoopError,
)
from tests.soak import rounds

from .support import LOOPS, MIB, Pair, close, engines_are_dropped, open_pair, run

pytestmark = pytest.mark.parametrize("loop", LOOPS)


def native_threads() -> int:
    return sum(name.startswith("hixl") for name in thread_names())


def thread_names() -> Iterator[str]:
    for task in os.listdir("/proc/self/task"):
        try:
            yield Path(f"/proc/self/task/{task}/comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue


def test_an_engine_built_before_any_loop_opens_on_the_first(loop: str) -> None:
    """Building binds nothing: it belongs to the loop that opens it, and once closed it stays closed."""
    engine = Engine()

    async def use() -> str:
        async with engine:
            region = await engine.allocate(8, label="x")
            return str((await engine.connect(engine.address)).address) + str(region.nbytes)

    assert run(loop, use()).endswith("8")
    with pytest.raises(ClosedError, match="make a new one"):
        run(loop, use())


def test_runs_in_a_row_have_an_engine_each(loop: str) -> None:
    """Each of several `asyncio.run` finds everything as the first did."""

    async def main() -> None:
        pair = await open_pair(MIB)
        await pair.put(signal="s")
        assert (await pair.far.wait_signal("s")).error is None
        await close(pair)

    for _ in range(rounds(5, 1000)):
        run(loop, main())


def every_call(pair: Pair, held: Completion) -> list[Callable[[], Any]]:
    """The whole public face of an open engine."""
    engine, peer, source = pair.near, pair.peer, pair.source
    return [
        pair.put,
        lambda: engine.get(pair.target, source),
        lambda: engine.batch([]),
        lambda: engine.signal(peer, "s"),
        lambda: engine.fence(peer),
        lambda: engine.flush(),
        lambda: engine.flush(peer),
        lambda: engine.wait_capacity(peer),
        lambda: engine.wait_signal("s"),
        lambda: anext(engine.signals()),
        lambda: engine.connect("127.0.0.1:1"),
        lambda: engine.accept(),
        lambda: engine.allocate(8),
        lambda: engine.register(bytearray(8)),
        lambda: engine.aclose(),
        lambda: peer.region("target"),
        lambda: peer.refresh(),
        lambda: peer.aclose(),
        lambda: peer.abort(),
        lambda: source.aclose(),
        lambda: held.cancel(),
        lambda: held.wait(),
        lambda: held.wait(join=False),
        lambda: held.settled(),
        lambda: held.add_done_callback(print),
    ]


async def refuse_all(calls: list[Callable[[], Any]]) -> None:
    """Each call raises WrongLoopError, at once: the test's own limit is far below any timeout of ours."""

    async def attempt(call: Callable[[], Any]) -> None:
        async with asyncio.timeout(1):
            outcome = call()
            if hasattr(outcome, "__await__"):
                await outcome

    for call in calls:
        with pytest.raises(WrongLoopError):
            await attempt(call)


@pytest.mark.parametrize("ended", [False, True])
def test_a_session_engine_refuses_the_loops_of_single_tests(loop: str, ended: bool) -> None:
    """Every call from a second loop is WrongLoopError at once, whether the first is open or closed."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as session:
        pair = session.run(open_pair(MIB))

        async def hold(pair: Pair) -> Completion:
            return pair.put(ready=asyncio.get_running_loop().create_future())

        calls = every_call(pair, session.run(hold(pair)))
        if not ended:
            run(loop, refuse_all(calls))
            session.run(close(pair))
            return
    run(loop, refuse_all(calls))
    with engines_are_dropped(2):
        calls.clear()
        del pair


def test_a_put_looks_each_time_for_the_loop_that_runs(loop: str) -> None:
    """Also after any number on the right one: between its runs, under another loop, in another thread."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as session:
        pair = session.run(open_pair(64, "shm"))

        async def move(pair: Pair) -> None:
            for _ in range(3):
                await pair.put()

        async def refused(pair: Pair) -> None:
            with pytest.raises(WrongLoopError):
                pair.put()

        async def everywhere(pair: Pair) -> None:
            await move(pair)
            await asyncio.to_thread(asyncio.run, refused(pair))
            await move(pair)

        before = pair.near.statistics().inlined
        for _ in range(2):
            session.run(move(pair))
            with pytest.raises(WrongLoopError):
                pair.put()
            run(loop, refused(pair))
            run("asyncio", refused(pair))
            session.run(everywhere(pair))
        assert pair.near.statistics().inlined == before + 18
        session.run(close(pair))
        with pytest.raises(ClosedError):
            session.run(move(pair))


def test_two_threads_with_a_loop_each_have_engines_that_talk(loop: str) -> None:
    """Two loops in two threads of one process: put, get and signal in both directions at once."""
    addresses: list[str] = []
    barrier = threading.Barrier(2, timeout=10)
    errors: list[BaseException] = []

    async def one() -> None:
        async with Engine() as engine:
            memory = await engine.allocate(MIB, label="x", access=Access.READ_WRITE)
            addresses.append(engine.address)
            await asyncio.to_thread(barrier.wait)
            (other,) = [address for address in addresses if address != engine.address]
            peer = await engine.connect(other)
            for _ in range(50):
                await engine.put(memory, peer.region("x"), signal="turn")
                assert (await engine.wait_signal("turn")).error is None
                await engine.get(peer.region("x"), memory)
            await asyncio.to_thread(barrier.wait)

    def work() -> None:
        try:
            run(loop, one())
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.timeout(60 + rounds(0, 600))
@pytest.mark.parametrize("link", ["shm", "cma", "cooperative", "inproc"])
def test_a_loop_that_ends_over_puts_in_flight_leaves_nothing(
    loop: str, link: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Silent but for the warning; threads go, memory is let go of, and the next run works (A3-06, A3-07)."""
    for _ in range(rounds(3, 1000)):
        kept: list[bytearray] = []
        with engines_are_dropped(2):
            run(loop, start_and_leave(link, kept))
        assert settles_at_zero(native_threads)
        kept[0].append(1)  # nobody exports it any more
    assert capfd.readouterr() == ("", "")


async def start_and_leave(link: str, kept: list[bytearray]) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: print(context))
    pair = await open_pair(8 * MIB, link)
    kept.append(bytearray(8 * MIB))
    pair.source = await pair.near.register(kept[0])
    puts = pair.put_many(30)
    waiting = asyncio.ensure_future(puts[-1].wait())
    puts.append(pair.put(ready=asyncio.get_running_loop().create_future()))
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


def settles_at_zero(count: Callable[[], int]) -> bool:
    """What a joined thread leaves in /proc goes a moment later."""
    limit = time.monotonic() + 5
    while (left := count()) and time.monotonic() < limit:
        time.sleep(0.001)
    return left == 0


def test_fifty_engines_that_open_at_once_have_an_address_each(loop: str) -> None:
    """Port 0 is bound by the kernel and kept: no two get the same, and each is reached at its own."""

    async def main() -> None:
        engines = [Engine() for _ in range(50)]
        await asyncio.gather(*(engine.__aenter__() for engine in engines))
        assert len({engine.address for engine in engines}) == 50
        for engine, other in itertools.pairwise(engines):
            assert (await engine.connect(other.address)).incarnation == other.incarnation
        await asyncio.gather(*(engine.aclose() for engine in engines))

    run(loop, main())
