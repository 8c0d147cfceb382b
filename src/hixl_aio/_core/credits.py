"""The waiting line of one peer: credits, order, fences, flushes (INV-5).

The line is a row of epochs. An operation belongs to the epoch that is last when it is *called*, and a fence
or a flush closes that epoch and begins a new one. Operations are posted epoch by epoch, in each in the order
in which they entered (one with `ready=` enters when that resolves); past a fence only when every operation of
the epochs before has ended.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Final

from hixl_aio._core.gate import Gate
from hixl_aio._core.optable import Operation
from hixl_aio.errors import HixlAioError, TransferQueueFullError

__all__ = ("MAX_ENDED_IN_A_TURN", "Epoch", "PeerLine", "Posting")

_COMPACT_ABOVE: Final = 64
MAX_ENDED_IN_A_TURN: Final = 512
"""Operations that end without a record in one turn of the loop: each costs some microseconds."""


class Posting(enum.Enum):
    """What became of an operation that was to be posted."""

    POSTED = "posted"  # it holds a credit until its record comes
    ENDED = "ended"  # done or refused on the spot, and accounted for
    FULL = "full"  # native code has no slot: the same as no credit


class Epoch:
    """Operations between two fences or flushes."""

    __slots__ = ("failure", "fenced", "gate", "outstanding", "queue")

    def __init__(self) -> None:
        self.queue: deque[Operation] = deque()
        self.outstanding = 0  # called, and neither delivered nor failed
        self.fenced = False  # what comes after waits for our end
        self.gate: Gate | None = None  # flushes that wait for our end
        self.failure: HixlAioError | None = None  # the first one since those flushes began


class PeerLine:
    """Credits and waiting operations of one peer.

    `idle` is the one question of the hot path: may an operation be posted at once, without overtaking
    anything?
    """

    __slots__ = (
        "_dead",
        "_epochs",
        "_fences",
        "_later",
        "_post",
        "_pumping",
        "_queued",
        "_resting",
        "_room",
        "address",
        "broken",
        "capacity",
        "credits",
        "down",
        "idle",
        "inflight",
        "loss_was_told",
        "number",
        "stalled",
        "waiting",
    )

    def __init__(
        self,
        number: int,
        address: str,
        post: Callable[[Operation], Posting],
        *,
        credits: int,
        capacity: int,
        later: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self.number = number  # the peer's, in native code
        self.address = address  # the peer's, for messages
        self._post = post
        self._later = later  # calls in the next turn of the loop; None: do not stop half-way
        self._epochs: deque[Epoch] = deque([Epoch()])
        self._fences = 0
        self._queued = 0  # entered the line, still wanted
        self._dead = 0  # stopped while in line, still lying in a queue
        self._pumping = False
        self._resting = False  # until the next turn of the loop
        self._room: deque[Gate] = deque()
        self.capacity = capacity
        self.credits = credits
        self.inflight = 0
        self.waiting = 0  # called and not posted: queued, or not ready yet
        self.stalled = False  # native code had no slot; try again after the next drain
        self.down = False
        self.broken = False  # a record has said that the peer is gone; the news itself may be under way
        self.loss_was_told = False  # somebody has seen, or heard, that the peer is gone
        self.idle = True

    # ---- the ways in

    def check_room(self) -> None:
        """Refuse one more waiting operation when the line is full."""
        if self.waiting >= self.capacity:
            raise TransferQueueFullError(peer=self.address, waiting=self.waiting, limit=self.capacity)

    def posted_at_once(self, operation: Operation) -> None:
        """An operation that found the line idle was posted."""
        epoch = self._epochs[-1]
        epoch.outstanding += 1
        operation.epoch = epoch
        self._take_credit()

    def call(self, operation: Operation) -> None:
        """An operation was called that is not posted yet: it takes its place among the epochs (INV-5)."""
        epoch = self._epochs[-1]
        epoch.outstanding += 1
        operation.epoch = epoch
        self.waiting += 1

    def enter(self, operation: Operation) -> None:
        """A called operation is ready: it enters the line, and what can be posted is."""
        assert operation.epoch is not None
        operation.epoch.queue.append(operation)
        operation.queued = True
        self._queued += 1
        self.idle = False
        self.pump()

    # ---- the ways on

    def pump(self) -> None:
        """Post in line order while there are credits. A call from within is left to the outer one."""
        if self._pumping or self._resting:
            return
        self._pumping = True
        try:
            self._post_waiting()
        finally:
            self._pumping = False
        self._refresh()

    def _post_waiting(self) -> None:
        self.stalled = False
        ended = 0
        while self.credits > 0 and not self.down:
            if ended >= MAX_ENDED_IN_A_TURN and self._later is not None:
                self._resting = True
                self._later(self._rested)  # a transport that refuses all must not stall the loop
                break
            operation = self._next()
            if operation is None:
                break
            result = self._post(operation)
            if result is Posting.FULL:
                assert operation.epoch is not None
                operation.epoch.queue.appendleft(operation)
                operation.queued = True
                self._queued += 1
                self.stalled = True
                break
            ended += result is Posting.ENDED
            if result is Posting.POSTED:
                self.waiting -= 1
                self._take_credit()
                self.offer_room()

    def _rested(self) -> None:
        self._resting = False
        self.pump()

    def _next(self) -> Operation | None:
        for epoch in self._epochs:
            while epoch.queue:
                operation = epoch.queue.popleft()
                if operation.in_line:
                    operation.queued = False
                    self._queued -= 1
                    return operation
                self._dead -= 1
            if epoch.fenced and epoch.outstanding:
                return None
        return None

    def _take_credit(self) -> None:
        self.inflight += 1
        self.credits -= 1
        if self.credits <= 0:
            self.idle = False

    # ---- the ways out

    def ended(self, operation: Operation, failure: HixlAioError | None = None) -> None:
        """A posted operation has its record: the credit is back."""
        self.inflight -= 1
        self.credits += 1
        self._leave(operation, failure)
        self.pump()

    def left(self, operation: Operation, failure: HixlAioError | None = None) -> None:
        """A called operation has ended without a record. If it lies in a queue, it is skipped there later."""
        self.waiting -= 1
        if operation.queued:
            operation.queued = False
            self._queued -= 1
            self._dead += 1
            self._compact(operation)
        self._leave(operation, failure)
        self.offer_room()

    def _leave(self, operation: Operation, failure: HixlAioError | None) -> None:
        epoch = operation.epoch
        if epoch is None:
            return
        operation.epoch = None
        epoch.outstanding -= 1
        if failure is not None:
            self._tell_flushes(epoch, failure)
        if not epoch.outstanding:
            self._advance()

    def _tell_flushes(self, epoch: Epoch, failure: HixlAioError) -> None:
        """Flushes that wait for this epoch raise the first failure among what they wait for."""
        reached = False
        for later in self._epochs:
            reached = reached or later is epoch
            if reached and later.gate is not None and later.failure is None:
                later.failure = failure

    def _advance(self) -> None:
        while len(self._epochs) > 1 and not self._epochs[0].outstanding:
            epoch = self._epochs.popleft()
            self._fences -= epoch.fenced
            self._dead -= len(epoch.queue)
            if epoch.gate is not None:
                epoch.gate.open()
        self._refresh()

    def _compact(self, operation: Operation) -> None:
        epoch = operation.epoch
        if self._dead <= _COMPACT_ABOVE or epoch is None or self._dead * 2 < len(epoch.queue):
            return
        alive = [entry for entry in epoch.queue if entry.in_line]
        self._dead -= len(epoch.queue) - len(alive)
        epoch.queue = deque(alive)

    def _refresh(self) -> None:
        self.idle = (
            self.credits > 0 and not self._queued and not self._fences and not self.down and not self.stalled
        )

    # ---- fences, flushes, room

    def fence(self) -> None:
        """Operations called from now on start after those before have been delivered."""
        epoch = self._close_epoch()
        if epoch is not None and not epoch.fenced:
            epoch.fenced = True
            self._fences += 1
            self.idle = False

    def flush(self, make_gate: Callable[[], Gate]) -> tuple[Gate, Epoch] | None:
        """A gate that opens when every operation called before has ended; None if they have."""
        epoch = self._close_epoch()
        if epoch is None:
            return None
        if epoch.gate is None:
            epoch.gate = make_gate()
        return epoch.gate, epoch

    def _close_epoch(self) -> Epoch | None:
        """The last epoch of those called before now, closed; None if all have ended."""
        if self._epochs[-1].outstanding:
            self._epochs.append(Epoch())
        return self._epochs[-2] if len(self._epochs) > 1 else None

    @property
    def quiet(self) -> bool:
        """Nothing waits, nothing is under way."""
        return not self.waiting and not self.inflight

    def has_room(self) -> bool:
        """May one more operation wait?"""
        return self.waiting < self.capacity

    def want_room(self, gate: Gate) -> None:
        """Open `gate` when there is room again; first come, first served."""
        self._room.append(gate)

    def drop_room(self, gate: Gate) -> None:
        """Whoever waited for room has gone: pass a place that was offered on to the next."""
        if gate.is_open:
            self.offer_room()
        elif gate in self._room:
            self._room.remove(gate)

    def offer_room(self) -> None:
        """Tell the next of those who wait that there is room, if there is."""
        if self._room and self.waiting < self.capacity:
            self._room.popleft().open()

    def take_down(self) -> None:
        """The peer is gone: nothing is posted any more, and whoever waits for room hears of it."""
        self.down = True
        self.idle = False
        self.release_room()

    def release_room(self) -> None:
        """Let everybody go who waits for room: they look again, and find out why."""
        while self._room:
            self._room.popleft().open()
