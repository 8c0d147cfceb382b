"""Bytes arrive where they should, over every link."""

from __future__ import annotations

import array
import hashlib
import math
import random
import time

import numpy
import pytest

from hixl_aio import (
    Access,
    AccessDeniedError,
    ClosedError,
    Delivery,
    Engine,
    Get,
    GetBlocks,
    InvalidArgumentError,
    OperationState,
    PartState,
    Put,
    PutBlocks,
    StaleRegionError,
)

from .support import LINKS, Pair


async def test_the_forced_link_is_the_route(pair: Pair) -> None:
    """The route names the link that was forced, with a reason."""
    assert pair.peer.route[0].name == (pair.link if pair.link in LINKS else "cma")
    assert pair.peer.route[0].reason


@pytest.mark.parametrize("nbytes", [1, 127, 4096, 65_536, 65_537, (1 << 20) + 1, 5 << 20])
async def test_put_then_get_gives_the_same_bytes(pair: Pair, nbytes: int) -> None:
    """What is put is what the peer has and what a get brings back, at sizes around every boundary."""
    region, remote = await pair.target(nbytes + 32)
    source = await pair.source(nbytes)
    data = random.Random(nbytes).randbytes(nbytes)
    source.view()[:] = data
    await pair.near.put(source, remote[16 : 16 + nbytes])
    landed = bytes(region.view())
    assert landed[16:-16] == data
    assert landed[:16] == landed[-16:] == bytes(16)
    back = await pair.source(nbytes)
    await pair.near.get(remote[16 : 16 + nbytes], back)
    assert hashlib.sha256(back.view()).digest() == hashlib.sha256(data).digest()


async def test_views_may_be_whole_regions_or_slices_of_slices(pair: Pair) -> None:
    """A region stands for its whole, and a view can be sliced again."""
    region, remote = await pair.target(64)
    source = await pair.source(64, 7)
    await pair.near.put(source, remote)
    assert bytes(region.view()) == b"\x07" * 64
    source.view()[:] = bytes(range(64))
    await pair.near.put(source[8:24][4:8], remote[32:][0:4])
    assert bytes(region.view()[32:36]) == bytes(range(12, 16))


async def test_zero_bytes_complete_and_signal(pair: Pair) -> None:
    """A transfer of nothing completes, signals once, and is no native transfer."""
    _, remote = await pair.target(8)
    source = await pair.source(8)
    before = pair.near.statistics().native
    await pair.near.put(source[3:3], remote[8:8], signal="nothing", payload=b"p")
    await pair.near.get(remote[0:0], source[0:0])
    signal = await pair.far.wait_signal("nothing", peer=pair.back)
    assert (signal.payload, signal.error) == (b"p", None)
    after = pair.near.statistics().native
    assert after["submitted"] == before["submitted"]


async def test_a_bound_signal_comes_after_its_bytes(pair: Pair) -> None:
    """Whenever a bound signal is seen, the bytes it announces are there (INV-11)."""
    region, remote = await pair.target(300_000)
    source = await pair.source(300_000)
    for round_ in range(1, 20):
        nbytes = (1, 100, 70_000, 300_000)[round_ % 4]
        source.view()[:nbytes] = bytes([round_]) * nbytes
        done = pair.near.put(source[0:nbytes], remote[0:nbytes], signal="landed", payload=bytes([round_]))
        signal = await pair.far.wait_signal("landed")
        assert signal.payload == bytes([round_])
        assert bytes(region.view()[:nbytes]) == bytes([round_]) * nbytes
        await done


async def test_local_delivery_is_accepted(pair: Pair) -> None:
    """A backend that delivers remotely satisfies the weaker wish too."""
    _, remote = await pair.target(8)
    await pair.near.put(await pair.source(8), remote, delivery=Delivery.LOCAL)


async def test_each_part_of_a_batch_costs_the_same_however_many_there_are(one: Engine) -> None:
    """Sixteen times as many parts with blocks take sixteen times as long to hand over, not its square."""
    peer = await one.connect(one.address)
    region = await one.allocate(4096, label="target", access=Access.WRITE)
    await peer.refresh()
    places = array.array("q", [0, 1024, 2048, 3072])
    part = PutBlocks(await one.allocate(4096), peer.region("target"), places, places, 8)

    async def cost_of_a_part(count: int) -> float:
        best = math.inf
        for _ in range(3):
            began = time.thread_time()
            batch = one.batch([part] * count)
            best = min(best, time.thread_time() - began)
            await batch
        return best / count

    few = await cost_of_a_part(1000)
    assert await cost_of_a_part(16_000) < 4 * few
    await region.aclose()


