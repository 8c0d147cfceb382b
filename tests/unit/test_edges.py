"""Calls that come at the wrong moment or with the wrong things, and answers that native code seldom gives."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hixl_aio import (
    Access,
    AccessDeniedError,
    ClosedError,
    Completion,
    ConnectTimeoutError,
    Engine,
    Get,
    GetBlocks,
    HixlAioError,
    InternalError,
    InvalidArgumentError,
    OperationState,
    PeerLostError,
    PeerNotConnectedError,
    PeerRestartedError,
    Put,
    PutBlocks,
    RegionBusyError,
    ResourceExhaustedError,
    SignalQueueFullError,
    Status,
    TransferFailedError,
    TransferStoppedError,
    UnsupportedError,
    _closing,
    _regions,
)

from .conftest import Scene, SceneMaker
from .native_stand_in import StandIn

pytestmark = pytest.mark.asyncio


async def turn(count: int = 5) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


def put(scene: Scene, **options: Any) -> Completion:
    """One put of eight bytes."""
    return scene.engine.put(scene.source[0:8], scene.remote[0:8], **options)


async def test_a_place_for_the_signal_that_cannot_be_had(scene: SceneMaker) -> None:
    """A full queue raises before anything moves; a peer that is gone shows in the Completion."""
    async with scene() as s:
        s.native.reserve_answer = -Status.SIGNAL_QUEUE_FULL
        calls: list[Callable[[], object]] = [lambda: put(s, signal="s"), lambda: s.engine.signal(s.peer, "s")]
        for call in calls:
            with pytest.raises(SignalQueueFullError) as full:
                call()
            assert (full.value.name, full.value.peer) == ("s", "127.0.0.1:2")
        s.native.reserve_answer = -Status.PEER_LOST
        for operation in (put(s, signal="s"), s.engine.signal(s.peer, "s")):
            assert isinstance(operation.exception(), PeerLostError)
            assert operation.state is OperationState.SETTLED
        assert s.native.calls == 0
        assert not s.source.busy


async def test_batches_that_cannot_be(scene: SceneMaker) -> None:
    """Each fault is named with its part, before anything is pinned or reserved."""
    async with scene() as s:
        swapped: Any = Put
        readonly = await s.engine.register(b"12345678")
        here, there = s.source[0:8], s.remote[0:8]
        unreadable = s.region_without(Access.WRITE)
        other = s.region_of("ef" * 16)
        bad: list[tuple[Any, type[Exception]]] = [
            ([Put(here, s.remote[0:9])], InvalidArgumentError),
            ([Get(s.remote[0:9], here)], InvalidArgumentError),
            ([Get(there, readonly)], AccessDeniedError),
            ([Get(unreadable[0:8], here)], AccessDeniedError),
            ([Put(here, there), Put(here, other[0:8])], InvalidArgumentError),
            ([PutBlocks(here, there, [0], [0, 4], 4)], InvalidArgumentError),
            ([PutBlocks(here, there, [0], [0], -1)], InvalidArgumentError),
            ([GetBlocks(there, here, [0], [0], [1, 2])], InvalidArgumentError),
            ([GetBlocks(there, here, [0], [0], True)], InvalidArgumentError),
            ([swapped(there, here)], InvalidArgumentError),
            ([Put(here, there), "x"], InvalidArgumentError),
        ]
        for ops, error in bad:
            with pytest.raises(error) as refused:
                s.engine.batch(ops, signal="s")
            assert f"in part {len(ops) - 1} of the batch" in refused.value.__notes__
        with pytest.raises(InvalidArgumentError, match="at least one part"):
            s.engine.batch([], signal="s")
        assert (s.native.reserved, s.native.calls) == (0, 0)
        await s.engine.batch([])
        await readonly.aclose()
        with pytest.raises(ClosedError, match="part 1"):
            s.engine.batch([Put(here, there), Put(readonly, there)])


async def test_a_batch_of_nothing_but_empty_parts_signals(scene: SceneMaker) -> None:
    """It has a peer, so the signal goes there."""
    async with scene() as s:
        await s.engine.batch([Put(s.source[0:0], s.remote[0:0])], signal="s")
        assert s.native.signals == [(b"s", b"", 0)]
        assert s.native.calls == 0


async def test_a_batch_that_native_code_refuses_later_fails_later(scene: SceneMaker) -> None:
    """At the call it raises; after its turn in the line it is in the Completion. The signal is negative."""
    async with scene(credits_per_peer=1) as s:
        s.native.bad_batch = "part 0"
        with pytest.raises(InvalidArgumentError, match="part 0"):
            s.engine.batch([Put(s.source[0:8], s.remote[0:8])], signal="now")
        first = put(s)
        waiting = s.engine.batch([Put(s.source[0:8], s.remote[0:8])], signal="later")
        s.native.bad_batch = "part 0"
        s.native.end()
        await first
        with pytest.raises(InvalidArgumentError, match="part 0"):
            await waiting
        assert s.native.signals == [
            (b"now", b"", Status.OUT_OF_BOUNDS),
            (b"later", b"", Status.OUT_OF_BOUNDS),
        ]
        first = put(s)
        with pytest.raises(InvalidArgumentError, match="part 0"):
            s.engine.batch([PutBlocks(s.source[0:8], s.remote[0:8], [0], [7], 4)])
        s.native.end()
        await first


async def test_a_refusal_in_the_line_goes_on_with_the_next(scene: SceneMaker) -> None:
    """One stale region does not stop those behind it."""
    async with scene(credits_per_peer=1) as s:
        first, stale, last = put(s), put(s, signal="s"), put(s)
        s.native.answers = [-Status.STALE_REGION, 1]
        s.native.end()
        await first
        assert stale.exception() is not None
        s.native.end()
        await last
        assert s.native.signals == [(b"s", b"", Status.STALE_REGION)]


async def test_signals_that_follow_an_operation(scene: SceneMaker) -> None:
    """Stopped before it comes to that: silent for the operation, negative for the receiver."""
    async with scene() as s:
        operation = put(s)
        follower, dropped = (
            s.engine.signal(s.peer, "a", after=operation),
            s.engine.signal(s.peer, "b", after=operation),
        )
        assert dropped.cancel()
        assert isinstance(dropped.exception(), TransferStoppedError)
        s.native.end(status=Status.FAILED)
        await follower
        assert s.native.signals == [(b"b", b"", Status.STOPPED), (b"a", b"", Status.FAILED)]
        await s.engine.signal(s.peer, "c", after=operation)
        assert s.native.signals[-1] == (b"c", b"", Status.FAILED)
        assert isinstance(operation.exception(), TransferFailedError)
        with pytest.raises(InvalidArgumentError):
            s.engine.signal(s.peer, "d", after="x")  # type: ignore[arg-type]


async def test_a_cancelled_ready_stops_the_operation(scene: SceneMaker) -> None:
    """Not a failure: somebody wanted it so."""
    async with scene() as s:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        operation = put(s, ready=future)
        future.cancel()
        with pytest.raises(TransferStoppedError):
            await operation


async def test_peers_of_other_engines_are_refused(scene: SceneMaker, stand_ins: list[StandIn]) -> None:
    """By every call that takes one."""
    async with scene() as s, Engine() as other:
        foreign = await other.connect("127.0.0.1:9")
        for call in (lambda: s.engine.signal(foreign, "s"), lambda: s.engine.fence(foreign)):
            with pytest.raises(InvalidArgumentError):
                call()
        for waiting in (
            s.engine.flush(foreign),
            s.engine.wait_capacity(foreign),
            s.engine.wait_signal("s", peer=foreign),
            s.engine.wait_signal("s", peer="x"),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidArgumentError):
                await waiting
        with pytest.raises(PeerNotConnectedError):
            other.put(await other.register(bytearray(8)), s.region_of("ef" * 16)[0:8])


async def test_signals_to_peers_that_have_gone(scene: SceneMaker) -> None:
    """Lost: in the Completion. Closed by us: at the call."""
    async with scene() as s:
        second = await s.engine.connect("127.0.0.1:3")
        s.native.peer_down(1)
        await turn()
        with pytest.raises(PeerLostError):
            await s.engine.signal(s.peer, "s")
        for call in (lambda: s.engine.fence(s.peer), lambda: s.peer.region("x")):
            with pytest.raises(PeerLostError):
                call()
        with pytest.raises(PeerLostError):
            await s.peer.refresh()
        await s.peer.aclose()
        await second.aclose()
        with pytest.raises(PeerNotConnectedError):
            s.engine.signal(second, "s")


async def test_control_requests_that_are_refused(scene: SceneMaker) -> None:
    """At once, or in their answer: the error is that of the status."""
    async with scene() as s:
        s.native.refusal = Status.RESOURCE_EXHAUSTED
        with pytest.raises(ResourceExhaustedError):
            await s.engine.allocate(8)
        s.native.refusal = Status.INVALID_ARGUMENT
        with pytest.raises(InvalidArgumentError, match="refused at once"):
            await s.engine.connect("nonsense")
        for address in ("", 5):
            with pytest.raises(InvalidArgumentError):
                await s.engine.connect(address)  # type: ignore[arg-type]
        s.native.answer_status = Status.PEER_LOST
        with pytest.raises(PeerLostError):
            await s.peer.refresh()
        with pytest.raises(PeerLostError):
            await s.source.aclose()
        s.native.answer_status = Status.REGION_BUSY
        with pytest.raises(RegionBusyError) as busy:
            await s.source.aclose()
        assert busy.value.pins == 0
        first, second = asyncio.create_task(s.source.aclose()), asyncio.create_task(s.source.aclose())
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert all(isinstance(result, RegionBusyError) for result in results)
        s.native.answer_status = Status.OK
        await s.source.aclose()


async def test_a_closing_that_is_answered_late_is_not_asked_for_again(
    scene: SceneMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the region's number may name a newer one: the late answer counts, and a busy one asks anew."""
    monkeypatch.setattr(_regions, "_ARRIVAL", 0.01)
    async with scene(drain_timeout=0.01) as s:
        s.native.hold_closings = True
        with pytest.raises(RegionBusyError):
            await s.source.aclose()
        with pytest.raises(RegionBusyError):  # still without an answer: it goes on waiting for the same one
            await s.source.aclose()
        ((token, number),) = s.native.closings
        s.native.closed_region(token, Status.REGION_BUSY)
        await turn()
        s.native.hold_closings = False
        s.native.answer_status = Status.REGION_BUSY
        with pytest.raises(RegionBusyError):
            await s.source.aclose()
        assert [asked for _, asked in s.native.closings] == [number] * 2
        s.native.answer_status = Status.OK
        s.native.hold_closings = True
        with pytest.raises(RegionBusyError):
            await s.source.aclose()
        s.native.closed_region(s.native.closings[-1][0])
        await turn()
        await s.source.aclose()
        assert [asked for _, asked in s.native.closings] == [number] * 3
        assert s.engine.statistics().regions == 0
        s.native.hold_closings = False


