"""The end of a wait and its cancellation in the same turn of the loop: one outcome each, nothing lost.

CPython 3.11's own `wait_for` may swallow a cancellation that comes with a result; that is not ours to mend.
"""

from __future__ import annotations

import asyncio
import collections
import random
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hixl_aio import Access, EngineOptions, Signal, StaleRegionError
from hixl_aio.testing import EnginePair, FaultPlan, Hold, check_quiescent, connected_engines

from ..soak import rounds

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(rounds(60, 1800))]

ROUNDS = rounds(2000, 100_000)
Limit = Callable[[Coroutine[Any, Any, Signal], float], Coroutine[Any, Any, Signal]]


async def by_timeout(wait: Coroutine[Any, Any, Signal], seconds: float) -> Signal:
    """asyncio.timeout; when it is over, nothing of it may be left in the task."""
    task = asyncio.current_task()
    assert task is not None
    try:
        async with asyncio.timeout(seconds):
            return await wait
    finally:
        assert task.cancelling() == 0


async def by_wait_for(wait: Coroutine[Any, Any, Signal], seconds: float) -> Signal:
    """asyncio.wait_for."""
    return await asyncio.wait_for(wait, seconds)


class Deadlines:
    """Signals that land at the deadline of who waits for them: by the clock, or in the very same turn."""

    def __init__(self, pair: EnginePair, limit: Limit) -> None:
        self.pair = pair
        self.limit = limit
        self.chance = random.Random(7)
        self.got: list[int] = []
        self.late = 0
        self.sent = 0

    def send(self) -> None:
        self.pair.near.signal(self.pair.peer, "s", self.sent.to_bytes(4, "little"))
        self.sent += 1

    async def wait(self, seconds: float) -> None:
        try:
            signal = await self.limit(self.pair.far.wait_signal("s"), seconds)
        except TimeoutError:
            self.late += 1
        else:
            self.got.append(int.from_bytes(signal.payload, "little"))

    async def round(self) -> None:
        loop, seconds = asyncio.get_running_loop(), self.chance.choice((0.0, 1e-5, 1e-4, 3e-4))
        way = self.chance.randrange(4)
        if way == 0:  # before the wait begins
            self.send()
        elif way == 1:  # in the turn of the deadline: its timer was made a moment before this one
            loop.call_later(seconds, self.send)
        elif way == 2:  # the same, and the receiver sees it in that very turn
            loop.call_later(seconds, self._send_and_deliver)
        else:
            loop.call_later(seconds * self.chance.random(), self.send)
        before = self.sent
        await self.wait(seconds)
        while self.sent == before and way != 0:  # noqa: ASYNC110  (a timer of the loop, which is due)
            await asyncio.sleep(0)
        await self.take_the_rest()

    def _send_and_deliver(self) -> None:
        self.send()
        self.pair.far._runtime.on_readable()

    async def take_the_rest(self) -> None:
        while len(self.got) < self.sent:
            await self.wait(10.0)


@pytest.mark.parametrize("limit", [by_timeout, by_wait_for])
async def test_a_signal_at_the_deadline_is_taken_or_kept(limit: Limit) -> None:
    """Each signal is returned by one wait, or is still there for the next one, in order."""
    async with connected_engines() as pair:
        race = Deadlines(pair, limit)
        for _ in range(ROUNDS):
            await race.round()
        assert race.got == list(range(ROUNDS))
        assert race.late > ROUNDS // 20
        await check_quiescent(pair.far)


async def test_a_cancellation_at_the_arrival_is_seen_and_the_signal_kept() -> None:
    """Every `cancel()` that was accepted ends the task as cancelled; every signal comes to somebody."""
    await _cancel_at_the_arrival(lambda pair: pair.far.wait_signal("s"))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="CPython 3.11's wait_for may swallow a cancellation")
async def test_a_cancellation_at_the_arrival_is_seen_through_wait_for() -> None:
    """The same with `wait_for` between."""

    async def wait(pair: EnginePair) -> Signal:
        return await asyncio.wait_for(pair.far.wait_signal("s"), 10)

    await _cancel_at_the_arrival(wait)


async def _cancel_at_the_arrival(wait: Callable[[EnginePair], Coroutine[Any, Any, Signal]]) -> None:
    chance = random.Random(3)
    outcomes: collections.Counter[str] = collections.Counter()
    got: list[int] = []
    async with connected_engines() as pair:
        for number in range(ROUNDS):
            task = asyncio.ensure_future(wait(pair))
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            send = pair.near.signal(pair.peer, "s", number.to_bytes(4, "little"))
            if chance.random() < 0.3:
                was_accepted = task.cancel()
                pair.far._runtime.on_readable()
            else:
                pair.far._runtime.on_readable()
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(0)
                was_accepted = task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() == was_accepted, "a cancellation was swallowed, or made up"
            outcomes["cancelled" if was_accepted else "taken"] += 1
            if not was_accepted:
                got.append(int.from_bytes(task.result().payload, "little"))
            while len(got) <= number:
                got.append(int.from_bytes((await pair.far.wait_signal("s")).payload, "little"))
            await send
        assert got == list(range(ROUNDS))
        assert min(outcomes["cancelled"], outcomes["taken"]) > ROUNDS // 100, outcomes
        await check_quiescent(pair.far)


# ---- nested (A3-04)


class StageFailed(Exception):
    """What a stage raises."""


