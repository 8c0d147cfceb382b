"""The command `hixl-aio bench`: options in, exit status out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from hixl_aio import EngineOptions, InvalidArgumentError
from hixl_aio._program.interrupts import Interrupts
from hixl_aio._program.notices import tell
from hixl_aio.bench.compare import compare
from hixl_aio.bench.errors import BenchError, InterruptedRunError, OptionError
from hixl_aio.bench.loops import available_loops
from hixl_aio.bench.plot import check_plot, write_plot
from hixl_aio.bench.registry import select
from hixl_aio.bench.report import check_writable, read_report, write_report
from hixl_aio.bench.run import BenchOptions, run_bench
from hixl_aio.bench.screen import print_comparison, print_list, print_report, progress

__all__ = ("Request", "compare_command", "parse_options", "run_command")

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
        options: of the engines, as NAME=VALUE.
    """

    quick: bool = False
    only: Sequence[str] = ()
    loops: Sequence[str] = ()
    listing: bool = False
    json: Path | None = None
    plot: Path | None = None
    options: Sequence[str] = ()


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


def compare_command(old: Path, new: Path) -> int:
    """Compare two reports. Returns the exit status: 1 if anything got slower beyond the noise, or broke.

    Args:
        old, new: written with `--json`.
    """
    try:
        comparison = compare(read_report(old), read_report(new))
    except BenchError as error:
        tell("hixl-aio bench", str(error))
        return _FAILURE
    print_comparison(comparison, _console())
    return _FAILURE if comparison.worse else 0


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def _run(request: Request, interrupts: Interrupts) -> int:
    console = _console()
    workloads = select(request.only, quick=request.quick)
    if request.listing:
        print_list(workloads, console)
        return 0
    if request.plot is not None:
        check_plot()
    for path in (request.json, request.plot):
        if path is not None:
            check_writable(path)
    loops = request.loops or (available_loops()[:1] if request.quick else available_loops())
    options = BenchOptions(workloads, loops, request.quick, parse_options(request.options))
    with progress(options, Console(stderr=True)) as watch:
        report = run_bench(options, watch, interrupts)
    print_report(report, console)
    if request.json is not None:
        write_report(report, request.json)
    if request.plot is not None:
        write_plot(report, request.plot)
    return _FAILURE if any(result.failure for result in report.results) else 0


def parse_options(given: Sequence[str]) -> dict[str, Any]:
    """Options of engines, from texts like "copy_threads=2".

    Raises:
        OptionError: no such option, or not a value that it can have.
    """
    found: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in EngineOptions.__dataclass_fields__:
            known = ", ".join(EngineOptions.__dataclass_fields__)
            raise OptionError(text, f"there is no option {name!r}; there are {known}")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
        try:
            EngineOptions(**{name: found[name]})
        except InvalidArgumentError as error:
            raise OptionError(text, str(error)) from None
    return found
