"""A program that ends with operations in flight and without aclose ends at once, with its own exit status."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.soak import rounds

from .support import LOOPS

PROGRAMS = Path(__file__).with_name("programs.py")
STATUSES = {
    "return": 0,
    "sys.exit": 3,
    "error": 1,
    "os._exit": 4,
    "SIGINT": -signal.SIGINT,
    "SIGTERM": -signal.SIGTERM,
}
LAST_LINES = {"error": "RuntimeError: mine", "SIGINT": "KeyboardInterrupt"}
NO_MORE_PYTHON = ("os._exit", "SIGTERM")
ROUNDS = rounds(1, 50)


def leave(loop: str, link: str, way: str, warnings: str) -> tuple[int, str, float]:
    """Exit status, stderr, and the seconds from the moment at which the program decided to leave."""
    command = [sys.executable, "-X", "faulthandler", "-W", warnings, str(PROGRAMS), loop, link, "leave", way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    left = float(done.stdout)  # by the same clock, which all processes share
    return done.returncode, done.stderr, time.monotonic() - left


def unexpected(stderr: str, way: str) -> list[str]:
    """What is on stderr besides the program's own traceback and our warning, which may be of three lines."""
    lines = stderr.splitlines()
    last = LAST_LINES.get(way)
    if last is not None:
        assert last in lines, stderr
        del lines[lines.index("Traceback (most recent call last):") : lines.index(last) + 1]
    return [line for line in lines if "UnclosedResourceWarning: " not in line and not line.startswith("  ")]


@pytest.mark.timeout(60 + 3 * ROUNDS)
@pytest.mark.parametrize("link", ["shm", "cooperative"])
@pytest.mark.parametrize("kept", ["", "kept-"])
@pytest.mark.parametrize("way", STATUSES)
@pytest.mark.parametrize("loop", LOOPS)
def test_leaving_with_operations_in_flight(loop: str, way: str, kept: str, link: str) -> None:
    """The exit status is the program's, within 2 s, without a core; stderr has at most our warning."""
    for _ in range(ROUNDS):
        status, stderr, seconds = leave(loop, link, kept + way, "always")
        assert status == STATUSES[way], stderr
        assert seconds < 2.0, stderr
        assert unexpected(stderr, way) == []
        assert ("was dropped without aclose()" in stderr) is (way not in NO_MORE_PYTHON), stderr


@pytest.mark.parametrize("loop", LOOPS)
def test_warnings_as_errors_do_not_change_how_a_program_ends(loop: str) -> None:
    """`-W error` turns our warning into a report by the interpreter, and nothing else."""
    for way in ("return", "kept-return", "sys.exit", "kept-sys.exit"):
        status, stderr, _ = leave(loop, "shm", way, "error")
        assert status == STATUSES[way.removeprefix("kept-")], stderr
        reports = stderr.count("Exception ignored in: <function Engine.__del__")
        assert reports == stderr.count("Traceback (most recent call last)") == 2, stderr
        assert stderr.count("UnclosedResourceWarning: <Engine") == 2, stderr
