"""Meeting, knowing and losing peers."""

from __future__ import annotations

import socket

import anyio
import anyio.lowlevel
import pytest

from hixl_aio import (
    Access,
    ClosedError,
    ConnectTimeoutError,
    Engine,
    EngineOptions,
    HandshakeError,
    InvalidArgumentError,
    NotRegisteredError,
    Peer,
    PeerError,
    PeerLostError,
    PeerNotConnectedError,
    PeerState,
    RemoteRegion,
    StaleRegionError,
)
from hixl_aio.testing import FaultPlan

from ..loops import CANCELLED, Promise, Tasks, gather, outcomes, turns
from .support import Pair, connected, faulty


async def test_a_second_connect_returns_the_same_peer(pair: Pair) -> None:
    """Whoever began, and also for calls at the same time."""
    assert await pair.near.connect(pair.far.address) is pair.peer
    assert await pair.far.connect(pair.near.address) is pair.back
    assert dict(pair.near.peers) == {pair.far.address: pair.peer}
    assert dict(pair.far.peers) == {pair.near.address: pair.back}
    async with Engine(options=pair.near.options) as third:
        peers = await gather(*(third.connect(pair.far.address) for _ in range(5)))
        assert len(set(peers)) == 1


async def test_connects_from_both_sides_at_once_end_in_one_peer() -> None:
    """Twenty times: each side has one peer, and data flows both ways."""
    for _ in range(20):
        async with Engine() as left, Engine() as right:
            one, other = await gather(left.connect(right.address), right.connect(left.address))
            assert (len(left.peers), len(right.peers)) == (1, 1)
            await left.signal(one, "s")
            await right.signal(other, "s")
            assert (await left.wait_signal("s")).peer is one
            assert (await right.wait_signal("s")).peer is other


async def test_an_engine_may_connect_to_itself(one: Engine) -> None:
    """A self-connection transfers and signals like any other."""
    peer = await one.connect(one.address)
    region = await one.allocate(8, label="mine", access=Access.READ_WRITE)
    await peer.refresh()
    source = await one.register(bytearray(b"12345678"))
    await one.put(source, peer.region("mine"), signal="s")
    assert (await one.wait_signal("s", peer=peer)).peer is peer
    assert bytes(region.view()) == b"12345678"


async def test_nobody_listening_is_told_within_the_timeout(one: Engine) -> None:
    """A refused connection and one that is never answered have errors of their own."""
    async with Engine() as gone:
        address = gone.address
    with pytest.raises(PeerNotConnectedError):
        await one.connect(address)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        with pytest.raises(ConnectTimeoutError) as over:
            await one.connect(f"{host}:{port}", timeout=0.05)
    assert isinstance(over.value, TimeoutError)
    with pytest.raises(InvalidArgumentError):
        await one.connect("nonsense")
    with pytest.raises(InvalidArgumentError):
        await one.connect(address, timeout=0)
    assert not one.peers


