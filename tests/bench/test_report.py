"""Reports as files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from hixl_aio.bench.errors import FileError
from hixl_aio.bench.report import describe_machine, read_report, write_report
from hixl_aio.bench.workload import Verdict

from .support import report_of, result, summary


def test_a_report_survives_its_file(tmp_path: Path) -> None:
    """With a verdict, without one, and with a workload that broke."""
    judged = dataclasses.replace(
        result("a", 1.0), verdict=Verdict(True, False, 1.0, 2.0, "memcpy", "at most")
    )
    broken = dataclasses.replace(result("b", 1.0), work=None, floors={}, ratios={}, failure="why")
    report = report_of(judged, result("c", 2.0), broken)
    write_report(report, tmp_path / "r.json")
    assert read_report(tmp_path / "r.json") == report


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[]", "schema None"),
        ('{"schema": 99}', "schema 99"),
        ('{"schema": 1, "machine": {}, "quick": true, "results": [{}]}', "no report"),
    ],
)
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """The message says what it is instead, and names the file."""
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(FileError, match=said) as refused:
        read_report(path)
    assert str(path) in str(refused.value)


def test_files_that_cannot_be_reached_are_named(tmp_path: Path) -> None:
    """Reading and writing."""
    for action in (read_report, lambda path: write_report(report_of(), path)):
        with pytest.raises(FileError, match="gone"):
            action(tmp_path / "gone" / "r.json")


def test_the_floor_of_a_result() -> None:
    """The one of its target, else the fastest."""
    found = result("a", 1.0, floor="slow")
    found = dataclasses.replace(found, floors={**found.floors, "fast": summary(0.5e-6)})
    assert found.floor == "fast"
    judged = dataclasses.replace(found, verdict=Verdict(True, True, 1.0, 1.0, "slow", ""))
    assert judged.floor == "slow"
    assert dataclasses.replace(found, floors={}).floor == ""


def test_the_machine_is_described() -> None:
    """What numbers depend on, as JSON can hold it."""
    machine = describe_machine()
    assert {"cores", "cpu", "kernel", "python", "page", "huge_pages", "garbage_collector"} <= machine.keys()
    assert json.loads(json.dumps(machine)) == machine
