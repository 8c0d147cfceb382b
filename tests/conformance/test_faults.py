"""What the engine makes of a transport that misbehaves: each fault over the real links."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from hixl_aio import (
    Access,
    ClosedError,
    Engine,
    InvalidArgumentError,
    OperationKind,
    PeerLostError,
    PeerState,
    ResourceExhaustedError,
    SignalQueueFullError,
    Status,
    TransferFailedError,
    TransferStoppedError,
    TransferTimeoutError,
)
from hixl_aio.testing import FaultPlan

from ..loops import Tasks, outcomes
from .support import faulty, memory


async def test_a_lost_signal_fails_the_link(link: str) -> None:
    """What came before the gap is delivered, what comes after is not, and whoever waits hears why."""
    plan = FaultPlan()
    async with faulty(link, far=plan) as pair, Tasks() as tasks:
        plan.drop_signal("b")
        held = plan.hold()
        inbox = await memory(pair.near, link, 8, label="inbox", access=Access.WRITE)
        await pair.back.refresh()
        put = pair.far.put(await memory(pair.far, link, 8), pair.back.region("inbox"))
        await held.wait_caught()
        waiting = tasks.start(pair.far.wait_signal("c", peer=pair.back))
        for name in ("a", "b", "c"):
            await pair.near.signal(pair.peer, name)
        assert (await pair.far.wait_signal("a")).sequence == 1
        with pytest.raises(PeerLostError, match="signal 3 came after signal 1: 1 of its signals were lost"):
            await waiting.result()
        assert pair.back.state is PeerState.LOST
        with pytest.raises(PeerLostError, match="1 of its signals were lost"):
            await put
        assert bytes(inbox.view()) == bytes(8)
        with pytest.raises(PeerLostError):
            await pair.far.wait_signal("b", peer=pair.back)
        # The sender hears of it too: a bound signal says nothing any more.
        with pytest.raises(PeerLostError):
            await pair.near.wait_signal("never", peer=pair.peer)


async def test_a_lost_signal_that_nothing_follows_ends_with_the_deadline_of_who_waits(link: str) -> None:
    """Bound to a put, and the only one: the bytes are there, the wait ends in its time, and whatever is said
    next names the loss."""
    plan = FaultPlan()
    async with faulty(link, far=plan) as pair:
        lost = plan.drop_signal("landed")
        target, remote = await pair.target(8)
        await pair.near.put(await pair.source(8, 7), remote, signal="landed")
        with pytest.raises(TimeoutError), anyio.fail_after(0.05):
            await pair.far.wait_signal("landed", peer=pair.back)
        assert (lost.hits, bytes(target.view())) == (1, bytes([7] * 8))
        assert pair.back.state is PeerState.CONNECTED  # nobody could know
        await pair.near.signal(pair.peer, "next")
        with pytest.raises(PeerLostError, match="signal 2 came after signal 0: 1 of its signals were lost"):
            await pair.far.wait_signal("landed", peer=pair.back)


async def test_a_signal_that_comes_twice_is_delivered_once(link: str) -> None:
    """The second one is dropped, and the link goes on."""
    plan = FaultPlan()
    async with faulty(link, far=plan) as pair:
        twice = plan.duplicate_signal("a", count=2)
        for name in ("a", "a", "b"):
            await pair.near.signal(pair.peer, name)
        assert [(await pair.far.wait_signal(name)).sequence for name in ("a", "a", "b")] == [1, 2, 3]
        assert twice.hits == 2
        assert pair.far.statistics().unread_signals == 0


async def test_a_failure_moves_nothing_and_sends_the_negative_signal(link: str) -> None:
    """The third of five: it alone fails, its memory is free, and whoever waits for its signal hears why."""
    plan = FaultPlan()
    async with faulty(link, near=plan) as pair:
        target, remote = await pair.target(5 * 8)
        source = await pair.source(8, 7)
        failing = plan.fail(skip=2)
        puts = [
            pair.near.put(source, remote[8 * n : 8 * n + 8], signal=f"s{n}", payload=bytes([n]))
            for n in range(5)
        ]
        results = await outcomes(*puts)
        assert [type(result) for result in results if result] == [TransferFailedError]
        assert (results.index(results[2]), failing.hits, source.busy) == (2, 1, False)
        assert bytes(target.view()) == bytes([7] * 16 + [0] * 8 + [7] * 16)
        for number in range(5):
            signal = await pair.far.wait_signal(f"s{number}")
            assert ((signal.error is not None), signal.payload) == (number == 2, bytes([number]))


async def test_a_completion_that_comes_twice_counts_once(link: str) -> None:
    """The second one names an operation that is over (INV-9); the next operation does not get it."""
    plan = FaultPlan()
    # One thread: whoever ends an operation repeats it before the next one.
    async with faulty(link, near=plan, copy_threads=1) as pair:
        _, remote = await pair.target(8)
        source = await pair.source(8)
        plan.duplicate(count=50)
        last = plan.hold(skip=50)  # the other rule picks the first fifty
        for _ in range(100):
            await pair.near.put(source, remote)
        after = pair.near.put(source, remote)
        await last.wait_caught()  # by then the repetitions have come up too
        last.release()
        await after
        counts = pair.near.statistics()
        assert (counts.settled, counts.in_flight) == (101, 0)
        assert counts.native["strays"] == 50


async def test_operations_carried_out_in_reverse_keep_their_signals_and_fences(link: str) -> None:
    """Delivery is unordered unless fenced; a signal comes after its own bytes, whatever the order."""
    plan = FaultPlan()
    # One thread, so that they end in the order in which the plan hands them on.
    async with faulty(link, near=plan, copy_threads=1) as pair:
        target, remote = await pair.target(4)
        source = await pair.source(4)
        source.view()[:] = b"0123"
        plan.reorder(3)
        for number in range(3):
            pair.near.put(source[number : number + 1], remote[number : number + 1], signal=str(number))
        pair.near.fence(pair.peer)
        last = pair.near.put(source[3:4], remote[3:4], signal="3")
        arrived = [await anext(pair.far.signals()) for _ in range(4)]
        assert [signal.name for signal in arrived] == ["2", "1", "0", "3"]
        assert bytes(target.view()) == b"0123"
        await last


async def test_what_the_transport_refuses(link: str) -> None:
    """Exhausted: the call raises, may be made again, and its signal's place is given back. Full: it waits."""
    plan = FaultPlan()
    async with faulty(link, near=plan, far=None, signal_capacity=2) as pair:
        _, remote = await pair.target(8)
        source = await pair.source(8)
        plan.refuse(count=5)
        for _ in range(5):
            with pytest.raises(ResourceExhaustedError) as refused:
                pair.near.put(source, remote, signal="s")
            assert refused.value.retryable
            assert (await pair.far.wait_signal("s")).error is not None
        plan.refuse(Status.QUEUE_FULL, count=5)
        await pair.near.put(source, remote, signal="s")
        assert (await pair.far.wait_signal("s")).error is None
        plan.refuse(Status.PEER_LOST)
        with pytest.raises(PeerLostError):
            await pair.near.put(source, remote)
        assert not source.busy


