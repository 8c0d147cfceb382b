"""Calls that only seem to be right: refused at the call, with nothing moved and nothing left behind."""

from __future__ import annotations

import socket
from array import array
from time import monotonic

import pytest

from hixl_aio import (
    Completion,
    ConnectTimeoutError,
    Engine,
    EngineOptions,
    HixlAioError,
    InvalidArgumentError,
    LocalView,
    PeerNotConnectedError,
    Put,
    PutBlocks,
    RemoteView,
    StaleRegionError,
    TransferQueueFullError,
)
from hixl_aio.testing import FaultPlan

from ..loops import Promise, Tasks, outcomes
from .support import Pair, connected, faulty


@pytest.mark.parametrize(
    ("offsets", "sizes"),
    [
        pytest.param([0, 8], [4, -4], id="sizes that cancel out"),
        pytest.param([0, 0], [1 << 62, 1 << 62], id="sizes whose sum wraps around"),
        pytest.param([10**12], 0, id="an empty block far outside"),
        pytest.param([-8], 8, id="a negative offset"),
    ],
)
async def test_a_batch_is_checked_whatever_its_sizes_add_up_to(
    pair: Pair, offsets: list[int], sizes: list[int] | int
) -> None:
    """Blocks are checked one by one: no sum hides a bad one."""
    region, remote = await pair.target(64)
    source = await pair.source(64, 7)
    places = array("q", offsets)
    lengths = sizes if isinstance(sizes, int) else array("q", sizes)
    with pytest.raises(InvalidArgumentError):
        pair.near.batch([PutBlocks(source, remote, places, places, lengths)])
    assert bytes(region.view()) == bytes(64)
    assert pair.near.statistics().waiting == pair.near.statistics().posted == 0


async def test_a_callback_must_be_callable(pair: Pair) -> None:
    """A coroutine function or no function at all is refused, and the credit comes back."""
    _, remote = await pair.target(1 << 20)
    put = pair.near.put(await pair.source(1 << 20), remote)

    async def coroutine(completion: Completion) -> None:
        raise AssertionError("never called")

    for wrong in (coroutine, None, 3):
        with pytest.raises(InvalidArgumentError):
            put.add_done_callback(wrong)  # type: ignore[arg-type]
    await put
    await pair.near.flush(pair.peer)
    assert pair.peer.inflight == 0


async def test_a_view_cannot_be_stretched(pair: Pair) -> None:
    """The bounds that were checked are the bounds that are used."""
    view: LocalView = (await pair.source(64))[0:32]
    for name in ("nbytes", "offset", "region"):
        with pytest.raises(AttributeError):
            setattr(view, name, 4096)


async def test_a_view_that_was_never_made_is_refused(pair: Pair) -> None:
    """An instance without its fields is an error like any other bad argument, not a crash."""
    _, remote = await pair.target(64)
    source = (await pair.source(64))[:]
    hollow = [object.__new__(LocalView), object.__new__(RemoteView)]
    for src, dst in ((hollow[0], remote[:]), (source, hollow[1]), (hollow[0], hollow[1])):
        with pytest.raises(AttributeError):
            pair.near.put(src, dst)  # type: ignore[arg-type]
        with pytest.raises(AttributeError):
            pair.near.get(dst, src)  # type: ignore[arg-type]
    assert pair.near.statistics().waiting == 0


async def test_a_chain_of_failures_keeps_its_messages_short(pair: Pair) -> None:
    """Each link of a chain names its cause; it does not repeat the whole chain."""
    _, remote = await pair.target(64)
    source = await pair.source(64)
    first = Promise()
    chain = [pair.near.put(source, remote, ready=first.awaitable)]
    for _ in range(20):
        chain.append(pair.near.put(source, remote, ready=chain[-1]))
    first.fail(ValueError("no"))
    found = await outcomes(*(put.wait() for put in chain))
    assert all(isinstance(outcome, HixlAioError) for outcome in found)
    assert max(len(str(outcome)) for outcome in found) < 500


