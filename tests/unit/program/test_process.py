"""The environment of a computing process, and its dying with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import hixl_aio.demo
from hixl_aio._program.process import child_environment


def test_one_blas_thread() -> None:
    """A child gets one BLAS thread and keeps the rest of the environment."""
    environment = child_environment({"HOME": "/h", "OPENBLAS_NUM_THREADS": "8"})
    assert environment["OPENBLAS_NUM_THREADS"] == "1"
    assert environment["HOME"] == "/h"


def test_the_parent_needs_no_numpy() -> None:
    """Fetching weights, reading prompts and starting children import neither NumPy nor each other's users."""
    modules = ("_program.process", "demo.weights", "demo.prompts", "demo.errors")
    code = f"import sys\nfor m in {modules}: __import__('hixl_aio.' + m)\nassert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


MIDDLE = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], stdout=subprocess.PIPE)
sys.stdout.write(child.stdout.readline().decode())
sys.stdout.flush()
sys.stdin.read()
"""
LEAF = """
import os, signal, sys
from hixl_aio._program.process import die_with_parent
die_with_parent(int(sys.argv[1]))
print(os.getpid(), flush=True)
signal.pause()
"""


def test_a_child_dies_with_its_parent() -> None:
    """Killing the parent kills the child, without a word from anybody."""
    with subprocess.Popen(
        [sys.executable, "-c", MIDDLE, LEAF],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
    ) as middle:
        assert middle.stdout is not None
        leaf = os.pidfd_open(int(middle.stdout.readline()))
        try:
            middle.kill()
            assert wait_for_exit(leaf, seconds=5.0)
        finally:
            os.close(leaf)


def test_an_orphan_ends_at_once() -> None:
    """A child whose parent was gone before it could ask ends by itself."""
    done = subprocess.run([sys.executable, "-c", LEAF, "1"], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b""


def wait_for_exit(pidfd: int, seconds: float) -> bool:
    import select

    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def test_the_package_imports_nothing() -> None:
    """The demo package itself loads no submodule."""
    source = Path(hixl_aio.demo.__file__).read_text()
    assert "\nimport " not in source
    assert "\nfrom " not in source
