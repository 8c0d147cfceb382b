"""What a person sees of a run."""

from __future__ import annotations

import dataclasses
import io

from rich.console import Console

from hixl_aio.bench.compare import compare
from hixl_aio.bench.report import Report, Result
from hixl_aio.bench.screen import print_comparison, print_report
from hixl_aio.bench.workload import Verdict

from .support import report_of, result


def shown(report: Report) -> str:
    console = Console(file=io.StringIO(), width=160)
    print_report(report, console)
    return said(console)


def said(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def judged(name: str, *, met: bool, clear: bool) -> Result:
    return dataclasses.replace(
        result(name, 1.5), verdict=Verdict(met, clear, 1.5e-6, 2e-6, "memcpy", "at most 2")
    )


def test_a_result_is_shown_with_its_floor() -> None:
    """Median, tail, the ratio with its quartiles; bandwidth where bytes are what it is about."""
    text = shown(
        report_of(result("put.shm.1MiB", 100.0, nbytes=1 << 20), result("rate.shm.1", 3.0, spread=0.1))
    )
    assert "100 µs (10.5 GB/s)" in text
    assert "3.00 (2.70 to 3.30)" in text
    assert "memcpy 1 µs" in text


def test_targets_say_whether_noise_decided() -> None:
    """With a question mark, and are counted."""
    text = shown(report_of(judged("a", met=True, clear=True), judged("b", met=False, clear=False)))
    assert "missed?" in text
    assert "1 of 2 targets met" in text


def test_what_broke_is_named() -> None:
    """Also where no workload of the run has a target."""
    broken = dataclasses.replace(result("b", 1.0), work=None, floors={}, ratios={}, failure="why it did")
    text = shown(report_of(broken))
    assert "why it did" in text
    assert "1 workload broke: b" in text


def test_why_something_broke_is_shown_as_it_is() -> None:
    """Brackets in a message are no colours, and do not break the table."""
    why = "OSError: [/tmp/x] is no [v6]:port"
    broken = dataclasses.replace(result("b", 1.0), work=None, floors={}, ratios={}, failure=why)
    assert why in shown(report_of(broken))


def test_a_busy_machine_is_told() -> None:
    """A quiet one is not."""
    quiet = report_of(result("a", 1.0))
    busy = dataclasses.replace(quiet, machine={**quiet.machine, "others": 1.6})
    assert "Other programs kept 1.6 cores busy" in shown(busy)
    assert "Other programs" not in shown(quiet)


def test_a_comparison_shows_what_changed_only() -> None:
    """And counts the rest."""
    console = Console(file=io.StringIO(), width=160)
    old = report_of(result("kept", 1.0), result("put.shm.8B", 1.0))
    print_comparison(compare(old, report_of(result("kept", 1.0), result("put.shm.8B", 2.0))), console)
    text = said(console)
    assert "x 2.00" in text
    assert "kept" not in text
    assert "1 slower, 1 same" in text
