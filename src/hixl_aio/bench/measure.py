"""A workload and its floors take turns, round after round, so that they meet the same machine."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, Protocol

from hixl_aio.bench.statistics import Spread, Summary, quantile, spread_of, summarise

__all__ = ("Case", "Known", "Measure", "Measurement", "Pace", "Sampled", "Timed", "measure")

_SINGLES: Final = 0.15  # of the time goes to single calls, for the tail
_CALIBRATION: Final = 0.25


class Measure(Protocol):
    """One thing that can be measured again and again."""

    async def calibrate(self, seconds: float) -> int:
        """How many repetitions take so long. Also warms up."""

    async def round(self, repetitions: int) -> float:
        """The value of one round."""

    async def singles(self, seconds: float, most: int) -> Sequence[float]:
        """Values of single calls; as many as fit."""


@dataclass(frozen=True, slots=True)
class Timed:
    """An action that is timed in batches: the clock is read twice for many calls.

    Attributes:
        run: does it so many times.
        per: as how many operations one repetition counts.
    """

    run: Callable[[int], Awaitable[object]]
    per: float = 1.0

    async def calibrate(self, seconds: float) -> int:
        repetitions, took = 1, await self._took(1)
        if took >= seconds:
            return 1
        took = await self._took(1)  # without what happens once only
        while took < seconds * _CALIBRATION:
            repetitions *= 4
            took = await self._took(repetitions)
        return max(1, round(repetitions * seconds / took))

    async def _took(self, repetitions: int) -> float:
        began = perf_counter()
        await self.run(repetitions)
        return perf_counter() - began

    async def round(self, repetitions: int) -> float:
        began = perf_counter()
        await self.run(repetitions)
        return (perf_counter() - began) / (repetitions * self.per)

    async def singles(self, seconds: float, most: int) -> Sequence[float]:
        run, per = self.run, self.per
        values: list[float] = []
        end = perf_counter() + seconds
        while len(values) < most:
            began = perf_counter()
            await run(1)
            now = perf_counter()
            values.append((now - began) / per)
            if now > end:
                break
        return values


@dataclass(frozen=True, slots=True)
class Sampled:
    """Something that is observed rather than timed: each round gives samples, of which one quantile counts.

    Attributes:
        sample: observes for one round.
        q: the quantile of its samples that is the value of the round.
    """

    sample: Callable[[], Awaitable[Sequence[float]]]
    q: float = 0.5
    seen: list[float] = field(default_factory=list)

    async def calibrate(self, seconds: float) -> int:
        return 1

    async def round(self, repetitions: int) -> float:
        values = await self.sample()
        self.seen.extend(values)
        return quantile(values, self.q)

    async def singles(self, seconds: float, most: int) -> Sequence[float]:
        return self.seen


@dataclass(frozen=True, slots=True)
class Known:
    """Something that was found out while setting up, and stays as it is.

    Attributes:
        value: what was found.
    """

    value: float

    async def calibrate(self, seconds: float) -> int:
        return 1

    async def round(self, repetitions: int) -> float:
        return self.value

    async def singles(self, seconds: float, most: int) -> Sequence[float]:
        return ()


@dataclass(frozen=True, slots=True)
class Case:
    """A workload that is set up: ready to be measured.

    Attributes:
        work: what is measured.
        floors: what it is compared with, by name; the fastest one is the floor.
        others: what else it is compared with.
    """

    work: Measure
    floors: Mapping[str, Measure] = field(default_factory=dict)
    others: Mapping[str, Measure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pace:
    """How much time measuring takes.

    Attributes:
        budget: seconds for a workload with its floors.
        turn: seconds for one turn of one of them.
        least, most: rounds.
        singles: single calls at most.
    """

    budget: float
    turn: float
    least: int
    most: int
    singles: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """What came out.

    Attributes:
        work: the workload.
        floors: its floors.
        others: what else took turns with it.
        ratios: of each round, the workload's value to the floor's: by floor, the others included.
    """

    work: Summary
    floors: Mapping[str, Summary]
    others: Mapping[str, Summary]
    ratios: Mapping[str, Spread]


async def measure(case: Case, pace: Pace) -> Measurement:
    """Let the workload and its floors take turns until the time is over.

    The garbage collector is off meanwhile.

    Args:
        case: what to measure.
        pace: how long.
    """
    measures: dict[str, Measure] = {"": case.work, **case.floors, **case.others}
    rounds: dict[str, list[float]] = {name: [] for name in measures}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        repetitions = {name: await each.calibrate(pace.turn) for name, each in measures.items()}
        end = perf_counter() + pace.budget * (1 - _SINGLES)
        names = list(measures)
        while len(rounds[""]) < pace.most and (len(rounds[""]) < pace.least or perf_counter() < end):
            for name in names:
                rounds[name].append(await measures[name].round(repetitions[name]))
            names.append(names.pop(0))  # nobody always follows the same one
        share = pace.budget * _SINGLES / len(measures)
        tails = {name: rounds[name] for name in measures}
        for name, each in measures.items():
            if not isinstance(each, Timed) or repetitions[name] > 1:  # else a round is a single call already
                tails[name] = list(await each.singles(share, pace.singles))
    finally:
        if collecting:
            gc.enable()
    summaries = {name: summarise(rounds[name], tails[name]) for name in measures}
    work = summaries.pop("")
    return Measurement(
        work=work,
        floors={name: summaries[name] for name in case.floors},
        others={name: summaries[name] for name in case.others},
        ratios={name: _ratio(rounds[""], rounds[name]) for name in summaries},
    )


def _ratio(work: Sequence[float], floor: Sequence[float]) -> Spread:
    return spread_of([w / f if f else float("inf") for w, f in zip(work, floor, strict=True)])