async def test_a_link_that_is_latched_fails_until_it_is_made_anew(link: str) -> None:
    """Nothing says that the memory is free before the teardown; one reconnect cures it."""
    plan = FaultPlan()
    async with faulty(link, near=plan) as pair:
        target, remote = await pair.target(8)
        source = await pair.source(8, 9)
        await pair.near.put(source, remote)
        plan.latch()
        for _ in range(3):
            with pytest.raises(TransferFailedError):
                await pair.near.put(source, remote)
        assert pair.near.statistics().quarantined == 3
        await pair.peer.abort()
        assert pair.near.statistics().quarantined == 0
        again = await pair.near.connect(pair.far.address)
        await pair.far.accept()
        source.view()[:] = bytes(8)
        await pair.near.put(source, again.region("target"))
        assert bytes(target.view()) == bytes(8)


async def test_a_frozen_peer_stands_still_and_nobody_else_does(link: str) -> None:
    """Operations to it wait and can be stopped; its signals arrive in order when it goes on."""
    plan = FaultPlan()
    async with faulty(link, near=plan) as pair, Engine(options=pair.near.options) as third:
        _, remote = await pair.target(8)
        source = await pair.source(8)
        other = await pair.near.connect(third.address)
        back = await third.accept()
        plan.freeze(pair.peer)
        waiting, stopped = pair.near.put(source, remote), pair.near.put(source, remote)
        for number in range(3):
            await pair.far.signal(pair.back, "s", bytes([number]))
            await third.signal(back, "t")
            await pair.near.wait_signal("t")
            await pair.near.signal(other, "u")
            await third.wait_signal("u")
        assert pair.near.statistics().unread_signals == 0
        assert not waiting.done()
        assert stopped.cancel()
        with pytest.raises(TransferStoppedError):
            await stopped
        plan.thaw(pair.peer)
        await waiting
        assert [(await pair.near.wait_signal("s")).payload[0] for _ in range(3)] == [0, 1, 2]


