"""Lines for a person on standard error, beside the results on standard output.

Importing this loads nothing that takes time.
"""

from __future__ import annotations

import os
import select
from typing import Final

__all__ = ("is_watched", "show_cursor", "tell")

_STDERR: Final = 2


def tell(program: str, message: str, *, after_key: bool = False) -> None:
    """Write a line that ``program`` says.

    ``after_key``: the terminal may just have shown ``^C``, which shall have its own.
    """
    lead = "\n" if after_key and is_watched() else ""
    _write(f"{lead}{program}: {message}\n".encode(errors="backslashreplace"))


def is_watched() -> bool:
    """Is standard error a terminal?"""
    try:
        return os.isatty(_STDERR)
    except OSError:
        return False


def show_cursor() -> None:
    """Bring back the cursor, which a progress bar hides and cannot bring back when it is killed."""
    if is_watched():
        _write(b"\x1b[?25h")


def _write(data: bytes) -> None:
    """Write, unless nobody reads or somebody has stopped to: this may be the last thing before the end."""
    poll = select.poll()
    poll.register(_STDERR, select.POLLOUT)
    try:
        if any(events & select.POLLOUT for _, events in poll.poll(0)):
            os.write(_STDERR, data)
    except OSError:
        return
