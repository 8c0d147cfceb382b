"""Regions, views and buffers: what is refused, what stays alive, what `busy` means."""

from __future__ import annotations

import array
import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import numpy
import pytest

from hixl_aio import (
    Access,
    AccessDeniedError,
    ClosedError,
    Engine,
    EngineOptions,
    Get,
    HixlAioError,
    InvalidArgumentError,
    MemoryKind,
    NotContiguousError,
    Put,
    RegionBusyError,
)

from ..loops import Promise, Tasks, gather, turns
from .support import Pair, connected


@pytest.mark.parametrize(
    "buffer",
    [
        bytearray(24),
        memoryview(bytearray(32))[8:],
        array.array("d", [0.0] * 3),
        numpy.zeros(3),
        numpy.zeros((2, 3), dtype=numpy.int32, order="F"),
        numpy.zeros(3, dtype="datetime64[s]"),
        numpy.zeros((1, 3)).T,
        numpy.zeros((4, 3))[2],
        numpy.zeros((), dtype="V24"),
        numpy.zeros((2, 3, 4), dtype="b").T,
    ],
    ids=lambda buffer: f"{type(buffer).__name__}-{getattr(buffer, 'dtype', '')}",
)
async def test_contiguous_buffers_of_any_type_take_part(pair: Pair, buffer: Any) -> None:
    """Bytes, arrays, NumPy in any order and dtype: the same 24 bytes are written and read."""
    if pair.link == "shm":
        region, remote = await pair.target(24)
        source = await pair.near.register(buffer)
        source.view()[:] = bytes(range(24))
        await pair.near.put(source, remote)
        assert bytes(region.view()) == bytes(range(24))
        return
    region = await pair.far.register(buffer, label="b", access=Access.READ_WRITE)
    await pair.peer.refresh()
    assert (region.nbytes, region.kind) == (24, MemoryKind.HOST)
    source = await pair.near.register(bytes(range(24)))
    await pair.near.put(source, pair.peer.region("b"))
    assert bytes(region.view()) == bytes(range(24))
    assert numpy.asarray(buffer).tobytes(order="A") == bytes(range(24))


async def test_buffers_that_cannot_take_part_are_refused(one: Engine) -> None:
    """Not contiguous, empty, no buffer, objects: a typed error before anything is registered."""
    matrix = numpy.arange(16).reshape(4, 4)
    with_gaps: list[Any] = [
        matrix[:, ::2],
        matrix[::2],
        memoryview(bytearray(8))[::2],
        matrix[::-1],
        matrix[1:3, 1:3],
        numpy.broadcast_to(numpy.arange(4), (4, 4)),  # each row is the same memory
        numpy.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
    ]
    for bad in with_gaps:
        with pytest.raises(NotContiguousError) as refused:
            await one.register(bad)
        assert refused.value.strides
    no_bytes: list[Any] = [
        b"",
        bytearray(),
        numpy.zeros(0),
        "text",
        3,
        None,
        object(),
        numpy.array([object()]),
    ]
    for bad in no_bytes:
        with pytest.raises(InvalidArgumentError):
            await one.register(bad)
    for nbytes in (0, -1, 1.5, True, 2**63):
        with pytest.raises(HixlAioError):
            await one.allocate(nbytes)  # type: ignore[arg-type]
    for label in ("", "x" * 256, 3):
        with pytest.raises(InvalidArgumentError):
            await one.allocate(8, label=label)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        await one.allocate(8, access=7)  # type: ignore[arg-type]
    assert one.statistics().regions == 0


async def test_read_only_memory_is_a_source_and_no_destination(pair: Pair) -> None:
    """`bytes` may be put and exported for reading; not exported for writing, not be the end of a get."""
    _, remote = await pair.target(4)
    readonly = await pair.near.register(b"abcd", label="r", access=Access.READ)
    assert readonly.readonly
    await pair.near.put(readonly, remote)
    with pytest.raises(AccessDeniedError):
        pair.near.get(remote, readonly)
    with pytest.raises(TypeError):
        readonly.view()[0] = 1
    for access in (Access.WRITE, Access.READ_WRITE):
        with pytest.raises(AccessDeniedError):
            await pair.near.register(b"abcd", access=access)


async def test_a_registered_buffer_cannot_be_resized(one: Engine) -> None:
    """It is pinned until the region is closed and its views are gone."""
    buffer = bytearray(8)
    region = await one.register(buffer)
    with pytest.raises(BufferError):
        buffer.append(1)
    view = region.view()
    await region.aclose()
    with pytest.raises(BufferError):
        buffer.append(1)
    view.release()
    del view
    gc.collect()
    buffer.append(1)


