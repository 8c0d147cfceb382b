"""What moves an operation from state to state: posting, records, stops, deadlines.

Nothing here decides whether a call is right (`_dataplane` does) or how a task waits (`_bridge` does).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Final

from hixl_aio._core.credits import MAX_ENDED_IN_A_TURN, Posting
from hixl_aio._core.deadlines import Deadlines
from hixl_aio._core.optable import Operation, OperationKind, OperationState, OperationTable
from hixl_aio._failures import About, from_native, from_status, status_of
from hixl_aio._log import log
from hixl_aio._native import NativeError
from hixl_aio._status import Status
from hixl_aio.batch import Batch, PartState
from hixl_aio.errors import (
    BatchError,
    ClosedError,
    HixlAioError,
    InternalError,
    TransferStoppedError,
    TransferTimeoutError,
)

if TYPE_CHECKING:
    from hixl_aio._bridge.base import Cancellable
    from hixl_aio._core.credits import PeerLine
    from hixl_aio._records import CompletionTuple
    from hixl_aio._runtime import Runtime

__all__ = ("Operations",)

# After its deadline an operation has this long to stop; then its awaiters hear of the deadline all the same.
_STOP_ALLOWANCE: Final = 0.1
_POSTED: Final = OperationState.POSTED
# Of a batch, these say more about the whole than a list of parts could.
_WHOLE_BATCH = frozenset(
    {Status.STOPPED, Status.PEER_LOST, Status.PEER_CLOSED, Status.CLOSED, Status.NOT_CONNECTED}
)


class Operations:
    """All unsettled operations of one engine, and their deadlines."""

    __slots__ = (
        "_following",
        "_links",
        "_runtime",
        "_stalled",
        "_timer",
        "_timer_when",
        "deadlines",
        "table",
    )

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.table = OperationTable()
        self.deadlines: Deadlines[Operation] = Deadlines()
        self._timer: Cancellable | None = None
        self._timer_when = 0.0
        self._stalled: set[PeerLine] = set()
        self._links: deque[tuple[Callable[[HixlAioError | None], None], HixlAioError | None]] = deque()
        self._following = False

    # ---- posting

    def start(self, operation: Operation, *, allow_inline: bool) -> int:
        """Hand an operation to native code.

        Returns:
            0: done. > 0: posted, a record follows. < 0: minus the status of a refusal.
        """
        native = self._runtime.native
        number = operation.line.number
        name = operation.name
        if operation.run is not None:
            kind, address, region, generation, offset = operation.run
            return native.transfer(
                operation.token,
                kind,
                number,
                address,
                region,
                generation,
                offset,
                operation.nbytes,
                allow_inline,
                name,
                operation.payload,
            )
        if operation.parts is not None:
            code = native.batch(
                operation.token, number, operation.parts, allow_inline, name, operation.payload
            )
            if code < 0 and isinstance(operation.outcome, Batch):
                operation.target = operation.outcome._plan[native.refused_part][2]
            return code
        # Nothing to move: what is left is the signal, whose place is reserved.
        return (
            0
            if name is None
            else native.send_signal(number, name, operation.payload, operation.send_status, True)
        )

    def post_waiting(self, operation: Operation) -> Posting:
        """Post an operation whose turn in the line has come; its line calls this."""
        try:
            code = self.start(operation, allow_inline=False)
        except NativeError as error:
            self._end_waiting(operation, from_native(error, self.about(operation)), error.status)
            return Posting.ENDED
        if code > 0:
            operation.handle = code
            self.table.move(operation, _POSTED)
            return Posting.POSTED
        if code == 0:
            operation.name = None
            self._end_waiting(operation, None, 0)
            return Posting.ENDED
        if code == -Status.QUEUE_FULL:
            self._stalled.add(operation.line)
            return Posting.FULL
        self._end_waiting(operation, from_status(code, "", self.about(operation)), -code)
        return Posting.ENDED

    def posted(self, operation: Operation, handle: int) -> None:
        """An operation was posted within its call."""
        operation.handle = handle
        operation.state = _POSTED
        self.table.add(operation)
        operation.line.posted_at_once(operation)
        self.watch_deadline(operation)

    # ---- records

    def record(self, item: CompletionTuple) -> None:
        """A record has come up: exactly one for each posted operation (INV-1)."""
        token, code, _, quiescent, parts = item
        operation = self.table.find(token)
        if operation is None:
            raise InternalError(f"a record came for token {token}, which names no operation")
        line = operation.line
        error = None
        if code:
            error = self._failure(operation, code, parts)
            line.broken |= code in (Status.PEER_LOST, Status.PEER_CLOSED)
        elif operation.concluded and isinstance(operation.outcome, Batch):
            operation.outcome._all_landed()  # after its deadline
        # Released before anybody is woken: what runs next may close or reuse the region (INV-2).
        if quiescent or code == 0:
            self._settle(operation)
        else:
            self.table.move(operation, OperationState.QUARANTINED)
            self._drop_deadline(operation)
        try:
            self._conclude(operation, error)
        finally:
            # Whatever telling the waiters may raise, the credit comes back and the line goes on.
            line.ended(operation, None if isinstance(error, TransferStoppedError) else error)

    def _failure(self, operation: Operation, code: int, parts: bytes | None) -> HixlAioError:
        runtime = self._runtime
        batch = self._note_parts(operation, parts)
        if runtime.closing and code in (Status.STOPPED, Status.CLOSED, Status.PEER_CLOSED):
            return ClosedError(what=f"engine {runtime.name}", state="closing")
        about = self.about(operation)
        if operation.overdue and code == Status.STOPPED:
            return self._timeout_error(operation, about, waiting=False)
        if batch is None or parts is None or code in _WHOLE_BATCH:
            return from_status(code, "", about)
        failures = tuple(
            (index, self._part_failure(batch, index, state, code, about))
            for index, state in enumerate(parts)
            if state > PartState.DONE
        )
        return BatchError(
            failures=failures,
            peer=about.peer,
            nbytes=about.nbytes,
            status=status_of(code),
            backend=about.backend,
        )

    @staticmethod
    def _note_parts(operation: Operation, parts: bytes | None) -> Batch | None:
        """Keep what a record says of the parts, whatever the error. None: no batch, or nobody knows."""
        batch = operation.outcome
        if parts is None or not isinstance(batch, Batch) or max(parts, default=0) <= PartState.DONE:
            return None
        batch._states = parts
        return batch

    @staticmethod
    def _part_failure(batch: Batch, index: int, state: int, code: int, about: About) -> HixlAioError:
        is_get, nbytes, target = batch._plan[index]
        kind = OperationKind.GET if is_get else OperationKind.PUT
        about = replace(about, op=kind.value, nbytes=nbytes, label=target.label, generation=target.generation)
        return from_status(Status.STALE_REGION if state == PartState.STALE else code, "", about)

    def resume_stalled(self) -> None:
        """Native code may have slots again."""
        if self._stalled:
            stalled, self._stalled = self._stalled, set()
            for line in stalled:
                line.pump()

    # ---- stops

    def request_stop(self, operation: Operation) -> None:
        """End it at once if it is in line, else ask the transport to stop it."""
        if operation.state is OperationState.WAITING:
            about = self.about(operation)
            stopped = TransferStoppedError(
                "it was still in line",
                op=about.op,
                peer=about.peer,
                nbytes=about.nbytes,
                status=Status.STOPPED,
                backend=about.backend,
                hint="Nothing has moved.",
            )
            self.end_waiting(operation, stopped, Status.STOPPED)
        elif not operation.stopping:
            operation.stopping = True
            self._runtime.native.stop(operation.handle)

    def end_waiting(self, operation: Operation, error: HixlAioError | None, status: int) -> None:
        """End an operation that was not posted, and let the line go on."""
        line = operation.line
        self._end_waiting(operation, error, status)
        line.pump()

    def _end_waiting(self, operation: Operation, error: HixlAioError | None, status: int) -> None:
        drop, operation.drop_ready = operation.drop_ready, None
        if drop is not None:
            drop()
        self._settle(operation)
        operation.line.left(operation, None if isinstance(error, TransferStoppedError) else error)
        if error is not None:
            self.send_negative(operation, status)
        self._conclude(operation, error)

    def send_negative(self, operation: Operation, status: int) -> None:
        """The negative form goes out on the place that was reserved at the call (INV-11)."""
        name, operation.name = operation.name, None
        if name is not None and not operation.line.down:
            self._runtime.native.send_signal(operation.line.number, name, operation.payload, status, True)

    def abandon(self, operation: Operation) -> None:
        """Nobody waits any more, and the transport has not let go: the region stays busy (INV-6)."""
        if operation.state is OperationState.POSTED:
            self.table.move(operation, OperationState.ABANDONED)
            about = self.about(operation)
            log("warning", "transfer abandoned", op=about.op, peer=about.peer, nbytes=about.nbytes)

    # ---- deadlines

    def watch_deadline(self, operation: Operation) -> None:
        """Give the operation its deadline, if it has one."""
        if operation.timeout is None:
            return
        when = operation.started + operation.timeout
        operation.deadline = self.deadlines.add(when, operation)
        if self._timer is None or when < self._timer_when:
            self._arm(when)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_when = when
        self._timer = self._runtime.bridge.call_later(max(0.0, when - monotonic()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        # Whatever ended in time while the loop was busy must not count as late.
        self._runtime.drain_all()
        for operation in self.deadlines.expired(monotonic()):
            operation.deadline = None
            try:
                if not operation.concluded:
                    self._overdue(operation)
            except Exception as failure:  # one must not take the deadlines of the others with it
                self._runtime.bridge.report("a deadline could not be kept", failure)
        when = self.deadlines.next_due()
        if when is not None and self._timer is None:
            self._arm(when)

    def _overdue(self, operation: Operation) -> None:
        about = self.about(operation)
        waiting = operation.state is OperationState.WAITING
        if not waiting and not operation.overdue and self._stop_takes_effect(operation):
            return
        error = self._timeout_error(operation, about, waiting=waiting)
        if waiting:
            self.end_waiting(operation, error, Status.TIMED_OUT)
            return
        if operation.state is OperationState.POSTED:
            self.table.move(operation, OperationState.ABANDONED)
        self._conclude(operation, error)
        if self._runtime.options.timeout_policy == "abort":
            late = f"a {about.op} of {about.nbytes} bytes exceeded its timeout of {operation.timeout} s"
            self._runtime.control.abort_line(operation.line, late)

    def _stop_takes_effect(self, operation: Operation) -> bool:
        """Request a stop; true if the transport gets a moment for it, after which we look again."""
        operation.overdue = True
        self.request_stop(operation)
        if not self._runtime.capabilities.can_stop or operation.state is OperationState.QUARANTINED:
            return False
        when = monotonic() + min(_STOP_ALLOWANCE, self._runtime.options.cancel_grace)
        operation.deadline = self.deadlines.add(when, operation)
        return True

    @staticmethod
    def _timeout_error(operation: Operation, about: About, *, waiting: bool) -> TransferTimeoutError:
        return TransferTimeoutError(
            "it was still in line, nothing has moved" if waiting else "",
            timeout=operation.timeout or 0.0,
            op=about.op,
            peer=about.peer,
            nbytes=about.nbytes,
            backend=about.backend,
        )

    def _drop_deadline(self, operation: Operation) -> None:
        deadline, operation.deadline = operation.deadline, None
        if deadline is not None:
            self.deadlines.cancel(deadline)

    def drop_timer(self) -> None:
        """The engine closes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.deadlines.clear()

    # ---- ends

    def _settle(self, operation: Operation) -> None:
        self._drop_deadline(operation)
        self.table.settle(operation)

    def _conclude(self, operation: Operation, error: HixlAioError | None) -> None:
        if operation.concluded:
            return  # its deadline was over before
        operation.concluded = True
        operation.outcome._conclude(operation, error)
        if operation.links:
            links, operation.links = operation.links, []
            self._links.extend((link, error) for link in links)
            self._follow_links()

    def _follow_links(self) -> None:
        """Begin what waited for operations, one by one: a long chain must not become a deep stack."""
        if self._following:
            return
        self._following = True
        try:
            while self._links:
                link, error = self._links.popleft()
                try:
                    link(error)
                except Exception as failure:
                    self._runtime.bridge.report("an operation could not begin after another one", failure)
        finally:
            self._following = False

    def fail_all(self, line: PeerLine, error: HixlAioError, status: int) -> None:
        """The peer is gone: what waits ends, quarantine is over. What is posted gets its record.

        A full line takes several turns of the loop, lest it stall (each operation costs some microseconds).
        """
        self._fail_some(deque(self.table.of_line(line)), line, error, status)

    def _fail_some(
        self, operations: deque[Operation], line: PeerLine, error: HixlAioError, status: int
    ) -> None:
        for _ in range(min(len(operations), MAX_ENDED_IN_A_TURN)):
            operation = operations.popleft()
            if operation.state is OperationState.WAITING:
                self._end_waiting(operation, error, status)
            elif operation.state is OperationState.QUARANTINED:
                self._settle(operation)
        if operations:
            self._runtime.call_soon(self._fail_some, operations, line, error, status)
        else:
            line.pump()

    def force_out(self, error: HixlAioError) -> None:
        """The transport has been shut down: nothing can touch memory any more, whatever is missing."""
        for operation in self.table:
            if operation.state is OperationState.WAITING:
                self._end_waiting(operation, error, Status.CLOSED)
            else:
                self._settle(operation)
                self._conclude(operation, error)

    def about(self, operation: Operation) -> About:
        """The circumstances, for an error."""
        target = operation.target
        return About(
            op=operation.kind.value,
            peer=operation.line.address,
            nbytes=operation.nbytes,
            backend=self._runtime.backend,
            name="" if operation.name is None else operation.name.decode("utf-8", "replace"),
            limit=operation.line.capacity,
            waiting=operation.line.waiting,
            label="" if target is None else target.label,
            generation=0 if target is None else target.generation,
            broken=self._runtime.control.why_broken(operation.line.number),
        )
