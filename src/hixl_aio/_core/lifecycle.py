"""The life of an engine, and what a call hears when it comes at the wrong time.

The hot path compares one thing: the running loop with the engine's home. Whenever the engine cannot be used,
its home is `NOWHERE`, which equals no loop; only then does a call ask here what is wrong.
"""

from __future__ import annotations

import enum
import os
from typing import Final

from hixl_aio.errors import ClosedError, EngineForkedError, HixlAioError, InternalError, WrongLoopError

__all__ = ("NOWHERE", "LifeState", "Lifecycle")


class _Nowhere:
    __slots__ = ()

    def __repr__(self) -> str:
        return "no loop"


NOWHERE: Final = _Nowhere()


class LifeState(enum.Enum):
    """Where an engine is in its life."""

    NEW = "not open yet"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    FORKED = "of the parent process"


_NEXT: Final[dict[LifeState, frozenset[LifeState]]] = {
    LifeState.NEW: frozenset({LifeState.OPENING, LifeState.CLOSED}),
    LifeState.OPENING: frozenset({LifeState.OPEN, LifeState.CLOSED, LifeState.FORKED}),
    LifeState.OPEN: frozenset({LifeState.CLOSING, LifeState.FORKED}),
    LifeState.CLOSING: frozenset({LifeState.CLOSED, LifeState.FORKED}),
    LifeState.CLOSED: frozenset(),
    LifeState.FORKED: frozenset(),
}


class Lifecycle:
    """The state of one engine, and the loop that it belongs to (INV-4)."""

    __slots__ = ("home", "is_live", "name", "owner", "pid", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = LifeState.NEW
        self.is_live = False  # it has native code: open, or being closed
        self.home: object = NOWHERE  # the loop on which calls are right, now
        self.owner: object = NOWHERE  # the loop that opened us, for messages
        self.pid = os.getpid()

    def advance(self, state: LifeState) -> None:
        """Go on to `state`; only `OPEN` has a home."""
        if state not in _NEXT[self.state]:
            raise InternalError(f"engine {self.name} cannot go from {self.state.name} to {state.name}")
        self.state = state
        self.is_live = state in (LifeState.OPEN, LifeState.CLOSING)
        self.home = self.owner if state is LifeState.OPEN else NOWHERE

    @property
    def is_forked(self) -> bool:
        """We are in a child of the process that opened it."""
        return self.state is LifeState.FORKED or (self.state is not LifeState.NEW and self.pid != os.getpid())

    def elsewhere(self, current: object) -> WrongLoopError:
        """What a call hears that comes on the wrong loop."""
        return WrongLoopError(
            owner=_brief(self.owner), current="none" if current is None else _brief(current)
        )

    def refusal(self, current: object) -> HixlAioError:
        """What a call hears that comes on the wrong loop, or at the wrong time."""
        if self.is_forked:
            return EngineForkedError(owner_pid=self.pid, pid=os.getpid())
        if self.state is LifeState.OPEN:
            return self.elsewhere(current)
        if self.state is LifeState.NEW:
            hint = "Open it with `async with engine:`."
            return ClosedError(what=f"engine {self.name}", state=self.state.value, hint=hint)
        return ClosedError(what=f"engine {self.name}", state=self.state.value)


def _brief(loop: object) -> str:
    """asyncio's loops say what they are in a few words; a run of trio tells all that it has inside."""
    text = repr(loop)
    return text if len(text) <= 120 else object.__repr__(loop)
