"""Made-up results for tests of what is done with results."""

from __future__ import annotations

from hixl_aio.bench.report import SCHEMA, Report, Result
from hixl_aio.bench.statistics import Spread, Summary
from hixl_aio.bench.workload import Unit

__all__ = ("report_of", "result", "summary")


def summary(median: float, spread: float = 0.0) -> Summary:
    """A summary whose quartiles lie `spread` around the median, as a part of it."""
    low, high = median * (1 - spread), median * (1 + spread)
    return Summary(median, low, high, p99=high * 2, best=low, rounds=9, samples=100)


def result(
    name: str,
    ratio: float,
    *,
    spread: float = 0.02,
    floor: str = "memcpy",
    unit: Unit = "s",
    nbytes: int = 128,
) -> Result:
    """A workload that takes `ratio` times its floor."""
    return Result(
        name=name,
        loop="asyncio",
        unit=unit,
        params={"nbytes": nbytes, "link": "shm"},
        work=summary(ratio * 1e-6, spread),
        floors={floor: summary(1e-6)},
        others={},
        ratios={floor: Spread(ratio, ratio * (1 - spread), ratio * (1 + spread))},
    )


def report_of(*results: Result) -> Report:
    """A run with these results."""
    machine = {"cpu": "x", "cores": 2, "hixl_aio": "0", "python": "3", "kernel": "6", "loops": ["asyncio"]}
    return Report(SCHEMA, machine, quick=True, results=results)