async def test_slices_never_clamp(one: Engine) -> None:
    """Out of range, negative, backwards or stepped slices raise, on regions, views and their remote kin."""
    region = await one.allocate(16, label="x", access=Access.READ)
    remote = region.describe()
    for end in (region, region[0:16], remote, remote[0:16]):
        assert end[4:8].nbytes == 4
        assert end[:].nbytes == 16
        assert end[16:].nbytes == 0
        for bad in (
            slice(0, 17),
            slice(-1, 4),
            slice(4, 2),
            slice(0, 8, 2),
            slice(17, 17),
            slice(0, -1),
            slice("a", "b"),
        ):
            with pytest.raises(InvalidArgumentError):
                end[bad]
        with pytest.raises(InvalidArgumentError):
            end[3]  # type: ignore[index]
    with pytest.raises(InvalidArgumentError):
        region[4:8][0:5]


async def test_lengths_ends_and_owners_must_match(pair: Pair) -> None:
    """Source and destination of one length, in the right order, of the right engine."""
    _, remote = await pair.target(8)
    source = await pair.source(8)
    foreign = await pair.far.register(bytearray(8))
    with pytest.raises(InvalidArgumentError, match="length"):
        pair.near.put(source, remote[0:4])
    with pytest.raises(InvalidArgumentError, match="length"):
        pair.near.get(remote[0:4], source)
    with pytest.raises(InvalidArgumentError, match="run with the data"):
        pair.near.put(remote, source)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        pair.near.put(foreign, remote)
    with pytest.raises(InvalidArgumentError):
        pair.near.put(source, remote, timeout=-1)
    with pytest.raises(InvalidArgumentError):
        pair.near.put(source, remote, payload=b"without a signal")
    with pytest.raises(InvalidArgumentError):
        pair.near.put(source, remote, delivery="remote")  # type: ignore[arg-type]
    assert not source.busy


