"""Processes that are made while operations are in flight: the parent and its peer notice nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import rounds

from .support import LOOPS

PROGRAMS = Path(__file__).with_name("programs.py")
ROUNDS = rounds(1, 100)


def multiply(loop: str, link: str, function: str, how: str) -> None:
    """Run one of `programs.py` to its end; it says "whole" when nothing has reached parent or peer."""
    # From 3.12 on CPython warns of every fork beside threads: that is what is tested here.
    quiet = "ignore:This process:DeprecationWarning"
    command = [sys.executable, "-X", "faulthandler", "-W", "error", "-W", quiet, str(PROGRAMS), loop, link]
    done = subprocess.run([*command, function, how], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.parametrize("link", ["shm", "cooperative"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_forked_child_that_finalizes_its_interpreter_disturbs_nobody(loop: str, link: str) -> None:
    """It is refused every call, runs all destructors, and neither drains, says good-bye nor hangs."""
    for _ in range(ROUNDS):
        for how in ("keep", "collect"):
            multiply(loop, link, "fork_and_finalize", how)


@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_process_pool_works_beside_transfers(loop: str, how: str) -> None:
    """Workers of each start method open engines of their own; the parent's puts all complete."""
    for _ in range(ROUNDS):
        multiply(loop, "shm", "pool", how)


@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.parametrize("how", ["end", "terminate", "kill"])
@pytest.mark.parametrize("link", ["shm", "cma", "cooperative"])
@pytest.mark.parametrize("loop", LOOPS)
def test_forked_workers_with_a_copy_of_everything_serve_beside_transfers(
    loop: str, link: str, how: str
) -> None:
    """As data loaders' do: each call of theirs is refused, the error reaches the parent through a queue, and
    however they go, the puts complete and the bytes are exact."""
    for _ in range(ROUNDS):
        multiply(loop, link, "workers", how)


@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.parametrize("how", ["close", "inherit"])
@pytest.mark.parametrize("loop", LOOPS)
def test_subprocess_run_beside_transfers_inherits_nothing(loop: str, how: str) -> None:
    """No memfd, eventfd, pidfd or socket of ours is open in the new program; the puts all complete."""
    for _ in range(ROUNDS):
        multiply(loop, "shm", "spawn", how)
