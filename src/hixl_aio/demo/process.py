"""What every process of the demo must do about its environment and about dying with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Mapping
from typing import Final

__all__ = ("child_environment", "die_with_parent")

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
