"""How a child of the demo starts: its environment, and dying with its parent before anything else.

The file is run as a script, which then imports the child's own module: importing takes a second on a busy
machine, during which a parent may die. It therefore imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Final

__all__ = ("child_command", "child_environment", "die_with_parent", "main")

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


def child_command(module: str) -> list[str]:
    """The command line that runs ``module``'s ``main() -> int`` as a child of this process."""
    # -P: the directory of this script must not become a place to import from
    return [sys.executable, "-P", os.path.abspath(__file__), str(os.getpid()), module]


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent``, which must be its parent, is gone.

    A parent that died before the call is noticed too: the process ends at once.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Be the child: the parent's process id and a module's name are the arguments."""
    die_with_parent(int(sys.argv[1]))
    status: int = importlib.import_module(sys.argv[2]).main()
    return status


if __name__ == "__main__":
    sys.exit(main())
