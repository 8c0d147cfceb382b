"""What a run found out, as values and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from hixl_aio import __version__
from hixl_aio.bench.errors import FileError
from hixl_aio.bench.measure import Measurement
from hixl_aio.bench.statistics import Spread, Summary
from hixl_aio.bench.workload import Unit, Verdict, Workload, judge

__all__ = (
    "SCHEMA",
    "Report",
    "Result",
    "check_writable",
    "describe_machine",
    "read_report",
    "result_of",
    "write_report",
)

SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured of one workload on one loop.

    Attributes:
        name: of the workload.
        loop: on which it ran.
        unit: of all values.
        params: of the workload.
        work: the workload.
        floors: what it was compared with.
        others: likewise, without being a floor.
        ratios: how it stands to each floor.
        verdict: how it stands to its target, if it has one.
        failure: why it could not be measured; then there is nothing else.
    """

    name: str
    loop: str
    unit: Unit
    params: Mapping[str, int | float | str]
    work: Summary | None
    floors: Mapping[str, Summary]
    others: Mapping[str, Summary]
    ratios: Mapping[str, Spread]
    verdict: Verdict | None = None
    failure: str = ""

    @property
    def floor(self) -> str:
        """The name of the floor that counts: the one of the target, or the fastest; empty: there is none."""
        if self.verdict is not None and self.verdict.floor:
            return self.verdict.floor
        return min(self.floors, key=lambda name: self.floors[name].median, default="")


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run.

    Attributes:
        schema: the version of this form.
        machine: what it ran on, and how: for people, not for comparison.
        quick: the quick run.
        results: in the order of the run.
    """

    schema: int
    machine: Mapping[str, Any]
    quick: bool
    results: tuple[Result, ...]


def result_of(workload: Workload, loop: str, measurement: Measurement) -> Result:
    """The result of a measurement."""
    verdict = None if workload.target is None else judge(workload.target, measurement, workload.unit)
    return Result(
        name=workload.name,
        loop=loop,
        unit=workload.unit,
        params=workload.params,
        work=measurement.work,
        floors=measurement.floors,
        others=measurement.others,
        ratios=measurement.ratios,
        verdict=verdict,
    )


def describe_machine() -> dict[str, Any]:
    """What a run's numbers depend on."""
    return {
        "hixl_aio": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "page": os.sysconf("SC_PAGE_SIZE"),
        "huge_pages": _setting("/sys/kernel/mm/transparent_hugepage/enabled"),
        "shared_huge_pages": _setting("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        "garbage_collector": "off while measuring",
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _setting(path: str) -> str:
    """The chosen word of a file like `always [madvise] never`."""
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return "unknown"
    return text.partition("[")[2].partition("]")[0] or text


# ---- JSON


def check_writable(path: Path) -> None:
    """Can that file be written, as far as one can tell? To be asked before a long run.

    Raises:
        FileError: it cannot.
    """
    if not path.parent.is_dir():
        raise FileError(str(path), f"cannot be written: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise FileError(str(path), "cannot be written: no permission")


def write_report(report: Report, path: Path) -> None:
    """Write it as JSON.

    Raises:
        FileError: the file cannot be written.
    """
    try:
        path.write_text(json.dumps(asdict(report), indent=1) + "\n")
    except OSError as error:
        raise FileError(str(path), f"cannot be written: {error.strerror}") from None


def read_report(path: Path) -> Report:
    """Read what `write_report` has written.

    Raises:
        FileError: the file cannot be read, or holds something else.
    """
    try:
        body = json.loads(path.read_text())
    except OSError as error:
        raise FileError(str(path), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise FileError(str(path), f"is no JSON: {error}") from None
    found = body.get("schema") if isinstance(body, dict) else None
    if found != SCHEMA:
        raise FileError(str(path), f"has schema {found!r}, this version reads {SCHEMA}; run the bench again")
    try:
        results = tuple(_result(each) for each in body["results"])
        return Report(SCHEMA, body["machine"], body["quick"], results)
    except (KeyError, TypeError, AttributeError) as error:
        raise FileError(str(path), f"is no report of the bench: {error!r}; run the bench again") from None


def _result(body: dict[str, Any]) -> Result:
    return Result(
        **{
            **body,
            "work": None if body["work"] is None else Summary(**body["work"]),
            "floors": {name: Summary(**each) for name, each in body["floors"].items()},
            "others": {name: Summary(**each) for name, each in body["others"].items()},
            "ratios": {name: Spread(**each) for name, each in body["ratios"].items()},
            "verdict": None if body["verdict"] is None else Verdict(**body["verdict"]),
        }
    )
