"""How a child of a program of ours starts: its environment, and dying with its parent before anything else.

The file is run as a script, which then runs the child's own module: importing takes a second on a busy
machine, during which a parent may die. It therefore imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Mapping
from typing import Final

__all__ = ("child_command", "child_environment", "die_with_parent", "main", "outlive_parent")

_PR_SET_PDEATHSIG: Final = 1
# Threads would fight over the cores, and another number of them may round differently.
_ONE_THREAD: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def child_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment to start a computing process in: one BLAS thread, UTF-8, nothing else changed.

    It must be set before NumPy is imported, hence in the environment rather than in code.
    """
    environment = dict(os.environ if base is None else base)
    environment.update(dict.fromkeys(_ONE_THREAD, "1"))
    environment["PYTHONUTF8"] = "1"
    return environment


def child_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs ``python -m module`` as a child that dies with this process."""
    # -P: the directory of this script must not become a place to import from
    return [sys.executable, "-P", os.path.abspath(__file__), str(os.getpid()), module, *arguments]


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent``, which must be its parent, is gone.

    A parent that died before the call is noticed too: the process ends at once.
    """
    _set_death_signal(signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def outlive_parent() -> None:
    """Undo :func:`die_with_parent`, for a child that has something to clean up when its parent dies."""
    _set_death_signal(0)


def _set_death_signal(number: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def main() -> None:
    """Be the child. The arguments: the parent's process id, the name of a module, and that module's own."""
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is the parent's business
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