class Pipeline:
    """Two stages in a TaskGroup, in a timeout, in a TaskGroup: everything may end in one turn of the loop."""

    def __init__(self, pair: EnginePair, held: Hold, seed: int) -> None:
        self.pair = pair
        self.held = held
        self.chance = random.Random(seed)
        self.was_busy = True
        self.cancelling = -1

    async def prepare(self) -> None:
        await self.pair.far.allocate(8192, label="target", access=Access.READ_WRITE)
        self.source = await self.pair.near.allocate(4096)
        self.other = await self.pair.near.allocate(4096)
        await self.pair.peer.refresh()
        self.remote = self.pair.peer.region("target")

    async def first(self) -> None:
        await self.pair.near.put(self.source, self.remote[:4096], signal="first")

    async def second(self, fail: asyncio.Event) -> None:
        get = self.pair.near.get(self.remote[4096:], self.other)
        await fail.wait()
        del get  # dropped under way: it ends by itself
        raise StageFailed

    async def inner(self, fail: asyncio.Event, times: list[asyncio.Timeout]) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(60) as limit:
                times.append(limit)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self.first())
                    group.create_task(self.second(fail))
        finally:
            # Both stages have ended: the memory of the one that was awaited is free here already.
            self.was_busy = self.source.busy
            self.cancelling = task.cancelling()

    async def whole(self, fail: asyncio.Event, times: list[asyncio.Timeout]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.inner(fail, times))

    async def run(self, which: str) -> BaseException:
        """End it in up to three ways in one turn, in any order; returns what came out."""
        fail = asyncio.Event()
        times: list[asyncio.Timeout] = []
        outer = asyncio.ensure_future(self.whole(fail, times))
        await self.held.wait_caught(2)
        loop = asyncio.get_running_loop()
        ends: dict[str, Callable[[], object]] = {
            "f": fail.set,
            "t": lambda: times[0].reschedule(loop.time()),
            "c": outer.cancel,
            "r": self.held.release,
        }
        for end in self.chance.sample(which, len(which)):
            ends[end]()
        result = (await asyncio.gather(outer, return_exceptions=True))[0]
        self.held.release()
        await self.pair.near.flush()
        assert isinstance(result, BaseException)
        return result


ENDS = {"f": StageFailed, "t": TimeoutError, "c": asyncio.CancelledError}


def leaves(error: BaseException) -> list[BaseException]:
    """What groups of groups hold."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in leaves(inner)]


@pytest.mark.parametrize("which", ["f", "t", "c", "ft", "fc", "tc", "ftc", "ftcr"])
async def test_nested_ends_in_one_turn_leave_one_outcome_and_free_memory(which: str) -> None:
    """A failing stage, a deadline, an outer cancellation, and the transfers' own end, in every order."""
    plan = FaultPlan()
    async with connected_engines(EngineOptions(links=("shm",)), plan=plan) as pair:
        pipeline = Pipeline(pair, plan.hold(count=None), seed=11)
        await pipeline.prepare()
        for _ in range(rounds(40, 2000)):
            result = await pipeline.run(which)
            found = {type(error) for error in leaves(result)}
            expected = {ENDS[end] for end in which if end in ENDS}
            assert found <= expected, "nothing comes out that was not put in"
            assert found, "something comes out"
            if len(expected) == 1:
                assert found == expected
            assert not pipeline.was_busy
            if sys.version_info >= (3, 13):  # older task groups may keep a request of their own
                assert pipeline.cancelling <= ("c" in which), (
                    "only a cancellation from outside stays requested"
                )
            signal = await pair.far.wait_signal("first")
            assert signal.error is not None or "r" in which, "it was held, so it can only have been stopped"
            assert not pipeline.source.busy
            assert not pipeline.other.busy
        await check_quiescent(pair.near)
        await check_quiescent(pair.far)
        assert plan.pending == 0


async def both(*stages: Coroutine[Any, Any, None]) -> None:
    """Two stages in a group in a timeout."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for stage in stages:
            group.create_task(stage)


@pytest.mark.parametrize("first", ["transfer", "program"])
async def test_stages_that_fail_in_one_turn_are_both_in_the_group(first: str) -> None:
    """A transfer that fails and a program that fails, in either order: the group holds the error of each."""
    plan = FaultPlan()
    async with connected_engines(EngineOptions(links=("shm",)), plan=plan) as pair:
        task = asyncio.current_task()
        assert task is not None
        source = await pair.near.allocate(4096)
        for _ in range(rounds(20, 1000)):
            target = await pair.far.allocate(4096, label="target", access=Access.WRITE)
            await pair.peer.refresh()
            held, fail = plan.hold(), asyncio.Event()
            put = pair.near.put(source, pair.peer.region("target"))
            await held.wait_caught()
            await target.aclose()

            async def program(fail: asyncio.Event = fail) -> None:
                await fail.wait()
                raise StageFailed

            before = pair.near.statistics().native["completed"]

            def end(held: Hold = held, fail: asyncio.Event = fail, before: int = before) -> None:
                if first == "program":
                    fail.set()
                held.release()
                while pair.near.statistics().native["completed"] == before:
                    time.sleep(0)  # its record comes within this turn
                pair.near._runtime.on_readable()
                fail.set()

            asyncio.get_running_loop().call_soon(end)
            with pytest.raises(ExceptionGroup) as failed:
                await both(put.wait(), program())
            assert {type(error) for error in failed.value.exceptions} == {StageFailed, StaleRegionError}
            assert not source.busy
            if sys.version_info >= (3, 13):  # older task groups may keep a request of their own
                assert task.cancelling() == 0
        await check_quiescent(pair.near)
