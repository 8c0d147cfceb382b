"""A loop that is run within itself, as notebooks do with nest_asyncio, is the engine's loop all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NESTED = Path(__file__).with_name("nested.py")


@pytest.mark.parametrize("link", ["inproc", "shm", "cma", "cooperative"])
def test_runs_within_a_run_of_the_loop_work_and_another_loop_is_refused(link: str) -> None:
    """Five runs deep, beside other tasks, from a callback, around a cancellation: each await ends, once."""
    command = [sys.executable, "-W", "error", str(NESTED), link]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "another loop is refused\nthe end\n"
    assert done.stderr == ""
