"""Signals over a transport that loses, repeats and delays them: whoever waits for them notices nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from hixl_aio import (
    EngineOptions,
    InvalidArgumentError,
    PeerLostError,
    SignalQueueFullError,
    TransferFailedError,
    TransferStoppedError,
)
from hixl_aio.testing import FaultPlan

from .support import Pair, faulty


@asynccontextmanager
async def lossy(link: str, **options: int) -> AsyncIterator[tuple[Pair, FaultPlan, FaultPlan]]:
    """Two engines whose signals may get lost, and the plans that see to it: of `near`, of `far`."""
    near, far = FaultPlan(lossy_signals=True), FaultPlan(lossy_signals=True)
    async with faulty(link, near=near, far=far, **options) as pair:
        yield pair, near, far


async def test_lost_and_repeated_signals_arrive_once_and_in_order(link: str) -> None:
    """Both ways at the same time, alone and bound, with acknowledgements lost as well."""
    async with lossy(link) as (pair, near, far):
        _, remote = await pair.target(8)
        source = await pair.source(8)
        faults = [
            fault
            for plan in (near, far)
            for skip in range(0, 60, 6)
            for fault in (plan.drop_signal(skip=skip, count=3), plan.duplicate_signal(skip=skip))
        ]
        for number in range(100):
            payload = bytes([number])
            pair.near.signal(pair.peer, "s", payload)
            pair.near.put(source, remote, signal="s", payload=payload)
            pair.far.signal(pair.back, "t", payload)
        for number in range(100):
            for _ in range(2):
                there = await pair.far.wait_signal("s", peer=pair.back)
                assert there.error is None
            back = await pair.near.wait_signal("t")
            assert (back.sequence, back.payload[0]) == (number + 1, number)
        assert there.sequence == 200
        assert sum(fault.hits for fault in faults) >= 40
        assert pair.far.statistics().unread_signals == pair.near.statistics().unread_signals == 0


async def test_a_signal_that_is_lost_comes_after_a_timeout_and_before_later_ones(link: str) -> None:
    """The first attempts vanish; what was sent after it waits for it."""
    async with lossy(link) as (pair, _, far):
        lost = far.drop_signal("first", count=2)
        for name in ("first", "second", "third"):
            await pair.near.signal(pair.peer, name)
        arrived = [await anext(pair.far.signals()) for _ in range(3)]
        assert [signal.name for signal in arrived] == ["first", "second", "third"]
        assert lost.hits == 2


@pytest.mark.parametrize("form", ["positive", "negative"])
async def test_the_only_signal_there_is_comes_although_nothing_follows_it(link: str, form: str) -> None:
    """Bound to a put, lost three times, and no later one shows the gap: the sender's own clock does it."""
    async with lossy(link) as (pair, near, far):
        target, remote = await pair.target(8)
        lost = far.drop_signal("only", count=3)
        if form == "negative":
            near.fail()
        put = pair.near.put(await pair.source(8, 7), remote, signal="only")
        with anyio.fail_after(10):
            signal = await pair.far.wait_signal("only", peer=pair.back)
        assert (signal.error is not None) == (form == "negative")
        assert bytes(target.view()) == (bytes(8) if form == "negative" else bytes([7] * 8))
        assert (lost.hits, pair.far.statistics().unread_signals) == (3, 0)
        await put.settled()
        assert (put.exception() is not None) == (form == "negative")


async def test_a_bound_signal_comes_after_its_bytes_and_in_the_negative_form_if_they_did_not(
    link: str,
) -> None:
    """Held with its bytes on the way it has not been sent; a failure and a stop are told as such."""
    async with lossy(link) as (pair, near, far):
        target, remote = await pair.target(8)
        source = await pair.source(8, 7)
        far.drop_signal(count=3)
        half = near.hold(at="half")
        held = pair.near.put(source, remote, signal="held")
        await half.wait_caught()
        await pair.near.signal(pair.peer, "later")
        assert (await anext(pair.far.signals())).name == "later"
        half.release()
        await held
        assert (await pair.far.wait_signal("held")).error is None
        assert bytes(target.view()) == bytes([7] * 8)
        near.fail()
        with pytest.raises(TransferFailedError):
            await pair.near.put(source, remote, signal="failed")
        assert (await pair.far.wait_signal("failed")).error is not None
        waiting = near.hold()
        stopped = pair.near.put(source, remote, signal="stopped")
        await waiting.wait_caught()
        stopped.cancel()
        with pytest.raises(TransferStoppedError):
            await stopped
        assert (await pair.far.wait_signal("stopped")).error is not None


