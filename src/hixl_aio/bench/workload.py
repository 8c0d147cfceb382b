"""What a workload is: a name, parameters, something to set up, and perhaps a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from hixl_aio.bench.measure import Case, Measurement
from hixl_aio.bench.stage import Stage

__all__ = (
    "GIB",
    "KIB",
    "MIB",
    "Prepare",
    "Target",
    "Unit",
    "Verdict",
    "Workload",
    "judge",
    "quantity_text",
    "size_text",
)

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

Unit: TypeAlias = Literal["s", "B", "cores"]
"""Seconds an operation, bytes, or the share of a processor core."""
Prepare: TypeAlias = Callable[[Stage], AbstractAsyncContextManager[Case]]


@dataclass(frozen=True, slots=True)
class Target:
    """What a workload must not exceed: `factor` times the best of some floors, and `extra` on top.

    Attributes:
        factor: 0 where no floor counts.
        extra: in the unit of the workload.
        against: names of floors, of which the fastest counts; empty: all.
    """

    factor: float
    extra: float = 0.0
    against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a measurement stands to its target.

    Attributes:
        met: it holds.
        clear: it would at the quartiles too; else noise may have decided.
        value: what was measured: the median.
        limit: what it must not exceed.
        floor: the name of the floor that counted; empty: none.
        text: the target in words.
    """

    met: bool
    clear: bool
    value: float
    limit: float
    floor: str
    text: str


@dataclass(frozen=True, slots=True)
class Workload:
    """Something to measure.

    Attributes:
        name: unique; dots between its parts, the family first.
        prepare: sets it up.
        params: what distinguishes it from others of its family.
        target: what it should reach.
        unit: of its values and those of its floors.
        quick: it is part of the quick run.
        once: it has nothing to do with the kind of the loop, and runs on the first one only.
        weight: how much more time it gets than others.
    """

    name: str
    prepare: Prepare
    params: Mapping[str, int | float | str] = field(default_factory=dict)
    target: Target | None = None
    unit: Unit = "s"
    quick: bool = False
    once: bool = False
    weight: float = 1.0

    @property
    def family(self) -> str:
        """The first part of its name."""
        return self.name.split(".")[0]


def judge(target: Target, measurement: Measurement, unit: Unit) -> Verdict:
    """Does a measurement reach its target?"""
    names = [name for name in target.against or measurement.floors if name in measurement.floors]
    fastest = min(names, key=lambda name: measurement.floors[name].median, default="")
    if not target.factor:
        fastest = ""
    work, floor = measurement.work, measurement.floors[fastest] if fastest else None
    bounds = (0.0, 0.0, 0.0) if floor is None else (floor.low, floor.median, floor.high)
    low, limit, high = (target.factor * each + target.extra for each in bounds)
    met = work.median <= limit
    clear = work.high <= low if met else work.low > high
    return Verdict(met, clear, work.median, limit, fastest, _words(target, fastest, unit))


def _words(target: Target, floor: str, unit: Unit) -> str:
    parts = []
    if target.factor:
        parts.append(f"{target.factor:.3g} x {floor}")
    if target.extra:
        parts.append(quantity_text(target.extra, unit))
    return "at most " + " + ".join(parts)


def quantity_text(value: float, unit: Unit) -> str:
    """A value with its unit, for people."""
    if unit == "B":
        return size_text(round(value))
    if unit == "cores":
        return f"{value:.3%} of a core"
    for factor, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= factor:
            return f"{value / factor:.3g} {name}"
    return f"{value / 1e-9:.3g} ns"


def size_text(nbytes: int) -> str:
    """A number of bytes, exact where it is round: 128B, 4KiB, 1GiB."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            count = nbytes / unit
            return f"{count:.0f}{name}" if nbytes % unit == 0 else f"{count:.1f}{name}"
    return f"{nbytes}B"
