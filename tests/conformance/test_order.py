"""Order, fences, flushes, room in the line, and what an operation is ready on."""

from __future__ import annotations

import gc

import anyio
import pytest

from hixl_aio import (
    EngineOptions,
    InvalidArgumentError,
    OperationState,
    RegionBusyError,
    TransferFailedError,
    TransferQueueFullError,
    TransferStoppedError,
    TransferTimeoutError,
    UnsupportedError,
)
from hixl_aio.testing import FaultPlan

from ..loops import Promise, Tasks, gather, turns
from .support import LINKS, Pair, connected, faulty


async def test_after_a_fence_later_operations_see_earlier_bytes(pair: Pair) -> None:
    """A get after a fence brings what the put before it has written, however large that was."""
    size = 3 << 20
    _, remote = await pair.target(size)
    source, back = await pair.source(size), await pair.source(16)
    for round_ in range(1, 11):
        source.view()[:] = bytes([round_]) * size
        put = pair.near.put(source, remote)
        pair.near.fence(pair.peer)
        get = pair.near.get(remote[size - 16 :], back)
        await get
        assert put.done()
        assert bytes(back.view()) == bytes([round_]) * 16


async def test_a_fence_holds_signals_and_empty_transfers_too(pair: Pair) -> None:
    """What moves nothing keeps its place behind a fence as well."""
    size = 3 << 20
    _, remote = await pair.target(size)
    source = await pair.source(size, 1)
    put = pair.near.put(source, remote)
    pair.near.fence(pair.peer)
    operations = [
        pair.near.signal(pair.peer, "a"),
        pair.near.put(source[0:0], remote[0:0], signal="b"),
        pair.near.batch([], timeout=1),
    ]
    await operations[0]
    assert put.done()
    await operations[1]
    await operations[2]
    assert [(await pair.far.wait_signal(name)).error for name in "ab"] == [None, None]


async def test_flush_waits_for_everything_called_before(pair: Pair) -> None:
    """When flush returns, all earlier operations are done, also those that had to wait."""
    _, remote = await pair.target(1 << 20)
    source = await pair.source(1 << 20, 2)
    operations = [pair.near.put(source, remote) for _ in range(20)]
    await gather(pair.near.flush(pair.peer), pair.near.flush(), pair.near.flush(pair.peer))
    assert all(operation.done() for operation in operations)
    await pair.near.flush()


async def test_flush_tells_of_a_failure(pair: Pair) -> None:
    """An operation before the flush failed: so does the flush."""
    _, remote = await pair.target(8)
    source = await pair.source(8)

    async def fails() -> None:
        raise KeyError("x")

    operation = pair.near.put(source, remote, ready=fails())
    with pytest.raises(TransferFailedError):
        await pair.near.flush(pair.peer)
    assert isinstance(operation.exception(), TransferFailedError)


async def test_an_operation_starts_when_it_is_ready(pair: Pair) -> None:
    """The memory is pinned from the call, and nothing moves before `ready` resolves."""
    region, remote = await pair.target(8)
    source = await pair.source(8, 1)
    gate = anyio.Event()
    operation = pair.near.put(source, remote, ready=gate.wait(), signal="s")
    other = pair.near.put(source[0:1], remote[7:8])  # is not held up by it
    await other
    assert source.busy
    assert operation.state is OperationState.WAITING
    assert bytes(region.view()) == bytes(7) + b"\x01"
    gate.set()
    await operation
    assert not source.busy
    assert bytes(region.view()) == b"\x01" * 8
    assert (await pair.far.wait_signal("s")).error is None


async def test_ready_takes_futures_tasks_and_completions(pair: Pair) -> None:
    """Anything awaitable will do; what belongs to the caller is only watched."""
    region, remote = await pair.target(8)
    source = await pair.source(8, 3)
    future = Promise()
    first = pair.near.put(source[0:4], remote[0:4], ready=future.awaitable)
    second = pair.near.put(source[4:8], remote[4:8], ready=first)
    done = pair.near.put(source, remote, ready=pair.near.put(source, remote))
    await done
    assert not first.done()
    assert not second.done()
    future.set()
    await second
    assert first.done()
    assert bytes(region.view()) == b"\x03" * 8


async def test_a_failed_ready_moves_nothing_and_sends_the_negative_form(pair: Pair) -> None:
    """The operation fails with its cause, the memory is free, and the peer hears of it (INV-11)."""
    region, remote = await pair.target(8)
    source = await pair.source(8, 1)

    async def fails() -> None:
        await turns()
        raise KeyError("not today")

    operation = pair.near.put(source, remote, ready=fails(), signal="s", payload=b"p")
    with pytest.raises(TransferFailedError) as failed:
        await operation
    assert isinstance(failed.value.__cause__, KeyError)
    assert not source.busy
    signal = await pair.far.wait_signal("s")
    assert signal.payload == b"p"
    assert signal.error is not None
    assert signal.error.name == "s"
    assert bytes(region.view()) == bytes(8)
    # A chain fails as a whole.
    first = pair.near.put(source, remote, ready=fails())
    second = pair.near.put(source, remote, ready=first)
    with pytest.raises(TransferFailedError):
        await second
    assert first.exception() is not None
    negative = pair.near.signal(pair.peer, "t", after=second)
    await negative
    assert (await pair.far.wait_signal("t")).error is not None


