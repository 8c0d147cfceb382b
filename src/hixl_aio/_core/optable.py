"""Operations that the transport may still touch, and the tokens under which native code knows them.

The table is what keeps a dropped Completion's memory alive: an operation stays here, with its regions pinned,
until its record says that the transport has let go (INV-1, INV-2). Tokens only grow, so that a late duplicate
meets nothing (INV-9).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from hixl_aio._core.gate import Gate
from hixl_aio.errors import HixlAioError, InternalError

if TYPE_CHECKING:
    from hixl_aio._core.credits import Epoch, PeerLine
    from hixl_aio._core.deadlines import Deadline
    from hixl_aio._core.regions import RegionRecord
    from hixl_aio._records import PartTuple

__all__ = ("Operation", "OperationKind", "OperationState", "OperationTable", "Outcome", "Totals")


class OperationKind(enum.Enum):
    """What an operation does."""

    PUT = "put"
    GET = "get"
    BATCH = "batch"
    SIGNAL = "signal"


class OperationState(enum.IntEnum):
    """Who may touch the memory of an operation, and who waits for it."""

    WAITING = 0
    """Not with the transport yet: in line, or waiting for what it is `ready=` on."""
    POSTED = 1
    """With the transport."""
    SETTLED = 2
    """Over: the transport has let go."""
    ABANDONED = 3
    """With the transport, but whoever waited has gone on (grace or deadline over)."""
    QUARANTINED = 4
    """Failed, and nobody knows whether the transport has let go: pinned until the link is torn down."""


# Looking a member up in its enum costs as much as ten attributes before CPython 3.12.
_WAITING: Final = OperationState.WAITING
_SETTLED: Final = OperationState.SETTLED


class Outcome(Protocol):
    """What an operation reports to: a Completion."""

    def _conclude(self, operation: Operation, error: HixlAioError | None) -> None:
        """The result is known; the memory may not be free yet."""

    def _release(self) -> None:
        """The memory is free."""


class Operation:
    """One accepted operation that is not settled yet. Plain state; the runtime moves it on."""

    __slots__ = (
        "callbacks",
        "concluded",
        "deadline",
        "drop_ready",
        "epoch",
        "handle",
        "joined",
        "kind",
        "line",
        "links",
        "name",
        "nbytes",
        "outcome",
        "overdue",
        "parts",
        "payload",
        "pins",
        "queued",
        "run",
        "send_status",
        "settled",
        "started",
        "state",
        "stopping",
        "target",
        "timeout",
        "token",
        "waiters",
    )

    def __init__(
        self, token: int, kind: OperationKind, line: PeerLine, nbytes: int, outcome: Outcome
    ) -> None:
        self.token = token
        self.kind = kind
        self.line = line
        self.nbytes = nbytes
        self.outcome = outcome
        self.state = _WAITING
        self.handle = 0  # the native handle, once posted
        self.pins: tuple[RegionRecord, ...] = ()
        # What to post: one run (native kind, address, region, generation, offset), parts of a batch, or
        # neither: a bare signal.
        self.run: tuple[int, int, int, int, int] | None = None
        self.parts: list[PartTuple] | None = None
        self.name: bytes | None = None  # of the signal, whose place is reserved
        self.payload = b""
        self.send_status = 0  # of a bare signal: not 0 is the negative form
        self.target: Any = None  # the remote region, for errors; of a refused batch, the one to blame
        self.epoch: Epoch | None = None
        self.queued = False  # it has entered the line and lies in a queue there
        self.timeout: float | None = None
        self.started = 0.0
        self.deadline: Deadline[Operation] | None = None
        self.drop_ready: Callable[[], None] | None = None  # ends the wait for `ready=`
        self.stopping = False
        self.overdue = False  # its deadline is over
        self.concluded = False
        self.waiters: list[Any] = []
        self.joined = 0  # waiters whose going asks for a stop
        self.callbacks: list[Any] = []
        self.links: list[
            Callable[[HixlAioError | None], None]
        ] = []  # operations that begin when this one ends
        self.settled: Gate | None = None

    @property
    def in_line(self) -> bool:
        """Not with the transport, and still wanted."""
        return self.state is _WAITING


class Totals:
    """Counts and bytes by state."""

    __slots__ = ("counts", "nbytes")

    def __init__(self) -> None:
        self.counts = [0] * len(OperationState)
        self.nbytes = [0] * len(OperationState)


class OperationTable:
    """All operations of one engine that are not settled, by token."""

    __slots__ = ("_empty", "_last_token", "_operations", "inline_count", "inline_nbytes", "totals")

    def __init__(self) -> None:
        self._operations: dict[int, Operation] = {}
        self._last_token = 0
        self._empty: Gate | None = None
        self.totals = Totals()
        self.inline_count = 0  # done within the call: they never enter the table
        self.inline_nbytes = 0

    def __len__(self) -> int:
        return len(self._operations)

    def __iter__(self) -> Iterator[Operation]:
        return iter(list(self._operations.values()))

    def next_token(self) -> int:
        """A token never used before in this engine; requests of the control plane take theirs here too."""
        self._last_token += 1
        return self._last_token

    def add(self, operation: Operation) -> None:
        """Take in an operation and pin its regions."""
        if operation.token in self._operations:
            raise InternalError(f"token {operation.token} names two operations")
        self._operations[operation.token] = operation
        for record in operation.pins:
            record.pins += 1
        self.totals.counts[operation.state] += 1
        self.totals.nbytes[operation.state] += operation.nbytes

    def move(self, operation: Operation, state: OperationState) -> None:
        """Account for an operation's new state."""
        totals = self.totals
        totals.counts[operation.state] -= 1
        totals.nbytes[operation.state] -= operation.nbytes
        totals.counts[state] += 1
        totals.nbytes[state] += operation.nbytes
        operation.state = state

    def find(self, token: int) -> Operation | None:
        """The operation of that token, unless it has settled."""
        return self._operations.get(token)

    def settle(self, operation: Operation) -> None:
        """The transport has let go: unpin, forget, tell whoever waits for that (INV-2)."""
        if self._operations.pop(operation.token, None) is None:
            raise InternalError(f"operation {operation.token} settled twice")
        self.move(operation, _SETTLED)
        pins, operation.pins = operation.pins, ()
        for record in pins:
            record.unpin()
        operation.run = None
        operation.parts = None
        operation.outcome._release()
        if operation.settled is not None:
            operation.settled.open()
        if self._empty is not None and not self._operations:
            self._empty.open()
            self._empty = None

    def empty_gate(self, wake: Callable[[Any], None]) -> Gate | None:
        """A gate that opens when nothing is unsettled; None if nothing is."""
        if not self._operations:
            return None
        if self._empty is None:
            self._empty = Gate(wake)
        return self._empty

    def of_line(self, line: PeerLine) -> list[Operation]:
        """All unsettled operations of one peer, in the order of their calls."""
        return [operation for operation in self._operations.values() if operation.line is line]
