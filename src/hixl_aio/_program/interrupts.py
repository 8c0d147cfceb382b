"""Ctrl-C and requests to end, from the first import to the last line.

Importing this loads nothing that takes time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from hixl_aio._program.notices import tell

__all__ = ("Interrupts",)

_SIGNALS: Final = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


class Interrupts:
    """What a signal to end does: leave at once, or cancel the run while there is one to clean up after.

    A context manager for a main program, around everything it does. No exception is raised out of the blue,
    so none can surface where nobody expects it. Once a signal has been obeyed, or the run is over, further
    ones change nothing.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._obeyed: signal.Signals | None = None
        self._cancel: Callable[[], object] | None = None
        self._over = False

    def __enter__(self) -> Interrupts:
        """Take signals over. One that is ignored, as by ``nohup`` or in the background, stays so."""
        for number in _SIGNALS:
            if (before := signal.getsignal(number)) is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._receive)
        return self

    def __exit__(self, *details: object) -> None:
        """Give them back, unless there has been a run: then only the exit of the process is left to come."""
        if not self._over:
            for number, before in self._before.items():
                signal.signal(number, before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._over or self._obeyed is not None:
            return
        self._obeyed = signal.Signals(number)
        if self._cancel is None:
            tell("hixl-aio", _SIGNALS[self._obeyed], after_key=True)
            os._exit(self.status)
        self._cancel()

    @contextmanager
    def cancelling(self, cancel: Callable[[], object]) -> Iterator[None]:
        """In the block a signal calls ``cancel``; after it signals change nothing: only the exit is left."""
        self._cancel = cancel
        try:
            yield
        finally:
            self._over = True

    @property
    def words(self) -> str | None:
        """What has happened; None if nothing has."""
        return None if self._obeyed is None else _SIGNALS[self._obeyed]

    @property
    def status(self) -> int:
        """The exit status that shells give to a process ended by this signal."""
        return 128 + (self._obeyed or 0)