async def test_ready_must_be_awaitable(pair: Pair) -> None:
    """Anything else is refused at the call; a stream event is refused by this backend."""
    _, remote = await pair.target(8)
    source = await pair.source(8)

    class Event:
        def query(self) -> bool:
            return True

        def synchronize(self) -> None: ...

    with pytest.raises(InvalidArgumentError):
        pair.near.put(source, remote, ready=3)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError):
        pair.near.put(source, remote, ready=Event())
    assert not source.busy


async def test_cancelling_what_is_not_ready_ends_it_at_once(pair: Pair) -> None:
    """In line, a stop is immediate: memory free, negative signal sent, its coroutine ended."""
    region, remote = await pair.target(8)
    source = await pair.source(8, 1)
    ended = anyio.Event()

    async def never() -> None:
        try:
            await anyio.Event().wait()
        finally:
            ended.set()

    operation = pair.near.put(source, remote, ready=never(), signal="s")
    await turns()
    assert operation.cancel()
    assert operation.done()
    assert not operation.cancel()
    assert not source.busy
    with pytest.raises(TransferStoppedError):
        await operation
    await ended.wait()
    assert (await pair.far.wait_signal("s")).error is not None
    assert bytes(region.view()) == bytes(8)


async def test_a_deadline_in_line_ends_it_and_moves_nothing(pair: Pair) -> None:
    """The deadline counts from the call, also while the operation waits for what it is ready on."""
    region, remote = await pair.target(8)
    source = await pair.source(8, 1)
    future = Promise()
    operation = pair.near.put(source, remote, ready=future.awaitable, timeout=0.01, signal="s")
    with pytest.raises(TransferTimeoutError) as over:
        await operation
    assert over.value.timeout == 0.01
    assert not source.busy
    future.set()  # comes too late, and does nothing
    await turns()
    assert (await pair.far.wait_signal("s")).error is not None
    assert bytes(region.view()) == bytes(8)


@pytest.mark.parametrize("link", LINKS, indirect=True)
async def test_a_full_line_raises_and_room_can_be_waited_for(link: str) -> None:
    """Beyond `line_capacity` a call raises with its numbers, and nothing is pinned; `wait_capacity` waits."""
    options = EngineOptions(links=(link,), credits_per_peer=2, line_capacity=3)
    async with connected(options, link) as pair:
        size = 2 << 20
        _, remote = await pair.target(size)
        source = await pair.source(size, 1)
        operations = [pair.near.put(source, remote) for _ in range(5)]
        with pytest.raises(TransferQueueFullError) as full:
            pair.near.put(source, remote)
        assert (full.value.waiting, full.value.limit) == (3, 3)
        assert pair.peer.inflight == 2
        await gather(*(pair.near.wait_capacity(pair.peer) for _ in range(4)))
        operations.append(pair.near.put(source, remote))
        await pair.near.flush()
        assert all(operation.exception() is None and operation.done() for operation in operations)


async def test_memory_of_what_waits_in_line_is_kept_and_not_given_back(link: str) -> None:
    """Pinned from the call, not from the post: freeing it is refused or has to wait, and its bytes arrive."""
    plan = FaultPlan()
    async with faulty(link, near=plan, credits_per_peer=1, drain_timeout=0.5) as pair, Tasks() as tasks:
        target, remote = await pair.target(3 * 4096)
        held = plan.hold()
        first = pair.near.put(await pair.source(4096, 1), remote[:4096])
        await held.wait_caught()
        source = await pair.source(4096, 2)
        second = pair.near.put(source, remote[4096 : 2 * 4096])
        third = pair.near.put(await pair.source(4096, 3), remote[2 * 4096 :])  # nobody holds its source
        assert (second.state, third.state) == (OperationState.WAITING, OperationState.WAITING)
        with pytest.raises(RegionBusyError) as busy:
            await source.aclose()
        assert busy.value.pins == 1
        gc.collect()
        others = [await pair.source(4096, 9) for _ in range(16)]
        assert pair.near.statistics().busy_regions == 3
        closing = tasks.start(source.aclose())
        await turns(2)
        assert not closing.done()
        held.release()
        await closing.result()
        assert second.done()
        await gather(first, third)
        assert bytes(target.view()) == bytes([1]) * 4096 + bytes([2]) * 4096 + bytes([3]) * 4096
        assert all(bytes(other.view()) == bytes([9]) * 4096 for other in others)


@pytest.mark.parametrize("link", LINKS, indirect=True)
async def test_native_slots_count_like_credits(link: str) -> None:
    """With fewer native slots than credits, operations wait for a slot, and none is lost."""
    async with connected(EngineOptions(links=(link,), max_operations=4), link) as pair:
        region, remote = await pair.target(300_000)
        source = await pair.source(300_000, 5)
        operations = [pair.near.put(source, remote) for _ in range(100)]
        await gather(*operations)
        assert bytes(region.view()) == b"\x05" * 300_000