@pytest.mark.parametrize("nbytes", [64, 1 << 20])
async def test_views_of_a_closed_region_move_nothing(pair: Pair, nbytes: int) -> None:
    """Whatever was made of it before: the call refuses it, and its old memory stays as it is."""
    target, remote = await pair.target(nbytes)
    buffer = bytearray(b"\x07" * nbytes)
    region = await pair.near.register(buffer)
    view = region[:]
    await region.aclose()
    buffer += b"free again"  # nothing of ours holds it
    before = pair.near.statistics().native["submitted"]
    calls: list[Callable[[], object]] = [
        lambda: pair.near.put(view, remote, signal="s"),
        lambda: pair.near.put(view[:8], remote[:8]),
        lambda: pair.near.get(remote, view),
        lambda: pair.near.batch([Put(view, remote)]),
        lambda: pair.near.batch([Get(remote, view)], signal="s"),
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    assert pair.near.statistics().native["submitted"] == before
    assert pair.far.statistics().unread_signals == 0
    assert bytes(target.view()) == bytes(nbytes)
    assert buffer[:nbytes] == b"\x07" * nbytes


async def test_views_outlive_their_region_and_engine() -> None:
    """Memory stays mapped while anybody looks at it, whatever was closed."""
    async with Engine() as engine:
        region = await engine.allocate(1 << 20)
        view = region.view()
        matrix = numpy.frombuffer(region.view(), dtype=numpy.int32)
        matrix[:] = 7
        await region.aclose()
        assert view[0] == 7
        with pytest.raises(ClosedError):
            region.view()
    del engine, region
    gc.collect()
    assert view[0] == 7
    view[4] = 9
    assert matrix[1] == 9


async def test_dlpack_goes_through_numpy(one: Engine) -> None:
    """Without a copy, as bytes, on the CPU."""
    region = await one.allocate(8)
    matrix = numpy.from_dlpack(region)
    region.view()[:] = bytes(range(8))
    assert matrix.tobytes() == bytes(range(8))
    assert region.__dlpack_device__() == (1, 0)


async def test_closing_a_region_waits_for_operations_of_ours(pair: Pair, tasks: Tasks) -> None:
    """While an operation holds it the region is busy; when it is closed, nothing can touch the memory."""
    size = 16 << 20
    _, remote = await pair.target(size)
    source = await pair.source(size)
    operations = [pair.near.put(source, remote) for _ in range(10)]
    assert source.busy
    first, second = tasks.start(source.aclose()), tasks.start(source.aclose())
    await turns()
    with pytest.raises(ClosedError):
        pair.near.put(source, remote)
    await first.result()
    await second.result()
    assert all(operation.done() for operation in operations)
    assert source.closed
    await source.aclose()


async def test_a_region_that_stays_busy_says_so(link: str) -> None:
    """Past the drain timeout closing raises; the region stays revoked, and closes once it is free."""
    async with connected(EngineOptions(links=(link,), drain_timeout=0.01), link) as pair:
        _, remote = await pair.target(8)
        source = await pair.source(8)
        future = Promise()
        operation = pair.near.put(source, remote, ready=future.awaitable)
        with pytest.raises(RegionBusyError) as busy:
            await source.aclose()
        assert busy.value.pins == 1
        with pytest.raises(ClosedError):
            pair.near.put(source, remote)
        future.set()
        await operation
        await source.aclose()
        assert pair.near.statistics().regions == 0


async def test_a_region_that_closes_late_does_not_take_a_newer_one_with_it(pair: Pair) -> None:
    """Peers are shut out, so its number is given out again while we still hold it: both are in the books
    (INV-9), and the newer one's memory stays registered though the program keeps nothing of it."""
    async with Engine(options=replace(pair.near.options, drain_timeout=0.01)) as owner:
        peer = await owner.connect(pair.far.address)
        _, remote = await pair.target(8)
        await peer.refresh()
        late = await owner.register(bytearray(8), label="late", access=Access.WRITE)
        future = Promise()
        operation = owner.put(late, peer.bind(remote), ready=future.awaitable)
        with pytest.raises(RegionBusyError):
            await late.aclose()
        buffer = bytearray(8)
        newer = await owner.register(buffer, label="newer", access=Access.WRITE)
        assert newer._record.id == late._record.id
        assert (owner.statistics().regions, owner.statistics().busy_regions) == (2, 1)
        future.set()
        await operation
        await late.aclose()
        del newer
        gc.collect()
        assert owner.statistics().regions == 1
        with pytest.raises(BufferError):  # a peer may write into it
            buffer.append(1)


async def test_closing_a_region_while_its_engine_closes() -> None:
    """Whichever comes first, both end, and without an error."""
    for place in range(11):
        async with Engine() as engine:
            regions = [await engine.allocate(8) for _ in range(10)]
            calls = [region.aclose() for region in regions]
            calls.insert(place, engine.aclose())
            await gather(*calls)
            assert all(region.closed for region in regions)


async def test_closing_a_region_under_cancellation_closes_it(pair: Pair, tasks: Tasks) -> None:
    """The cancellation is raised when the region is closed."""
    size = 8 << 20
    _, remote = await pair.target(size)
    source = await pair.source(size)
    operations = [pair.near.put(source, remote) for _ in range(10)]
    task = tasks.start(source.aclose())
    await turns()
    task.cancel()
    assert await task.cancelled()
    assert source.closed
    assert all(operation.done() for operation in operations)
    assert pair.near.statistics().regions == 0


async def test_cancelled_making_of_regions_leaves_none(one: Engine) -> None:
    """Whenever the cancellation comes, the region is made or it is given back."""
    buffers = [bytearray(8) for _ in range(10)]
    made = []
    for count, buffer in enumerate(buffers):
        for start in (one.allocate(8), one.register(buffer)):
            async with Tasks() as tasks:
                task = tasks.start(start)
                for _ in range(count):
                    await anyio.lowlevel.checkpoint()
                task.cancel()
                result = await task.outcome()
                if not isinstance(result, BaseException):
                    made.append(result)
    del tasks, task, result  # a traceback holds the frames that it names
    gc.collect()
    for region in made:
        await region.aclose()
    # What was cancelled has nobody who waits for its answer, nor for that of giving it back. Requests are
    # answered in their order: when the answers to two more are here, so are those.
    await (await one.allocate(8)).aclose()
    assert len(one._runtime.requests) == one.statistics().native["regions"] == 0
    for buffer in buffers:
        buffer.append(1)


async def test_a_registration_that_fails_leaves_nothing_and_the_others_whole(one: Engine) -> None:
    """The second of three: it raises, its buffer is free at once, and the first and the third transfer."""
    peer = await one.connect(one.address)
    first = await one.register(bytearray(b"first"), label="first", access=Access.READ_WRITE)
    refused = bytearray(5)
    with pytest.raises(InvalidArgumentError, match="first"):
        await one.register(refused, label="first", access=Access.READ_WRITE)
    refused.extend(b"it can be resized")
    third = await one.register(bytearray(5), label="third", access=Access.READ_WRITE)
    assert one.statistics().regions == 2
    await peer.refresh()
    await one.put(first, peer.region("third"))
    assert bytes(third.view()) == b"first"
    await first.aclose()
    again = await one.register(refused, label="first", access=Access.READ)
    assert again.nbytes == len(refused)
