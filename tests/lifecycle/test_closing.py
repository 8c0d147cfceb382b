"""Closing an engine while others wait for it, and while the one who closes it is cancelled."""

from __future__ import annotations

import asyncio
import mmap
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from hixl_aio import ClosedError, Completion, Engine, OperationState, Put
from tests.soak import rounds

from .support import MIB, Pair, open_pair

pytestmark = pytest.mark.asyncio

WAITERS = 100
LINKS = ["inproc", "shm", "cma", "cooperative"]


async def unresolved(pair: Pair) -> Completion:
    """An operation that nothing but a stop can end: it waits for its `ready=`."""
    return pair.put(ready=asyncio.get_running_loop().create_future())


async def op(pair: Pair) -> Callable[[], Awaitable[object]]:
    held = await unresolved(pair)
    return held.wait


async def ops(pair: Pair) -> Callable[[], Awaitable[object]]:
    return lambda: pair.put(ready=asyncio.get_running_loop().create_future()).wait()


async def observer(pair: Pair) -> Callable[[], Awaitable[object]]:
    held = await unresolved(pair)
    return lambda: held.wait(join=False)


async def wait_signal(pair: Pair) -> Callable[[], Awaitable[object]]:
    return lambda: pair.near.wait_signal("never")


async def wait_signal_of_peer(pair: Pair) -> Callable[[], Awaitable[object]]:
    return lambda: pair.near.wait_signal("never", peer=pair.peer)


async def signals(pair: Pair) -> Callable[[], Awaitable[object]]:
    return lambda: anext(pair.near.signals())


async def accept(pair: Pair) -> Callable[[], Awaitable[object]]:
    return pair.near.accept


async def flush(pair: Pair) -> Callable[[], Awaitable[object]]:
    await unresolved(pair)
    return pair.near.flush


async def flush_peer(pair: Pair) -> Callable[[], Awaitable[object]]:
    await unresolved(pair)
    return lambda: pair.near.flush(pair.peer)


async def wait_capacity(pair: Pair) -> Callable[[], Awaitable[object]]:
    while pair.peer.waiting < pair.near.options.line_capacity:
        await unresolved(pair)
    return lambda: pair.near.wait_capacity(pair.peer)


KINDS = [op, ops, observer, wait_signal, wait_signal_of_peer, signals, accept, wait_capacity]


