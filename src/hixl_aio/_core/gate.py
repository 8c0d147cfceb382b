"""Something that becomes true once, and those who wait for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ("Gate",)


class Gate:
    """Opens once; waiters are whatever the bridge parks on, and `wake` is how it wakes them."""

    __slots__ = ("_waiters", "_wake", "is_open")

    def __init__(self, wake: Callable[[Any], None]) -> None:
        self.is_open = False
        self._wake = wake
        self._waiters: list[Any] = []

    def add(self, waiter: Any) -> bool:
        """Wake `waiter` when the gate opens; False if it is open already."""
        if self.is_open:
            return False
        self._waiters.append(waiter)
        return True

    def discard(self, waiter: Any) -> None:
        """Forget a waiter that has gone."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def open(self) -> None:
        """Let everybody through, now and later."""
        if self.is_open:
            return
        self.is_open = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            self._wake(waiter)
