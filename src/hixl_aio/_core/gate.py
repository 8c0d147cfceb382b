"""Something that becomes true once, and those who wait for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ("EitherGate", "Gate")


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


class EitherGate:
    """Open when one of two gates is."""

    __slots__ = ("_gates",)

    def __init__(self, one: Gate, other: Gate) -> None:
        self._gates = (one, other)

    @property
    def is_open(self) -> bool:
        """One of them is open."""
        return any(gate.is_open for gate in self._gates)

    def add(self, waiter: Any) -> bool:
        """Wake `waiter` when the first of them opens; False if one is open already."""
        return not self.is_open and all(gate.add(waiter) for gate in self._gates)

    def discard(self, waiter: Any) -> None:
        """Forget a waiter that has gone."""
        for gate in self._gates:
            gate.discard(waiter)
