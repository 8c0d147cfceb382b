"""Whole runs: the quick bench as users start it, and runs that are cut short."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hixl_aio._program.interrupts import Interrupts
from hixl_aio.bench.errors import InterruptedRunError, TargetLostError
from hixl_aio.bench.measure import Case, Known
from hixl_aio.bench.registry import select
from hixl_aio.bench.report import Result, read_report
from hixl_aio.bench.run import BenchOptions, run_bench
from hixl_aio.bench.stage import Stage
from hixl_aio.bench.workload import Workload

QUICK = BenchOptions(select(("put.shm",), quick=True), ("asyncio", "uvloop"), quick=True)
AT_REST = ("idle.", "memory.", "share.")  # where nothing is a value too


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`hixl-aio bench` in a process of its own."""
    code = "from hixl_aio.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, "bench", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.timeout(300)
def test_the_quick_bench_measures_everything(tmp_path: Path) -> None:
    """Each workload of the quick run is in its JSON, with values that can be; table and figure are made."""
    path, figure = tmp_path / "r.json", tmp_path / "r.png"
    done = bench("--quick", "--json", str(path), "--plot", str(figure))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    report = read_report(path)
    assert [result.name for result in report.results] == [each.name for each in select((), quick=True)]
    assert report.machine["garbage_collector"] == "off while measuring"
    for result in report.results:
        check_sane(result)
        assert result.name in done.stdout
    assert "targets met" in done.stdout
    assert figure.read_bytes().startswith(b"\x89PNG")
    again = bench("--compare", str(path), str(path))
    assert (again.returncode, again.stderr) == (0, "")


def check_sane(result: Result) -> None:
    """A result has the values that a measurement can have."""
    work = result.work
    assert work is not None, result.failure
    assert result.floors or result.unit == "B", result
    assert result.ratios.keys() == {*result.floors, *result.others}
    for summary in (work, *result.floors.values(), *result.others.values()):
        assert all(map(math.isfinite, (summary.median, summary.p99, summary.low, summary.high))), result
        assert summary.low <= summary.median <= summary.high, result
        assert summary.best <= summary.median, result
        assert summary.rounds >= 5, result
    assert work.median > 0 or result.name.startswith(AT_REST), result


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    """Signals to end, given back afterwards, which a program that ends need not do."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    with Interrupts() as found:
        yield found
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("turn", [0, 2, 5])
def test_an_interrupted_run_leaves_nothing(interrupts: Interrupts, turn: int) -> None:
    """Ctrl-C, at the first workload, later, or on the second loop, ends the run with a typed error."""
    started: list[str] = []

    def watch(loop: str, workload: Workload, result: Result | None) -> None:
        if result is None:
            started.append(workload.name)
            if len(started) == turn + 1:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedRunError, match="interrupted"):
        run_bench(QUICK, watch, interrupts)
    assert len(started) == turn + 1
    assert interrupts.status == 130


def test_an_interrupt_is_obeyed_though_cleaning_up_fails(interrupts: Interrupts) -> None:
    """What breaks on the way out does not take its place: no other workload begins."""
    started: list[str] = []

    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.get_running_loop().create_future()
            yield Case(Known(1.0))
        finally:
            raise RuntimeError("it cannot be cleaned up")

    workloads = [Workload("first", prepare, unit="B"), *QUICK.workloads]
    with pytest.raises(InterruptedRunError, match="interrupted"):
        run_bench(
            dataclasses.replace(QUICK, workloads=workloads),
            lambda loop, workload, result: started.append(workload.name),
            interrupts,
        )
    assert set(started) == {"first"}


def test_a_run_whose_target_dies_ends(interrupts: Interrupts) -> None:
    """The error says how it ended; what else broke because of that is not told."""

    def watch(loop: str, workload: Workload, result: Result | None) -> None:
        if result is not None:
            os.kill(children()[0], signal.SIGKILL)

    with pytest.raises(TargetLostError, match="was ended by SIGKILL"):
        run_bench(QUICK, watch, interrupts)


def children() -> list[int]:
    """Of this process."""
    threads = Path("/proc/self/task").iterdir()
    return [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]


def test_names_can_be_listed_and_wrong_ones_are_refused() -> None:
    """--list runs nothing; a pattern without a match ends with status 1 and one line."""
    listed = bench("--list", "--only", "signal")
    assert listed.stdout.splitlines()[0].startswith("signal.roundtrip")
    refused = bench("--only", "nothing")
    assert refused.returncode == 1
    assert refused.stderr.startswith("hixl-aio bench: no workload matches 'nothing'")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("shoes=2", "no option 'shoes'; there are transfer_timeout"),
        ("copy_threads=many", "copy_threads"),
        ("copy_threads=0", "from 1 to 64"),
    ],
)
def test_options_of_engines_are_checked_first(option: str, said: str) -> None:
    """Before anything runs, and in a line."""
    refused = bench("--quick", "--option", option)
    assert refused.returncode == 1
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_figure_without_matplotlib_is_refused_first() -> None:
    """Before a run of minutes, with what to install."""
    code = "import sys; sys.modules['matplotlib'] = None; from hixl_aio.cli import main; main()"
    refused = subprocess.run(
        [sys.executable, "-c", code, "bench", "--quick", "--plot", "x.png"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert refused.stderr.strip().endswith("pip install 'hixl-aio[plot]'")


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_file_that_cannot_be_written_is_refused_first(tmp_path: Path, option: str) -> None:
    """Before a run of minutes, in a line that names it."""
    path = tmp_path / "gone" / "r.png"
    refused = bench("--only", "memory", option, str(path))
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert f"{path}: cannot be written" in refused.stderr


def test_comparing_what_is_no_report(tmp_path: Path) -> None:
    """Ends with status 1 and a line that names the file."""
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"schema": 0}))
    refused = bench("--compare", str(path), str(path))
    assert refused.returncode == 1
    assert str(path) in refused.stderr