async def test_a_full_queue_is_an_error_at_the_sender_and_loses_nothing(link: str) -> None:
    """Reading gives the place back; also if the news of it is lost, because a refusal asks again."""
    async with lossy(link, signal_capacity=3) as (pair, near, _):
        for number in range(3):
            await pair.near.signal(pair.peer, "s", bytes([number]))
        with pytest.raises(SignalQueueFullError):
            pair.near.signal(pair.peer, "s")
        assert (await pair.far.wait_signal("s")).payload == b"\0"
        lost = near.drop_signal(count=3)  # acknowledgements and news of places
        while True:
            try:
                await pair.near.signal(pair.peer, "s", b"\3")
                break
            except SignalQueueFullError:
                await pair.far.signal(pair.back, "turn")  # a round trip, not a busy loop
                await pair.near.wait_signal("turn")
        assert [(await pair.far.wait_signal("s")).payload[0] for _ in range(3)] == [1, 2, 3]
        assert lost.hits == 3


async def test_closing_waits_for_what_was_said_last(link: str) -> None:
    """A signal that was sent just before the end arrives although its first attempt is lost."""
    async with lossy(link) as (pair, _, far):
        lost = far.drop_signal()
        await pair.near.signal(pair.peer, "last")
        await pair.near.aclose()
        assert (await pair.far.wait_signal("last")).sequence == 1
        assert lost.hits == 1


async def test_an_abort_waits_for_nothing(link: str) -> None:
    """What was not delivered is lost with the link, and whoever waits for it hears of the end."""
    async with lossy(link) as (pair, _, far):
        far.drop_signal(count=None)
        await pair.near.signal(pair.peer, "s")
        await pair.peer.abort()
        with pytest.raises(PeerLostError):
            await pair.far.wait_signal("s", peer=pair.back)
        again = await pair.near.connect(pair.far.address)
        far.clear()
        await pair.near.signal(again, "s")
        assert (await pair.far.wait_signal("s")).sequence == 1


async def test_an_engine_that_is_connected_to_itself(link: str) -> None:
    """Both ends of the numbering are ours."""
    plan = FaultPlan(lossy_signals=True)
    async with plan.engine(options=EngineOptions(links=(link,))) as engine:
        me = await engine.connect(engine.address)
        plan.drop_signal(count=2)
        for number in range(10):
            await engine.signal(me, "s", bytes([number]))
        assert [(await engine.wait_signal("s")).payload[0] for _ in range(10)] == list(range(10))


async def test_the_payload_makes_room_for_the_number(link: str) -> None:
    """The capabilities say how much is left; more is refused by name before anything moves."""
    async with lossy(link) as (pair, _, _):
        able = pair.near.capabilities
        assert (able.signals_lossless, able.max_signal_payload) == (True, 1016)
        target, remote = await pair.target(8)
        source = await pair.source(8, 7)
        await pair.near.put(source, remote, signal="s" * 1024, payload=b"x" * 1016)
        assert (await pair.far.wait_signal("s" * 1024)).payload == b"x" * 1016
        target.view()[:] = bytes(8)
        with pytest.raises(InvalidArgumentError, match=r"1017.*at most 1016 bytes"):
            pair.near.signal(pair.peer, "s", b"x" * 1017)
        with pytest.raises(InvalidArgumentError, match=r"1017.*at most 1016 bytes"):
            pair.near.put(source, remote, signal="s", payload=b"x" * 1017)
        assert bytes(target.view()) == bytes(8)
    async with faulty(link) as pair:
        able = pair.near.capabilities
        assert (able.signals_lossless, able.max_signal_payload) == (True, 1024)
