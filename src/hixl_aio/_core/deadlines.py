"""Deadlines of operations: one heap, one timer for the whole engine.

A deadline that is no longer wanted is emptied where it lies and dropped when it comes up, or when more than
half of the heap is empty. So cancelling costs nothing, and a finished operation is not kept alive by its
deadline.
"""

from __future__ import annotations

import heapq
from typing import Final, Generic, TypeVar

__all__ = ("Deadline", "Deadlines")

T = TypeVar("T")

_COMPACT_ABOVE: Final = 64


class Deadline(Generic[T]):
    """One entry of the heap; without a target once it is cancelled or expired."""

    __slots__ = ("target", "when")

    def __init__(self, when: float, target: T) -> None:
        self.when = when
        self.target: T | None = target

    def __lt__(self, other: Deadline[T]) -> bool:
        return self.when < other.when


class Deadlines(Generic[T]):
    """All deadlines of one engine, earliest first."""

    __slots__ = ("_empty", "_heap")

    def __init__(self) -> None:
        self._heap: list[Deadline[T]] = []
        self._empty = 0

    def __len__(self) -> int:
        return len(self._heap) - self._empty

    def add(self, when: float, target: T) -> Deadline[T]:
        """Remember that `target` is due at `when`."""
        deadline = Deadline(when, target)
        heapq.heappush(self._heap, deadline)
        return deadline

    def cancel(self, deadline: Deadline[T]) -> None:
        """Forget one; harmless when it has expired or was cancelled before."""
        if deadline.target is None:
            return
        deadline.target = None
        self._empty += 1
        if self._empty > _COMPACT_ABOVE and self._empty * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry.target is not None]
            heapq.heapify(self._heap)
            self._empty = 0

    def next_due(self) -> float | None:
        """When the earliest one is due, or None if there is none."""
        heap = self._heap
        while heap and heap[0].target is None:
            heapq.heappop(heap)
            self._empty -= 1
        return heap[0].when if heap else None

    def expired(self, now: float) -> list[T]:
        """Take out all that are due, in order."""
        due: list[T] = []
        while (when := self.next_due()) is not None and when <= now:
            deadline = heapq.heappop(self._heap)
            if deadline.target is not None:
                due.append(deadline.target)
                deadline.target = None
        return due

    def clear(self) -> None:
        """Forget all."""
        for deadline in self._heap:
            deadline.target = None
        self._heap.clear()
        self._empty = 0
