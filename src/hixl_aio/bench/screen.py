"""What a person sees: a progress bar while it runs, then a table and the targets."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hixl_aio.bench.compare import Comparison
from hixl_aio.bench.report import Report, Result
from hixl_aio.bench.run import BenchOptions, Watch
from hixl_aio.bench.statistics import Spread
from hixl_aio.bench.workload import Workload, quantity_text

__all__ = ("print_comparison", "print_list", "print_report", "progress")

_WORTH_BANDWIDTH: Final = 64 << 10
_BUSY: Final = 0.1  # cores
_MOVING: Final = ("put.", "get.", "table.", "batch.")


@contextlib.contextmanager
def progress(options: BenchOptions, console: Console) -> Iterator[Watch]:
    """A progress bar on a terminal; without one, nothing."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=len(options.plan()))

        def watch(loop: str, workload: Workload, result: Result | None) -> None:
            if result is None:
                bar.update(task, description=f"{loop} {workload.name}")
            else:
                bar.advance(task)

        yield watch


def print_list(workloads: Sequence[Workload], console: Console) -> None:
    """All names, and which of them are part of the quick run."""
    for workload in workloads:
        console.print(f"{workload.name}{'  (quick)' if workload.quick else ''}", highlight=False)


def print_report(report: Report, console: Console) -> None:
    """The table of all results, and how they stand to their targets."""
    table = Table(title=_title(report), title_justify="left", caption=_CAPTION, caption_justify="left")
    for name in ("workload", "loop", "median", "p99"):
        table.add_column(name, justify="left" if name in ("workload", "loop") else "right", no_wrap=True)
    table.add_column("to the floor", justify="right", no_wrap=True)
    table.add_column("floors (median)", overflow="fold")
    for result in report.results:
        table.add_row(*_row(result))
    console.print(table)
    _print_targets(report, console)
    failed = [result.name for result in report.results if result.failure]
    if failed:
        count = "1 workload" if len(failed) == 1 else f"{len(failed)} workloads"
        console.print(f"[red]{count} broke[/]: {', '.join(failed)}", highlight=False)
    others = report.machine.get("others", 0.0)
    if others > _BUSY:
        text = f"Other programs kept {others:.1f} cores busy meanwhile: run again when the machine is quiet."
        console.print(f"[yellow]{text}[/]", highlight=False)


_CAPTION: Final = "To the floor: the ratio in each round, its median; in brackets its quartiles."


def _title(report: Report) -> str:
    machine = report.machine
    return escape(
        f"hixl-aio {machine['hixl_aio']}, Python {machine['python']}, Linux {machine['kernel']}, "
        f"{machine['cores']} cores of {machine['cpu']}"
    )


def _row(result: Result) -> tuple[str, ...]:
    if result.work is None:
        return result.name, result.loop, "failed", "", "", escape(result.failure)
    unit = result.unit
    median = quantity_text(result.work.median, unit)
    nbytes = result.params.get("nbytes")
    if result.name.startswith(_MOVING) and isinstance(nbytes, int) and nbytes >= _WORTH_BANDWIDTH:
        median += f" ({nbytes / result.work.median / 1e9:.1f} GB/s)"
    ratio = ""
    if result.floor:
        ratio = _ratio(result.ratios[result.floor])
    floors = ", ".join(
        f"{name} {quantity_text(each.median, unit)}"
        for name, each in {**result.floors, **result.others}.items()
    )
    return result.name, result.loop, median, quantity_text(result.work.p99, unit), ratio, floors


def print_comparison(comparison: Comparison, console: Console) -> None:
    """What changed beyond the noise."""
    table = Table(title="By the ratio to the floor", title_justify="left")
    for name in ("", "workload", "loop", "change", "old", "new", "floor"):
        table.add_column(name, no_wrap=name != "floor")
    for change in comparison.changes:
        if change.kind in _SILENT:
            continue
        word = f"[{_COLOURS.get(change.kind, 'yellow')}]{change.kind}[/]"
        factor = f"x {change.factor:.2f}" if change.old is not None else ""
        old, new = map(_ratio, (change.old, change.new))
        table.add_row(word, change.name, change.loop, factor, old, new, change.floor or "bytes")
    if table.row_count:
        console.print(table)
    counts = Counter(change.kind for change in comparison.changes)
    console.print(", ".join(f"{count} {kind}" for kind, count in counts.items()), highlight=False)


_SILENT: Final = frozenset({"same", "no floor"})
_COLOURS: Final = {"slower": "red", "broke": "red", "faster": "green"}


def _ratio(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"


def _print_targets(report: Report, console: Console) -> None:
    judged = [result for result in report.results if result.verdict is not None]
    if not judged:
        return
    table = Table(title="Targets", title_justify="left")
    for name in ("", "workload", "loop", "median", "limit", "target"):
        table.add_column(name, no_wrap=name != "target")
    for result in judged:
        verdict = result.verdict
        assert verdict is not None
        word = ("[green]met" if verdict.met else "[red]missed") + ("" if verdict.clear else "?") + "[/]"
        limit, value = (quantity_text(each, result.unit) for each in (verdict.limit, verdict.value))
        table.add_row(word, result.name, result.loop, value, limit, verdict.text)
    console.print(table)
    met = sum(result.verdict.met for result in judged if result.verdict is not None)
    console.print(f"{met} of {len(judged)} targets met (?: within the noise)", highlight=False)
