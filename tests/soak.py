"""How long tests of races and of repetition go on."""

from __future__ import annotations

import os

SOAK = os.environ.get("HIXL_AIO_SOAK") == "1"


def rounds(default: int, soak: int) -> int:
    """So many by default, so many where HIXL_AIO_SOAK=1 asks for a long run."""
    return soak if SOAK else default