async def test_a_call_refused_for_room_gives_its_signal_place_back() -> None:
    """Puts with a signal that find native code full may be tried again for ever."""
    options = EngineOptions(max_operations=1, line_capacity=1, signal_capacity=2, inline_nbytes=0)
    async with connected(options, "shm") as pair:
        _, remote = await pair.target(64)
        source = await pair.source(64)
        for _ in range(4):
            gate = Promise()
            waiting = pair.near.put(source, remote, ready=gate.awaitable)
            posted = pair.near.put(source, remote)
            with pytest.raises(TransferQueueFullError):
                pair.near.put(source, remote, signal="refused")
            gate.set()
            await posted
            await waiting
        await pair.near.put(source, remote, signal="taken")
        assert (await pair.far.wait_signal("taken")).error is None
        assert pair.far.statistics().unread_signals == 0


async def test_calls_about_an_earlier_life_say_what_to_use(pair: Pair) -> None:
    """A Peer from before a reconnect is not connected; the message points to the new one."""
    old = pair.peer
    await old.aclose()
    new = await pair.near.connect(pair.far.address)
    assert new is not old
    with pytest.raises(PeerNotConnectedError):
        pair.near.signal(old, "x")
    with pytest.raises(PeerNotConnectedError):
        old.region("target")


async def test_a_chain_of_any_length_ends(pair: Pair) -> None:
    """A thousand operations, each ready after the one before, all end when the first one fails."""
    _, remote = await pair.target(64)
    source = await pair.source(64)
    first = Promise()
    chain = [pair.near.put(source, remote, ready=first.awaitable)]
    for _ in range(1000):
        chain.append(pair.near.put(source, remote, ready=chain[-1]))
    first.fail(ValueError("no"))
    found = await outcomes(*(put.wait() for put in chain))
    assert all(isinstance(outcome, HixlAioError) for outcome in found)
    assert not source.busy


async def test_an_engine_closes_under_a_long_chain() -> None:
    """aclose() ends a thousand operations that wait for each other."""
    async with connected(EngineOptions(), "shm") as pair:
        _, remote = await pair.target(64)
        source = await pair.source(64)
        first = Promise()
        chain = [pair.near.put(source, remote, ready=first.awaitable)]
        for _ in range(1000):
            chain.append(pair.near.put(source, remote, ready=chain[-1]))
        await pair.near.aclose()
        assert all(isinstance(put.exception(), HixlAioError) for put in chain)


async def test_each_connect_has_its_own_time(one: Engine, tasks: Tasks) -> None:
    """A patient connect outlives an impatient one to the same address that nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        begun = monotonic()
        quick = tasks.start(one.connect(address, timeout=0.1))
        with pytest.raises(ConnectTimeoutError):
            await one.connect(address, timeout=0.6)
        assert monotonic() - begun > 0.5
        with pytest.raises(ConnectTimeoutError):
            await quick.result()


@pytest.mark.parametrize("in_line", [False, True], ids=["at once", "in line"])
async def test_a_batch_names_the_region_that_is_to_blame(link: str, in_line: bool) -> None:
    """Of two parts the second is stale: the error says its label and generation, not those of the first."""
    plan = FaultPlan()
    async with faulty(link, near=plan, credits_per_peer=1) as pair:
        _, kept = await pair.target(64, label="kept")
        region, closed = await pair.target(64, label="closed")
        source = await pair.source(64, 7)
        parts = [Put(source, kept), Put(source, closed)]
        if in_line:
            held = plan.hold()
            first = pair.near.put(source, kept)
            batch = pair.near.batch(parts)
            await region.aclose()
            await held.wait_caught()
            held.release()
            await first
            with pytest.raises(StaleRegionError) as refused:
                await batch
        else:
            await region.aclose()
            with pytest.raises(StaleRegionError) as refused:
                pair.near.batch(parts)
        assert (refused.value.label, refused.value.generation) == ("closed", closed.generation)
