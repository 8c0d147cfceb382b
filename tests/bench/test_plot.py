"""The figure. It is drawn in a process of its own: matplotlib keeps the files of its fonts open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hixl_aio.bench.errors import FileError
from hixl_aio.bench.plot import write_plot
from hixl_aio.bench.report import write_report

from .support import report_of, result

DRAW = """
import sys
from pathlib import Path
from hixl_aio.bench.errors import FileError
from hixl_aio.bench.plot import write_plot
from hixl_aio.bench.report import read_report
try:
    write_plot(read_report(Path(sys.argv[1])), Path(sys.argv[2]))
except FileError as error:
    sys.exit(str(error))
"""


def draw(tmp_path: Path, figure: Path) -> subprocess.CompletedProcess[str]:
    report = tmp_path / "r.json"
    write_report(report_of(result("put.shm.8B", 2.0, nbytes=8), result("get.shm.8B", 3.0, nbytes=8)), report)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", DRAW, str(report), str(figure)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_puts_and_gets_are_drawn(tmp_path: Path) -> None:
    """The file is an image."""
    figure = tmp_path / "f.png"
    done = draw(tmp_path, figure)
    assert (done.returncode, done.stderr) == (0, "")
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["gone/f.png", "f.what"])
def test_a_figure_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    """No such folder, no such format: a typed error that names the file."""
    done = draw(tmp_path, tmp_path / name)
    assert done.returncode == 1
    assert f"{name}: cannot be written" in done.stderr


def test_a_figure_without_lines_is_refused(tmp_path: Path) -> None:
    """With the reason."""
    with pytest.raises(FileError, match="nothing to draw"):
        write_plot(report_of(result("signal.roundtrip", 2.0)), tmp_path / "f.png")