async def test_a_connect_that_is_never_answered_has_its_own_clock(scene: SceneMaker) -> None:
    """Every caller that shares it waits for as long as it wanted; the late peer is let go."""
    async with scene() as s:
        s.native.silent = True
        with pytest.raises(ConnectTimeoutError):
            await s.engine.connect("127.0.0.1:7", timeout=0.01)
        waiting = asyncio.create_task(s.engine.connect("127.0.0.1:8", timeout=60))
        await turn()
        await s.engine.aclose()
        with pytest.raises(ClosedError):
            await waiting


async def test_a_peer_that_dies_while_it_is_connected_is_no_peer(scene: SceneMaker) -> None:
    """Connected and down in one drain: connect says so, and does not revive it."""
    async with scene() as s:
        connecting = asyncio.create_task(s.engine.connect("127.0.0.1:7"))
        await asyncio.sleep(0)
        s.native.peer_down(2)
        with pytest.raises(PeerLostError):
            await connecting
        assert list(s.engine.peers) == ["127.0.0.1:2"]


async def test_accept_hands_a_peer_on(scene: SceneMaker) -> None:
    """Cancelled with a peer in hand: the next one who waits gets it, or who asks later."""
    async with scene() as s:
        first, second = asyncio.create_task(s.engine.accept()), asyncio.create_task(s.engine.accept())
        await turn()
        s.native.accepted(7, "127.0.0.1:7", "cd" * 16)
        s.engine._runtime.on_readable()
        first.cancel()
        await turn()
        assert (await second).address == "127.0.0.1:7"
        third = asyncio.create_task(s.engine.accept())
        await turn()
        s.native.accepted(8, "127.0.0.1:8", "de" * 16)
        s.engine._runtime.on_readable()
        third.cancel()
        await turn()
        assert (await s.engine.accept()).address == "127.0.0.1:8"
        s.native.accepted(9, "127.0.0.1:9", "ef" * 16)
        await turn()
        s.native.peer_down(9)
        await turn()
        waiting = asyncio.create_task(s.engine.accept())
        await turn()
        assert not waiting.done()  # who has gone before anybody asked is not handed out
        waiting.cancel()


