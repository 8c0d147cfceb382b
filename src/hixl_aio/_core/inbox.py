"""Signals that have arrived, and who gets each of them.

FIFO per name and peer; each signal goes to exactly one taker; a taker that was cancelled with a signal in
hand puts it back where it was, by its number of arrival.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Protocol, TypeVar

__all__ = ("Arrived", "Inbox", "Taker")


class Arrived(Protocol):
    """What the inbox needs to know of a signal."""

    @property
    def name(self) -> str:
        """By which it is waited for."""

    @property
    def arrival(self) -> int:
        """Its number in the order in which this engine drained signals."""

    @property
    def source(self) -> int:
        """The peer that sent it."""


S = TypeVar("S", bound=Arrived)
_Key = tuple[str, int]


class Taker:
    """Somebody who waits for a signal: of one name or of any, from one peer or from any."""

    __slots__ = ("failure", "name", "signal", "source", "waiter")

    def __init__(self, name: str | None, source: int | None, waiter: Any) -> None:
        self.name = name
        self.source = source
        self.waiter = waiter
        self.signal: Any = None
        self.failure: BaseException | None = None


class Inbox:
    """Unread signals and waiting takers of one engine."""

    __slots__ = ("_by_name", "_order", "_queues", "_takers", "_takers_of_any", "_wake", "unread")

    def __init__(self, wake: Callable[[Any], None]) -> None:
        self._wake = wake
        self._queues: dict[_Key, deque[Any]] = {}
        self._by_name: dict[str, dict[int, deque[Any]]] = {}
        self._order: OrderedDict[int, _Key] = OrderedDict()  # arrival -> its queue
        self._takers: dict[str, list[Taker]] = {}
        self._takers_of_any: list[Taker] = []
        self.unread = 0

    # ---- arrival

    def deliver(self, signal: Arrived) -> None:
        """Give the signal to the first who waits for its name, else to who takes any, else keep it."""
        taker = self._find_taker(signal)
        if taker is None:
            self._keep(signal)
            return
        taker.signal = signal
        self._wake(taker.waiter)

    def _find_taker(self, signal: Arrived) -> Taker | None:
        source = signal.source
        named = self._takers.get(signal.name)
        for takers in (self._takers_of_any,) if named is None else (named, self._takers_of_any):
            for index, taker in enumerate(takers):
                if taker.source is None or taker.source == source:
                    del takers[index]
                    if not named and takers is named:
                        del self._takers[signal.name]
                    return taker
        return None

    def _keep(self, signal: Arrived) -> None:
        key = (signal.name, signal.source)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
            self._by_name.setdefault(signal.name, {})[signal.source] = queue
        queue.append(signal)
        self._order[signal.arrival] = key
        self.unread += 1

    # ---- taking

    def take(self, name: str | None, source: int | None) -> Any | None:
        """The first unread signal that fits, or None."""
        if name is None:
            return self._take_any()
        queues = self._by_name.get(name)
        if not queues:
            return None
        if source is None:
            source = (
                min(queues, key=lambda peer: queues[peer][0].arrival)
                if len(queues) > 1
                else next(iter(queues))
            )
        return self._pop((name, source)) if source in queues else None

    def _take_any(self) -> Any | None:
        if not self._order:
            return None
        # The order of arrival says which queue is served; the queue itself is FIFO whatever was put back.
        return self._pop(self._order[next(iter(self._order))])

    def _pop(self, key: _Key) -> Any:
        queue = self._queues[key]
        signal = queue.popleft()
        del self._order[signal.arrival]
        self.unread -= 1
        if not queue:
            del self._queues[key]
            queues = self._by_name[key[0]]
            del queues[key[1]]
            if not queues:
                del self._by_name[key[0]]
        return signal

    def wait(self, taker: Taker) -> None:
        """Stand in line for the next signal that fits."""
        if taker.name is None:
            self._takers_of_any.append(taker)
        else:
            self._takers.setdefault(taker.name, []).append(taker)

    def leave(self, taker: Taker) -> None:
        """A taker goes away: out of the line, and what it holds back to its place."""
        if taker.signal is not None:
            signal, taker.signal = taker.signal, None
            self.put_back(signal)
            return
        takers = self._takers_of_any if taker.name is None else self._takers.get(taker.name, [])
        if taker in takers:
            takers.remove(taker)
        if taker.name is not None and not takers:
            self._takers.pop(taker.name, None)

    def put_back(self, signal: Arrived) -> None:
        """Undo a delivery: the next who fits gets it, else it lies where it lay."""
        taker = self._find_taker(signal)
        if taker is not None:
            taker.signal = signal
            self._wake(taker.waiter)
            return
        self._keep(signal)
        queue = self._queues[(signal.name, signal.source)]
        queue.pop()
        queue.insert(bisect_left([kept.arrival for kept in queue], signal.arrival), signal)
        self._order.move_to_end(signal.arrival, last=False)
        if any(arrival < signal.arrival for arrival in islice(self._order, 1, 2)):
            # It was not the oldest: several went back, in another order than they came.
            self._order = OrderedDict(sorted(self._order.items()))

    # ---- looking

    def names(self) -> Mapping[str, int]:
        """What lies unread, and how often."""
        return {name: sum(map(len, queues.values())) for name, queues in self._by_name.items()}

    # ---- the end

    def fail_source(self, source: int, failure: Callable[[], BaseException]) -> None:
        """A peer is gone: those who wait for it alone hear of it. What has arrived stays."""
        for takers in [*self._takers.values(), self._takers_of_any]:
            self._fail([taker for taker in takers if taker.source == source], takers, failure)
        self._takers = {name: takers for name, takers in self._takers.items() if takers}

    def fail_all(self, failure: Callable[[], BaseException]) -> None:
        """The engine closes: everybody hears of it."""
        for takers in [*self._takers.values(), self._takers_of_any]:
            self._fail(list(takers), takers, failure)
        self._takers.clear()

    def _fail(self, failed: list[Taker], takers: list[Taker], failure: Callable[[], BaseException]) -> None:
        for taker in failed:
            takers.remove(taker)
            taker.failure = failure()
            self._wake(taker.waiter)

    def clear(self) -> None:
        """Forget what is unread."""
        self._queues.clear()
        self._by_name.clear()
        self._order.clear()
        self.unread = 0