async def waiting(call: Callable[[], Awaitable[object]]) -> list[asyncio.Future[object]]:
    """A hundred tasks that sleep in that call."""
    tasks: list[asyncio.Future[object]] = [asyncio.ensure_future(call()) for _ in range(WAITERS)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    return tasks


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_hundred_waiters_hear_of_the_end_at_once(kind: Callable[[Pair], Any]) -> None:
    """Each of a hundred gets ClosedError while operations in flight still drain, not after that."""
    pair = await open_pair(32 * MIB, line_capacity=150)
    call = await kind(pair)
    puts = pair.put_many(20)
    tasks = await waiting(call)
    closing = asyncio.create_task(pair.near.aclose())
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [ClosedError] * WAITERS
    assert not closing.done()
    assert not puts[-1].done()
    await closing
    assert [put.exception() for put in puts] == [None] * len(puts)
    await pair.far.aclose()


@pytest.mark.parametrize("kind", [flush, flush_peer], ids=lambda kind: kind.__name__)
async def test_a_hundred_who_flush_hear_what_became_of_what_they_wait_for(
    kind: Callable[[Pair], Any],
) -> None:
    """Delivered in the drain: they return. Not delivered: they get ClosedError. In both cases at the end."""
    for delivered in (True, False):
        pair = await open_pair(8 * MIB, line_capacity=150)
        call = pair.near.flush if delivered else await kind(pair)
        puts = pair.put_many(20)
        tasks = await waiting(call)
        await pair.near.aclose()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {type(None) if delivered else ClosedError}
        assert [put.exception() for put in puts] == [None] * len(puts)
        await pair.far.aclose()


async def test_a_hundred_who_wait_for_memory_to_settle_go_on_when_it_has() -> None:
    """`settled()` is true at the end of the operation, so it returns, and the memory is free by then."""
    pair = await open_pair(MIB)
    held = await unresolved(pair)
    tasks = await waiting(held.settled)
    assert pair.source.busy
    closing = asyncio.create_task(pair.near.aclose())
    await asyncio.gather(*tasks)
    assert held.state is OperationState.SETTLED
    assert not pair.source.busy
    await closing
    await pair.far.aclose()


async def test_a_hundred_who_connect_to_a_silent_address_hear_of_the_end_at_once() -> None:
    """Also to addresses that differ: no connect outlives its engine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        engine = Engine()
        async with engine:
            tasks = await waiting(lambda: engine.connect(address, timeout=30))
            started = time.monotonic()
            await engine.aclose()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert time.monotonic() - started < 1
        assert [type(result) for result in results] == [ClosedError] * WAITERS


async def test_a_hundred_operations_in_flight_are_settled_before_their_waiters_hear() -> None:
    """Not drained, each ends with success or ClosedError, and its memory is free at that moment."""
    for link in LINKS:
        pair = await open_pair(16 * MIB, link)
        puts = pair.put_many(WAITERS)
        seen: list[tuple[bool, type[BaseException] | None]] = []

        async def join(put: Completion, seen: list[tuple[bool, type[BaseException] | None]] = seen) -> None:
            error: BaseException | None = None
            try:
                await put
            except ClosedError as closed:
                error = closed
            seen.append((put.state is OperationState.SETTLED, type(error) if error else None))

        tasks = [asyncio.create_task(join(put)) for put in puts]
        await asyncio.sleep(0)
        await pair.near.aclose(drain_timeout=0)
        await asyncio.gather(*tasks)
        assert {settled for settled, _ in seen} == {True}
        assert {error for _, error in seen} <= {None, ClosedError}
        assert ClosedError in {error for _, error in seen}
        await pair.far.aclose()


async def test_a_second_close_ends_with_the_first_and_not_before() -> None:
    """Ten at once, one inside `async with`, some cancelled: all that end in peace find the engine closed."""
    for _ in range(rounds(3, 300)):
        pair = await open_pair(16 * MIB)
        puts = pair.put_many(20)
        first = asyncio.create_task(pair.near.aclose())
        await asyncio.sleep(0)

        async def second(pair: Pair = pair, first: asyncio.Task[None] = first) -> None:
            await pair.near.aclose()
            assert pair.near._runtime.life.state.name == "CLOSED"

        others = [asyncio.create_task(second()) for _ in range(10)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in (first, *others))
        for task in others[:5]:
            task.cancel()
        results = await asyncio.gather(first, *others, return_exceptions=True)
        assert [type(result) for result in results[1:6]] == [asyncio.CancelledError] * 5
        assert results[0] is None
        assert results[6:] == [None] * 5
        assert all(put.done() for put in puts)
        await pair.near.aclose()
        await pair.far.aclose()


@pytest.mark.parametrize("link", LINKS)
async def test_a_hundred_who_put_get_batch_and_listen_hear_of_one_end_with_three_who_close(link: str) -> None:
    """Each hears at once, with its memory let go of: what it then writes there stays. All closers find the
    engine closed, the one that was cancelled too."""
    for _ in range(rounds(1, 100)):
        pair = await open_pair(8 * MIB, link)
        near, peer, life = pair.near, pair.peer, pair.near._runtime.life
        buffers = [mmap.mmap(-1, MIB) for _ in range(30)]
        inboxes = [await near.register(buffer) for buffer in buffers]
        parts = [
            Put(pair.source[n * MIB : (n + 1) * MIB], pair.target[n * MIB : (n + 1) * MIB]) for n in range(8)
        ]
        ends: list[type[BaseException] | None] = []

        async def hear(wait: Awaitable[object], buffer: mmap.mmap | None = None, ends: Any = ends) -> None:
            try:
                await wait
                ends.append(None)
            except ClosedError as error:
                ends.append(type(error))
            if buffer is not None:
                buffer[:] = b"\xa5" * MIB

        async def close(closing: Awaitable[object], life: Any = life) -> None:
            await closing
            assert life.state.name == "CLOSED"

        puts = [near.put(pair.source, pair.target) for _ in range(30)]
        gets = [near.get(pair.target[:MIB], inbox) for inbox in inboxes]
        batches = [near.batch(parts) for _ in range(10)]
        started = [*(hear(op) for op in (*puts, *batches)), *map(hear, gets, buffers)]
        started += [hear(near.wait_signal("never", peer=peer if n % 2 else None)) for n in range(30)]
        tasks = [asyncio.create_task(one) for one in started]
        await asyncio.sleep(0)
        assert not batches[-1].done()
        begun = time.monotonic()
        first = asyncio.create_task(close(near.aclose(drain_timeout=0)))
        second = asyncio.create_task(close(near.aclose()))
        leaving = asyncio.create_task(near.__aexit__(None, None, None))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert life.state.name == "CLOSED"
        await asyncio.gather(first, second, *tasks)
        assert time.monotonic() - begun < 2
        assert len(ends) == WAITERS
        assert ends.count(ClosedError) > 30, "those who listen, and some of the others"
        assert all(op.state is OperationState.SETTLED for op in (*puts, *gets, *batches))
        await pair.far.aclose()
        assert all(buffer[:] == b"\xa5" * MIB for buffer in buffers)


async def leave_by_error(engine: Engine) -> None:
    async with engine:
        await engine.allocate(MIB, label="x")
        raise LookupError


async def leave_by_sibling(engine: Engine) -> None:
    async with engine, asyncio.TaskGroup() as group:
        await engine.allocate(MIB, label="x")
        group.create_task(leave_by_error(Engine()))
        await asyncio.Event().wait()


async def leave_by_timeout(engine: Engine) -> None:
    async with asyncio.timeout(0.01), engine:
        await engine.allocate(MIB, label="x")
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("leave", "expected"),
    [
        (leave_by_error, LookupError),
        (leave_by_sibling, ExceptionGroup),
        (leave_by_timeout, TimeoutError),
    ],
    ids=["error", "sibling", "timeout"],
)
@pytest.mark.parametrize("again", [0, 1, 5])
async def test_leaving_the_block_under_cancellation_closes_in_full(
    leave: Callable[[Engine], Coroutine[Any, Any, None]], expected: type[BaseException], again: int
) -> None:
    """Whatever leads out, however often it is cancelled on the way: the engine is closed afterwards."""
    for _ in range(rounds(2, 200)):
        engine = Engine()
        task = asyncio.create_task(leave(engine))
        while engine.closed:  # noqa: ASYNC110  (not open yet)
            await asyncio.sleep(0)
        while not engine.closed and again:  # noqa: ASYNC110  (leaving has begun)
            await asyncio.sleep(0)
        for _ in range(again):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises((expected, asyncio.CancelledError)):
            await task
        assert engine._runtime.life.state.name == "CLOSED"
        assert engine.statistics().regions == 0