async def test_many_peers_come_and_go(scene: SceneMaker) -> None:
    """What is remembered of those that have gone is bounded."""
    async with scene() as s:
        for number in range(2, 1300):
            s.native.accepted(number, f"127.0.0.1:{number + 1000}", f"{number:032x}")
            s.native.peer_down(number)
            if not number % 100:
                await turn()
        await turn()
        control = s.engine._runtime.control
        assert len(s.engine.peers) == 1
        assert len(control.numbers) == 1
        assert len(control._gone) == 1024
        assert not control.reception._peers


async def test_a_signal_from_nobody_is_reported(scene: SceneMaker) -> None:
    """And the others are delivered."""
    async with scene() as s:
        reports: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        s.native.arrive(77, 1, "s")
        s.native.arrive(1, 1, "t")
        s.native.arrive(1, 2, "s", b"x", Status.STOPPED)
        signal = await s.engine.wait_signal("s")
        assert isinstance(reports[0]["exception"], InternalError)
        assert signal.error is not None
        assert (signal.error.status, signal.error.name, signal.payload) == (Status.STOPPED, "s", b"x")
        assert (await anext(s.engine.signals())).name == "t"


async def test_native_code_that_does_not_shut_down_is_left_behind(
    scene: SceneMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing says so, and everybody hears of it; nothing waits for ever."""
    monkeypatch.setattr(_closing, "_NATIVE_SHUTDOWN", 0.01)
    async with scene(cancel_grace=0.01) as s:
        s.native.hold_shutdown = True
        operation = put(s)
        task = asyncio.create_task(operation.wait())
        await turn()
        with pytest.warns(RuntimeWarning), pytest.raises(InternalError, match="did not shut down"):
            await s.engine.aclose(drain_timeout=0.01)
        with pytest.raises(ClosedError):
            await task
        assert operation.state is OperationState.SETTLED
        assert s.engine.closed


async def test_memory_that_a_stopped_peer_may_write_to_is_kept_for_good(scene: SceneMaker) -> None:
    """Closing goes on and says so; the buffer is never given back (INV-10)."""
    buffer = bytearray(8)
    async with scene() as s:
        await s.engine.register(buffer, label="inbox", access=Access.WRITE)
        s.native.answer_status = Status.REGION_BUSY
        with pytest.warns(RuntimeWarning, match="'inbox'"):
            await s.engine.aclose()
    del s
    gc.collect()
    with pytest.raises(BufferError):
        buffer.append(1)
    _regions._kept_for_good.clear()
    gc.collect()
    buffer.append(1)


async def test_closing_arguments(scene: SceneMaker) -> None:
    """A time is a time; what is closed stays closed whatever it is asked."""
    async with scene() as s:
        for bad in (-1, float("nan"), float("inf")):
            with pytest.raises(InvalidArgumentError):
                await s.engine.aclose(drain_timeout=bad)
        assert not s.engine.closed
        await s.engine.aclose(drain_timeout=None)
        await s.engine.aclose(drain_timeout=-1)


async def test_a_transport_that_cannot_stop_is_not_waited_for(
    stand_ins: list[StandIn], scene: SceneMaker
) -> None:
    """The deadline tells at once; the memory stays busy."""
    async with scene() as s:
        s.native.options["can_stop"] = False
        s.engine._runtime.capabilities_found = type(s.engine.capabilities).from_native(s.native.capabilities)
        operation = put(s, timeout=0.01)
        with pytest.raises(TimeoutError):
            await operation
        assert operation.elapsed < 0.09
        assert s.source.busy
        s.native.end()
        await operation.settled()
        await operation.settled()


async def test_a_memory_that_no_link_reaches_is_explained(scene: SceneMaker) -> None:
    """With the way out."""
    async with scene() as s:
        s.native.answers = [-Status.NO_LINK, -Status.ACCESS_DENIED]
        with pytest.raises(UnsupportedError, match="allocate"):
            put(s)
        with pytest.raises(AccessDeniedError) as denied:
            put(s)
        assert denied.value.needed == "WRITE"


async def test_a_denied_batch_says_what_the_part_to_blame_needs(scene: SceneMaker) -> None:
    """The second of two, which is a get."""
    async with scene() as s:
        s.native.refused_part = 1
        s.native.answers = [-Status.ACCESS_DENIED]
        with pytest.raises(AccessDeniedError) as denied:
            s.engine.batch([Put(s.source[0:8], s.remote[0:8]), Get(s.remote[0:8], s.source[0:8])])
        assert denied.value.needed == "READ"


async def test_a_region_without_a_label_is_not_called_by_an_empty_one(scene: SceneMaker) -> None:
    """Closed, or of a kind that no link reaches."""
    async with scene() as s:
        unnamed = dataclasses.replace(s.remote, label="")
        s.native.answers = [-Status.NO_LINK]
        with pytest.raises(UnsupportedError, match="an unlabelled region is"):
            s.engine.put(s.source[0:8], unnamed[0:8])
        await s.source.aclose()
        with pytest.raises(ClosedError, match="an unlabelled region of"):
            s.engine.put(s.source[0:8], s.remote[0:8])


async def test_the_restart_is_told_once_a_successor_is_there(scene: SceneMaker) -> None:
    """For waiting calls as well."""
    async with scene() as s:
        s.native.peer_down(1)
        s.native.accepted(9, "127.0.0.1:2", "ab" * 16)
        await turn()
        with pytest.raises(PeerRestartedError):
            await s.engine.wait_capacity(s.peer)
        with pytest.raises(PeerRestartedError):
            await s.engine.flush(s.peer)


async def test_observers_come_and_go(scene: SceneMaker) -> None:
    """`wait(join=False)` and `settled` leave no trace, whenever they are cancelled."""
    async with scene() as s:
        operation = put(s)
        for watch in (operation.wait(join=False), operation.settled(), operation.wait(join=False)):
            task = asyncio.create_task(watch)
            await turn()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert s.native.stopped == []
        watching = asyncio.create_task(operation.wait(join=False))
        await turn()
        s.native.end(status=Status.FAILED)
        with pytest.raises(TransferFailedError):
            await watching
        await operation.settled()
        with pytest.raises(HixlAioError):
            await operation.wait(join=False)
        del operation, watching, task
        gc.collect()


async def test_every_way_to_await_what_is_done_lets_others_run(scene: SceneMaker) -> None:
    """`await op`, `op.wait()`, with and without join, and a failed one: one in 33 gives the loop a turn."""
    async with scene() as s:
        s.native.answers = [-Status.PEER_LOST]
        failed = put(s)
        assert failed.exception() is not None

        async def bare(completion: Completion) -> None:
            await completion

        async def fail() -> None:
            with pytest.raises(PeerLostError):
                await failed

        ways: list[Callable[[], Awaitable[object]]] = [
            lambda: bare(s.engine.batch([])),
            lambda: s.engine.batch([]).wait(),
            lambda: s.engine.batch([]).wait(join=False),
            fail,
        ]
        for way in ways:
            ticker = Ticker()
            for _ in range(200):
                await way()
            assert ticker.stop() >= 200 // 33


class Ticker:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self._turns = 0
        self._next = asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self._turns += 1
        self._next = asyncio.get_running_loop().call_soon(self._tick)

    def stop(self) -> int:
        """How many there were."""
        self._next.cancel()
        return self._turns
