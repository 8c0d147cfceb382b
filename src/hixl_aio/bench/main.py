"""The command `hixl-aio bench`: options in, exit status out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from hixl_aio._program.interrupts import Interrupts
from hixl_aio._program.notices import tell
from hixl_aio.bench.errors import BenchError, InterruptedRunError
from hixl_aio.bench.loops import available_loops
from hixl_aio.bench.registry import select
from hixl_aio.bench.report import Report, write_report
from hixl_aio.bench.run import BenchOptions, run_bench
from hixl_aio.bench.screen import print_list, print_report, progress

__all__ = ("Request", "run_command")

_FAILURE: Final = 1
_WIDTH: Final = 160  # of a table that goes to no terminal


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for on the command line.

    Attributes:
        quick: the quick run.
        only: patterns of names.
        loops: on which loops; empty: both in the full run, asyncio in the quick one.
        listing: print the names, and run nothing.
        json: where the report goes.
        plot: where the figure goes.
    """

    quick: bool = False
    only: Sequence[str] = ()
    loops: Sequence[str] = ()
    listing: bool = False
    json: Path | None = None
    plot: Path | None = None


def run_command(request: Request, interrupts: Interrupts | None = None) -> int:
    """Do what was asked for. Returns the exit status; what went wrong is on standard error.

    Args:
        request: what to do.
        interrupts: signals to end, for a program that has taken them over already.
    """
    if interrupts is None:
        with Interrupts() as interrupts:
            return run_command(request, interrupts)
    try:
        return _run(request, interrupts)
    except InterruptedRunError as error:
        tell("hixl-aio bench", str(error), after_key=True)
        return interrupts.status
    except BenchError as error:
        tell("hixl-aio bench", str(error))
        return _FAILURE


def _run(request: Request, interrupts: Interrupts) -> int:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    workloads = select(request.only, quick=request.quick)
    if request.listing:
        print_list(workloads, console)
        return 0
    loops = request.loops or (available_loops()[:1] if request.quick else available_loops())
    options = BenchOptions(workloads, loops, request.quick)
    with progress(options, Console(stderr=True)) as watch:
        report = run_bench(options, watch, interrupts)
    print_report(report, console)
    if request.json is not None:
        write_report(report, request.json)
    return _FAILURE if _broken(report) else 0


def _broken(report: Report) -> bool:
    return any(result.failure for result in report.results)