async def test_a_batch_moves_all_kinds_of_parts(pair: Pair) -> None:
    """Puts, gets and blocks of both kinds arrive as one operation, with offsets of every kind of array."""
    region, remote = await pair.target(4096)
    source = await pair.source(4096)
    source.view()[:] = random.Random(1).randbytes(4096)
    region.view()[2048:] = random.Random(2).randbytes(2048)
    back = await pair.source(2048)
    batch = pair.near.batch(
        [
            Put(source[0:16], remote[0:16]),
            Get(remote[2048:2064], back[0:16]),
            PutBlocks(source, remote[0:2048], array.array("q", [100, 200]), numpy.array([300, 500]), 10),
            GetBlocks(
                remote,
                back,
                [2100, 2200, 2300],
                memoryview(array.array("q", [100, 200, 300])),
                numpy.array([1, 2, 3]),
            ),
        ],
        signal="batched",
    )
    assert len(batch.parts) == 4
    await batch
    assert [part.state for part in batch.parts] == [PartState.DONE] * 4
    assert batch.nbytes == 16 + 16 + 20 + 6
    sent, landed, got = bytes(source.view()), bytes(region.view()), bytes(back.view())
    assert landed[0:16] == sent[0:16]
    assert landed[300:310] == sent[100:110]
    assert landed[500:510] == sent[200:210]
    assert got[0:16] == landed[2048:2064]
    assert (got[100:101], got[200:202], got[300:303]) == (
        landed[2100:2101],
        landed[2200:2202],
        landed[2300:2303],
    )
    assert (await pair.far.wait_signal("batched")).error is None


async def test_100_000_blocks_are_one_operation(pair: Pair) -> None:
    """A hundred thousand blocks need no Python object each, and arrive exactly."""
    count, size = 100_000, 16
    region, remote = await pair.target(count * size)
    source = await pair.source(count * size)
    source.view()[:] = random.Random(3).randbytes(count * size)
    order = numpy.random.default_rng(4).permutation(count).astype(numpy.int64) * size
    await pair.near.batch(
        [PutBlocks(source, remote, order, numpy.arange(count, dtype=numpy.int64) * size, size)]
    )
    sent = numpy.frombuffer(source.view(), dtype=numpy.uint8).reshape(count, size)
    landed = numpy.frombuffer(region.view(), dtype=numpy.uint8).reshape(count, size)
    assert (landed == sent[order // size]).all()


async def test_a_bad_block_is_refused_before_a_byte_moves(pair: Pair) -> None:
    """A block that leaves its view raises at the call and names its part."""
    region, remote = await pair.target(64)
    source = await pair.source(64, 1)
    for bad in (-1, 60, 2**62):
        with pytest.raises(InvalidArgumentError, match="part 1"):
            pair.near.batch(
                [Put(source[0:8], remote[0:8]), PutBlocks(source, remote, [0, 0], [0, bad], 8)],
                signal="never",
            )
    assert bytes(region.view()) == bytes(64)
    assert (await pair.far.wait_signal("never")).error is not None


async def test_access_is_what_the_owner_grants(pair: Pair) -> None:
    """A put needs WRITE, a get needs READ; refusal raises at the call, and nothing moves."""
    readable, remote = await pair.target(16, label="readable", access=Access.READ)
    writable, target = await pair.target(16, label="writable", access=Access.WRITE)
    source = await pair.source(16, 9)
    with pytest.raises(AccessDeniedError) as denied:
        pair.near.put(source, remote)
    assert (denied.value.granted, denied.value.needed) == ("READ", "WRITE")
    with pytest.raises(AccessDeniedError):
        pair.near.get(target, source)
    with pytest.raises(AccessDeniedError):
        pair.near.batch([Put(source, remote)])
    assert bytes(readable.view()) == bytes(writable.view()) == bytes(16)
    await pair.near.get(remote, source)
    await pair.near.put(source, target)


async def test_a_closed_region_is_stale_for_its_peers(pair: Pair) -> None:
    """After a region is closed and another registered, the old descriptor writes nowhere."""
    region, remote = await pair.target(32)
    source = await pair.source(32, 5)
    await region.aclose()
    again, fresh = await pair.target(32)
    with pytest.raises(StaleRegionError):
        pair.near.put(source, remote)
    with pytest.raises(StaleRegionError):
        pair.near.batch([Put(source, remote)])
    assert bytes(again.view()) == bytes(32)
    assert fresh != remote
    await pair.near.put(source, fresh)
    with pytest.raises(ClosedError):
        region.view()


async def test_many_operations_wait_in_line_and_all_arrive(pair: Pair) -> None:
    """Thousands of puts at once, more than there are credits, end in exactly one result each."""
    count, size = 3000, 140_000
    region, remote = await pair.target(size)
    source = await pair.source(size, 3)
    operations = [pair.near.put(source, remote) for _ in range(count)]
    assert pair.near.statistics().waiting + pair.near.statistics().posted > 0
    assert source.busy
    await pair.near.flush()
    assert all(operation.done() for operation in operations)
    assert {operation.state for operation in operations} == {OperationState.SETTLED}
    assert not source.busy
    assert bytes(region.view()) == b"\x03" * size
