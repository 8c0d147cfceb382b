"""How a workload and its floors are measured."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest

from hixl_aio.bench import measure as module
from hixl_aio.bench.measure import Case, Known, Pace, Sampled, Timed, measure
from hixl_aio.bench.statistics import Spread

THREE_ROUNDS = Pace(budget=0.0, turn=0.01, least=3, most=3, singles=5)


class Scripted:
    """Says what it was made to say, and notes whose turn it was."""

    def __init__(self, name: str, values: Sequence[float], turns: list[str]) -> None:
        self._name = name
        self._values = iter(values)
        self._turns = turns
        self.collected: list[bool] = []

    async def calibrate(self, seconds: float) -> int:
        return 1

    async def round(self, repetitions: int) -> float:
        self._turns.append(self._name)
        self.collected.append(gc.isenabled())
        return next(self._values)

    async def singles(self, seconds: float, most: int) -> Sequence[float]:
        return ()


@pytest.mark.asyncio
async def test_ratios_are_those_of_each_round() -> None:
    """A machine that is slow for a while is slow for both, and the ratio does not show it."""
    turns: list[str] = []
    work, floor = Scripted("work", [2, 40, 6], turns), Scripted("floor", [1, 20, 3], turns)
    found = await measure(Case(work, {"f": floor}), THREE_ROUNDS)
    assert found.ratios["f"] == Spread(2.0, 2.0, 2.0)
    assert (found.work.median, found.floors["f"].median) == (6.0, 3.0)


@pytest.mark.asyncio
async def test_nobody_always_follows_the_same_one() -> None:
    """The order of turns rotates, and others take turns too without being floors."""
    turns: list[str] = []
    one, two, three = (Scripted(name, [1, 1, 1], turns) for name in "abc")
    found = await measure(Case(one, {"f": two}, {"o": three}), THREE_ROUNDS)
    assert "".join(turns) == "abcbcacab"
    assert set(found.floors) == {"f"}
    assert set(found.others) == {"o"}
    assert set(found.ratios) == {"f", "o"}


@pytest.mark.asyncio
async def test_no_garbage_is_collected_meanwhile() -> None:
    """It is off in each round, and on again afterwards, also after an error."""
    work = Scripted("work", [1, 1, 1], [])
    await measure(Case(work), THREE_ROUNDS)
    assert work.collected == [False] * 3
    assert gc.isenabled()
    with pytest.raises(RuntimeError):  # of a coroutine whose values are used up
        await measure(Case(Scripted("work", [1], [])), THREE_ROUNDS)
    assert gc.isenabled()


class Clock:
    """Time that passes in calls only."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "perf_counter", clock)
    return clock


@pytest.mark.asyncio
async def test_an_action_is_timed_in_batches(clock: Clock) -> None:
    """As many repetitions as fill a turn, each of which may count as several operations."""

    async def run(repetitions: int) -> None:
        clock.now += repetitions * 0.001

    timed = Timed(run, per=4)
    assert await timed.calibrate(0.1) == 100
    assert await timed.round(100) == pytest.approx(0.001 / 4)
    before = clock.now
    assert await timed.calibrate(0.0005) == 1
    assert clock.now - before == pytest.approx(0.001)  # what is slow is not tried twice


@pytest.mark.asyncio
async def test_single_calls_end_with_the_time_or_their_number(clock: Clock) -> None:
    """Whichever comes first; at least one."""

    async def run(repetitions: int) -> None:
        clock.now += repetitions * 0.25

    timed = Timed(run)
    assert await timed.singles(10.0, 3) == [0.25] * 3
    assert len(await timed.singles(1.0, 100)) == 5
    assert len(await timed.singles(0.0, 100)) == 1


@pytest.mark.asyncio
async def test_samples_are_reduced_to_a_quantile_and_kept() -> None:
    """A round of something that is observed is one quantile; all samples make its tail."""

    async def sample() -> Sequence[float]:
        return [1.0, 2.0, 9.0]

    sampled = Sampled(sample, 1.0)
    assert await sampled.round(1) == 9.0
    await sampled.round(1)
    assert await sampled.singles(0.0, 1) == [1.0, 2.0, 9.0] * 2


@pytest.mark.asyncio
async def test_what_is_known_is_not_measured() -> None:
    """It says the same in each round."""
    found = await measure(Case(Known(5.0)), THREE_ROUNDS)
    assert (found.work.median, found.work.p99, found.work.rounds) == (5.0, 5.0, 3)