async def test_a_throttled_link_is_paced_by_its_clock_and_says_so(link: str) -> None:
    """So many bytes a second, one after the other, each so much late; signals come after their bytes."""
    plan = FaultPlan(clock="manual")
    async with faulty(link, near=plan) as pair:
        _, remote = await pair.target(1000)
        source = await pair.source(1000)
        plan.throttle(1000.0, latency=0.5)
        assert all("throttled by a fault plan: 1000 bytes/s, 0.5 s" in hop.reason for hop in pair.peer.route)
        first = pair.near.put(source, remote, signal="first")
        second = pair.near.get(remote[:500], source[:500])
        pair.near.signal(pair.peer, "bare")
        plan.advance(0.6)
        assert (await pair.far.wait_signal("bare")).sequence == 1
        plan.advance(0.8)
        assert not first.done()
        plan.advance(0.2)
        await first
        await pair.far.wait_signal("first")
        assert not second.done()
        plan.advance(0.5)
        await second
        plan.throttle(None)
        assert not any("throttled" in hop.reason for hop in pair.peer.route)
        await pair.near.put(source, remote)
        assert plan.pending == 0


async def test_a_deadline_on_a_throttled_link(link: str) -> None:
    """What the link has not carried in time is stopped before anything moves."""
    plan = FaultPlan()
    async with faulty(link, near=plan) as pair:
        target, remote = await pair.target(1000)
        source = await pair.source(1000, 5)
        plan.throttle(1.0)
        with pytest.raises(TransferTimeoutError):
            await pair.near.put(source, remote, timeout=0.05)
        assert (source.busy, bytes(target.view())) == (False, bytes(1000))


async def test_an_abort_after_a_timeout_says_so_to_all_whom_it_ends(link: str) -> None:
    """One of eight is late on a transport that cannot stop: the others, in flight and in line, hear whose
    deadline it was; all memory is free once the link is down; nothing lands later; one connect cures it."""
    plan = FaultPlan(can_stop=False)
    async with faulty(
        link, near=plan, credits_per_peer=6, timeout_policy="abort", cancel_grace=30, drain_timeout=30
    ) as pair:
        target, remote = await pair.target(8 << 10)
        sources = [await pair.source(1 << 10, 9) for _ in range(8)]
        held = plan.hold(count=6)
        puts = [
            pair.near.put(source, remote[n << 10 : (n + 1) << 10], timeout=0.1 if n == 0 else None)
            for n, source in enumerate(sources)
        ]
        await held.wait_caught(6)
        with anyio.fail_after(5):  # far from grace and drain
            results = await outcomes(*puts, pair.near.wait_signal("never", peer=pair.peer))
            for put in puts:
                await put.settled()
        assert isinstance(results[0], TransferTimeoutError)
        for result in results[1:]:
            assert isinstance(result, PeerLostError)
            for word in ("put of 1024 bytes", "timeout of 0.1 s", "timeout_policy='abort'", "Connect again"):
                assert word in str(result)
        assert not any(source.busy for source in sources)
        assert pair.peer.state is PeerState.LOST
        with pytest.raises(PeerLostError, match="timeout_policy='abort'"):
            await pair.near.put(sources[0], remote[: 1 << 10])
        assert held.release() == 0
        again = await pair.near.connect(pair.far.address)
        await pair.near.put(sources[1], again.region("target")[1 << 10 : 2 << 10])
        assert bytes(target.view()) == bytes(1 << 10) + bytes([9]) * (1 << 10) + bytes(6 << 10)


