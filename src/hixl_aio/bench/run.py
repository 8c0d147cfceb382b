"""A run: the chosen workloads on the chosen loops, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hixl_aio._program.interrupts import Interrupts
from hixl_aio.bench.errors import BenchError, InterruptedRunError
from hixl_aio.bench.loops import new_loop
from hixl_aio.bench.measure import Pace, measure
from hixl_aio.bench.pair import Pair, pair
from hixl_aio.bench.report import SCHEMA, Report, Result, describe_machine, result_of
from hixl_aio.bench.resources import Load
from hixl_aio.bench.stage import Stage
from hixl_aio.bench.workload import Workload

__all__ = ("BenchOptions", "Watch", "run_bench")

_QUICK: Final = Pace(budget=0.12, turn=0.0005, least=5, most=200, singles=1000)
_FULL: Final = Pace(budget=0.6, turn=0.002, least=5, most=400, singles=5000)

Watch = Callable[[str, Workload, Result | None], None]
"""Is told of each workload before it runs (with None) and afterwards, with the loop."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to run.

    Attributes:
        workloads: which ones.
        loops: on which loops, one after the other.
        quick: short.
        engine: options of the engines on both sides.
    """

    workloads: Sequence[Workload]
    loops: Sequence[str]
    quick: bool
    engine: Mapping[str, Any] = field(default_factory=dict)

    def plan(self) -> list[tuple[str, Workload]]:
        """What runs on which loop, in order."""
        return [
            (loop, workload)
            for loop in self.loops
            for workload in self.workloads
            if not workload.once or loop == self.loops[0]
        ]


def run_bench(options: BenchOptions, watch: Watch, interrupts: Interrupts) -> Report:
    """Run as the whole program, in the main thread.

    Args:
        options: what to run.
        watch: is told how far it is.
        interrupts: Ctrl-C and signals to end, taken over already.

    Raises:
        BenchError: the run broke or was interrupted; nothing is left behind.
    """
    run, load = _Run(options, watch), Load()
    with interrupts.cancelling(run.cancel):
        try:
            for loop in options.loops:
                run.on(loop)
        except asyncio.CancelledError:
            raise InterruptedRunError(interrupts.words or "cancelled") from None
    machine = describe_machine() | {
        "options": dict(options.engine),
        "loops": list(options.loops),
        "others": load.others(),
    }
    return Report(SCHEMA, machine, options.quick, tuple(run.results))


class _Run:
    """One run, on one loop after the other."""

    def __init__(self, options: BenchOptions, watch: Watch) -> None:
        self.results: list[Result] = []
        self._options = options
        self._watch = watch
        self._cancelled = False
        self._cancel: Callable[[], object] | None = None

    def cancel(self) -> None:
        """From a signal handler: end it soon."""
        self._cancelled = True
        if self._cancel is not None:
            self._cancel()

    def on(self, loop: str) -> None:
        """All that is planned for this loop."""
        with asyncio.Runner(loop_factory=new_loop(loop)) as runner:
            runner.run(self._all(loop))

    async def _all(self, loop: str) -> None:
        running, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = lambda: running.call_soon_threadsafe(task.cancel)
        try:
            if self._cancelled:
                raise asyncio.CancelledError
            async with pair(loop) as found:
                await self._workloads(loop, found)
        finally:
            self._cancel = None

    async def _workloads(self, loop: str, found: Pair) -> None:
        stage = Stage(found, loop, self._options.quick, self._options.engine)
        try:
            for name, workload in self._options.plan():
                if name == loop:
                    self._watch(loop, workload, None)
                    result = await _one(workload, stage, found)
                    if self._cancelled:  # another error may have come of it
                        raise asyncio.CancelledError
                    self.results.append(result)
                    self._watch(loop, workload, result)
        finally:
            await stage.clear()


async def _one(workload: Workload, stage: Stage, found: Pair) -> Result:
    pace = _QUICK if stage.quick else _FULL
    if workload.weight != 1.0:
        pace = Pace(pace.budget * workload.weight, pace.turn, pace.least, pace.most, pace.singles)
    try:
        async with workload.prepare(stage) as case:
            measurement = await measure(case, pace)
    except Exception as error:
        if (loss := found.loss) is not None:
            raise loss from error
        text = str(error) if isinstance(error, BenchError) else f"{type(error).__name__}: {error}"
        return Result(workload.name, stage.loop, workload.unit, workload.params, None, {}, {}, {}, None, text)
    return result_of(workload, stage.loop, measurement)
