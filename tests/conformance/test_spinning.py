"""Looking for news instead of sleeping (`EngineOptions.spin`), on every loop and link."""

from __future__ import annotations

import pytest

from hixl_aio import ClosedError, Engine, EngineOptions, _spinning
from hixl_aio.testing import FaultPlan

from ..loops import Tasks, turns
from .support import faulty


class Clock:
    """Stands still unless it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time by which engines spin."""
    clock = Clock()
    monkeypatch.setattr(_spinning, "monotonic", clock)
    return clock


async def test_a_loop_that_spins_lets_others_run_and_sleeps_in_time(link: str, clock: Clock) -> None:
    """Turn after turn it looks for the signal, for so long and no longer."""
    async with faulty(link, spin=2.0) as pair, Tasks() as tasks:
        waiting = tasks.start(pair.far.wait_signal("s"))
        await turns(20)  # which is what others do meanwhile
        assert pair.far.statistics().spins >= 10
        clock.now += 1.9
        before = pair.far.statistics().spins
        await turns(20)
        assert pair.far.statistics().spins >= before + 10
        clock.now += 0.2
        await turns(5)
        before = pair.far.statistics().spins
        await turns(20)
        assert pair.far.statistics().spins == before
        await pair.near.signal(pair.peer, "s")
        assert (await waiting.result()).name == "s"


async def test_news_end_the_spinning(link: str, clock: Clock) -> None:
    """A signal, or the record of an operation: who waits for more says so."""
    plan = FaultPlan()
    async with faulty(link, near=plan, spin=1e6) as pair, Tasks() as tasks:
        _, target = await pair.target(64)
        source = await pair.source(64, 1)
        held = plan.hold()
        put = pair.near.put(source, target, signal="s")
        waiting = tasks.start(pair.far.wait_signal("s"))
        moving = tasks.start(put.wait())
        await held.wait_caught()
        await turns(5)
        held.release()
        await moving.result()
        await waiting.result()
        await turns(5)
        before = [engine.statistics().spins for engine in (pair.near, pair.far)]
        await turns(20)
        assert [engine.statistics().spins for engine in (pair.near, pair.far)] == before
        assert min(before) > 0


async def test_nothing_spins_unless_it_is_asked_to(link: str) -> None:
    """The default burns no core."""
    async with faulty(link) as pair:
        await pair.near.signal(pair.peer, "s")
        await pair.far.wait_signal("s")
        assert pair.far.statistics().spins == pair.near.statistics().spins == 0


async def test_an_engine_that_spins_can_be_closed(clock: Clock) -> None:
    """With a task that waits: it hears of it, and the spinning ends with the engine."""
    engine = await Engine(options=EngineOptions(spin=1e6)).__aenter__()
    async with Tasks() as tasks:
        waiting = tasks.start(engine.wait_signal("s"))
        await turns(5)
        await engine.aclose()
        assert isinstance(await waiting.outcome(), ClosedError)
        assert engine.statistics().spins > 0