async def test_a_stranger_is_refused(one: Engine, tasks: Tasks) -> None:
    """Something that speaks another protocol ends in a typed error, not in a hang."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        host, port = stranger.getsockname()
        connecting = tasks.start(one.connect(f"{host}:{port}", timeout=2))
        await anyio.wait_readable(stranger)
        connection, _ = stranger.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20)
        with pytest.raises(PeerError) as refused:
            await connecting.result()
    assert isinstance(refused.value, HandshakeError | PeerLostError | PeerNotConnectedError)


async def test_a_cancelled_connect_leaves_no_peer(one: Engine, tasks: Tasks) -> None:
    """Neither side keeps a connection that nobody wanted, whenever the cancellation came."""
    async with Engine() as other:
        for count in range(12):
            task = tasks.start(one.connect(other.address))
            for _ in range(count):
                await anyio.lowlevel.checkpoint()
            task.cancel()
            result = await task.outcome()
            if isinstance(result, CANCELLED):
                await _answered(one)
                assert not one._runtime.control.numbers
                result = await one.connect(other.address)
            assert isinstance(result, Peer)
            await one.signal(result, "here")
            back = (await other.wait_signal("here")).peer
            # The other side heard of this connection after it had heard of an earlier one.
            for peer in list(other._runtime.control.numbers.values()):
                if peer is not back:
                    await _lost(other, peer)
            await result.aclose()
            await _lost(other, back)
            assert not one._runtime.control.numbers
            assert not other._runtime.control.numbers


async def _answered(engine: Engine) -> None:
    """Native code has answered all that it was asked, also for calls that have gone."""
    runtime = engine._runtime
    with anyio.fail_after(5):
        while len(runtime.requests):
            await runtime.wait_gate(next(iter(runtime.requests._open.values())).gate)


async def _lost(engine: Engine, peer: Peer) -> None:
    """The engine has noticed that the peer is gone."""
    with anyio.fail_after(5), pytest.raises(PeerLostError):
        await engine.wait_signal("never", peer=peer)
    assert peer.state is PeerState.LOST


async def test_regions_are_found_by_label(pair: Pair) -> None:
    """Those with an access that is not LOCAL, with their size, kind and access."""
    with pytest.raises(NotRegisteredError):
        pair.peer.region("kv")
    region = await pair.far.allocate(4096, label="kv", access=Access.READ)
    await pair.far.allocate(16, label="private")
    await pair.peer.refresh()
    remote = pair.peer.region("kv")
    assert (remote.nbytes, remote.access, remote.generation) == (4096, Access.READ, region.generation)
    assert remote == region.describe()
    with pytest.raises(NotRegisteredError):
        pair.peer.region("private")


async def test_a_descriptor_may_come_by_other_means(pair: Pair) -> None:
    """`describe`, `to_bytes`, `from_bytes`, `bind`: and it works without being looked up."""
    region = await pair.far.allocate(16, access=Access.WRITE)
    await pair.peer.refresh()
    remote = pair.peer.bind(RemoteRegion.from_bytes(region.describe().to_bytes()))
    await pair.near.put(await pair.near.register(b"0123456789abcdef"), remote)
    assert bytes(region.view()) == b"0123456789abcdef"
    with pytest.raises(StaleRegionError):
        pair.back.bind(remote)


async def test_closing_a_peer_ends_its_use(pair: Pair) -> None:
    """Afterwards its regions cannot be reached, both sides know, and connecting again gives a new peer."""
    _, remote = await pair.target(1 << 20)
    source = await pair.source(1 << 20)
    operations = [pair.near.put(source, remote) for _ in range(5)]
    await pair.peer.aclose()
    assert [operation.exception() for operation in operations] == [None] * 5
    assert pair.peer.state is PeerState.CLOSED
    await _lost(pair.far, pair.back)
    for call in (lambda: pair.near.put(source, remote), lambda: pair.near.fence(pair.peer)):
        with pytest.raises(PeerNotConnectedError):
            call()
    with pytest.raises(ClosedError):
        await pair.near.wait_signal("s", peer=pair.peer)
    await pair.peer.aclose()
    again = await pair.near.connect(pair.far.address)
    assert again is not pair.peer
    assert again.incarnation == pair.peer.incarnation
    await pair.near.put(source, remote)  # the same life: the descriptor is still good


async def test_a_second_close_of_a_peer_ends_with_the_first_and_an_abort_cuts_both_short(
    link: str, tasks: Tasks
) -> None:
    """What may still end does, however many close; all of them go on when the connection is over."""
    for way in ("drained", "aborted"):
        plan = FaultPlan()
        async with faulty(link, near=plan) as pair:
            target, remote = await pair.target(8)
            held = plan.hold()
            put = pair.near.put(await pair.source(8, 7), remote, signal="s")
            await held.wait_caught()
            closing = [tasks.start(pair.peer.aclose()) for _ in range(3)]
            await turns(3)
            closing[1].cancel()
            await turns(10)
            assert not any(task.done() for task in closing)
            assert not put.done()
            if way == "drained":
                held.release()
                await put
                assert (await pair.far.wait_signal("s")).error is None
                assert bytes(target.view()) == bytes([7]) * 8
            else:
                with anyio.fail_after(2):
                    await pair.peer.abort()
                assert isinstance(put.exception(), PeerLostError)
            assert await closing[1].cancelled()
            for task in (closing[0], closing[2]):
                await task.result()
            assert pair.peer.state is PeerState.CLOSED
            assert not pair.near._runtime.control.numbers


async def test_aborting_a_peer_ends_what_is_under_way(pair: Pair) -> None:
    """Operations end with an error or success, at once, and the memory is free."""
    size = 32 << 20
    _, remote = await pair.target(size)
    source = await pair.source(size)
    operations = [pair.near.put(source, remote) for _ in range(20)]
    await pair.peer.abort()
    await outcomes(*operations)
    assert any(operation.exception() is not None for operation in operations)
    assert all(isinstance(operation.exception(), PeerError | ClosedError | None) for operation in operations)
    assert not source.busy
    assert pair.near.statistics().in_flight == 0


async def test_a_peer_that_goes_fails_its_operations_only(link: str) -> None:
    """Operations to the peer that left end with PeerLostError; those to another peer do not notice."""
    options = EngineOptions(links=(link,))
    async with connected(options, link) as stable, Engine(options=options) as leaving:
        region, remote = await stable.target(8)
        source = await stable.source(8, 4)
        await leaving.allocate(8, label="x", access=Access.WRITE)
        peer = await stable.near.connect(leaving.address)
        old = peer.region("x") if link in ("shm", "inproc", "cooperative") else None
        held = None
        if old is not None:
            held = stable.near.put(source, old, ready=Promise().awaitable)
        await leaving.aclose()
        await _lost(stable.near, peer)
        if held is not None and old is not None:
            assert isinstance(held.exception(), PeerLostError)
            late = stable.near.put(source, old)
            assert isinstance(late.exception(), PeerLostError)
        with pytest.raises(PeerLostError):
            await stable.near.wait_signal("s", peer=peer)
        await stable.near.put(source, remote)
        assert bytes(region.view()) == b"\x04" * 8
        assert leaving.address not in stable.near.peers


async def test_accept_gives_each_peer_once(tasks: Tasks) -> None:
    """Waiting or not, cancelled or not: every peer that connects is handed out exactly once."""
    async with Engine() as server:
        waiting = [tasks.start(server.accept()) for _ in range(2)]
        await turns()
        waiting[0].cancel()
        clients = [Engine() for _ in range(3)]
        for client in clients:
            await client.__aenter__()
            await client.connect(server.address)
        accepted = [await waiting[1].result(), await server.accept(), await server.accept()]
        assert {peer.address for peer in accepted} == {client.address for client in clients}
        for client in clients:
            await client.aclose()