async def test_a_delayed_operation_is_overtaken(link: str) -> None:
    """Later ones are delivered first, unless a fence holds them back."""
    plan = FaultPlan(clock="manual")
    async with faulty(link, near=plan) as pair:
        _, remote = await pair.target(8)
        source = await pair.source(8)
        delayed = plan.delay(1.0)
        late = pair.near.put(source, remote, signal="late")
        await pair.near.put(source, remote, signal="early")
        assert (await anext(pair.far.signals())).name == "early"
        pair.near.fence(pair.peer)
        fenced = pair.near.put(source, remote)
        assert (late.done(), fenced.done(), delayed.hits) == (False, False, 1)
        plan.advance(1.0)
        await fenced
        assert late.done()
        assert (await anext(pair.far.signals())).name == "late"


async def test_rules_pick_by_kind_peer_and_size(link: str) -> None:
    """And are used up, or removed; what a plan says before its engine opens counts too."""
    plan = FaultPlan()
    gets = plan.fail(kind=OperationKind.GET, count=None)
    large = plan.fail(min_nbytes=9, kind=OperationKind.PUT)
    async with faulty(link, near=plan) as pair:
        _, remote = await pair.target(16)
        source = await pair.source(16)
        signals = plan.refuse(Status.SIGNAL_QUEUE_FULL, kind=OperationKind.SIGNAL)
        with pytest.raises(SignalQueueFullError):
            pair.near.signal(pair.peer, "s")
        await pair.near.signal(pair.peer, "s")
        await pair.far.wait_signal("s")
        await pair.near.put(source[:8], remote[:8])
        for failing in (
            pair.near.put(source, remote),
            pair.near.get(remote, source),
            pair.near.get(remote, source),
        ):
            with pytest.raises(TransferFailedError):
                await failing
        await pair.near.put(source, remote)
        gets.remove()
        await pair.near.get(remote, source)
        assert (gets.hits, large.hits, signals.hits) == (2, 1, 1)


async def test_mistakes_in_a_plan() -> None:
    """Each is named; a plan spoils one engine at a time."""
    plan = FaultPlan()
    wrong: list[Callable[[], object]] = [
        lambda: plan.hold(at="nowhere"),  # type: ignore[arg-type]
        lambda: plan.hold(skip=-1),
        lambda: plan.fail(Status.OK),
        lambda: plan.reorder(1),
        lambda: plan.throttle(0.0),
        lambda: plan.throttle(1.0, latency=-1.0),
        lambda: plan.advance(1.0),
        lambda: FaultPlan(clock="lunar"),  # type: ignore[arg-type]
    ]
    for call in wrong:
        with pytest.raises(InvalidArgumentError):
            call()
    unknown: list[Callable[[], object]] = [
        lambda: plan.lie(status=Status.LOST),  # type: ignore[call-arg]
        lambda: plan.latch(count=2),  # type: ignore[call-arg]
        lambda: plan.reorder(2, count=2),  # type: ignore[call-arg]
    ]
    for call in unknown:
        with pytest.raises(TypeError, match="keyword argument"):
            call()
    async with plan.engine():
        with pytest.raises(InvalidArgumentError, match="without an open engine"):
            plan.engine()
        held = plan.hold()
    with pytest.raises(ClosedError):
        await held.wait_caught()
    async with plan.engine():
        assert held.caught == 0
