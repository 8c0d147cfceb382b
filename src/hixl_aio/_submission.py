"""The way of an operation that is not done within its call: reserve, post, wait in line, follow `ready=`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from hixl_aio._batching import checked_copy
from hixl_aio._core.optable import Operation, OperationKind
from hixl_aio._failures import from_native, from_status
from hixl_aio._native import NativeError
from hixl_aio._status import Status
from hixl_aio._usage_errors import named_region
from hixl_aio.batch import Batch
from hixl_aio.completion import Completion
from hixl_aio.errors import (
    AccessDeniedError,
    HixlAioError,
    InvalidArgumentError,
    TransferFailedError,
    TransferQueueFullError,
    TransferStoppedError,
    UnsupportedError,
)
from hixl_aio.memory import RemoteRegion
from hixl_aio.options import Access
from hixl_aio.signals import check_payload, encode_name

if TYPE_CHECKING:
    from hixl_aio._core.regions import RegionRecord
    from hixl_aio._runtime import Runtime
    from hixl_aio.peer import Peer

__all__ = ("NO_LINE", "StreamEvent", "Submission")

# Refusals that say what the world did: they arrive in the Completion. All others say that the call was wrong.
_WORLD: Final = frozenset({Status.PEER_LOST, Status.PEER_CLOSED, Status.FAILED, Status.LOST})


@runtime_checkable
class StreamEvent(Protocol):
    """An event on a device stream, such as torch.npu.Event. For backends with device memory."""

    def query(self) -> bool:
        """Has the stream come past it?"""

    def synchronize(self) -> None:
        """Block until it has."""


class Submission:
    """Takes operations from the data calls to native code, or into the line of their peer."""

    __slots__ = ("_runtime", "_table")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._table = runtime.ops.table

    def operation(
        self,
        completion: Completion,
        token: int,
        peer: Peer | None,
        target: RemoteRegion | None,
        pins: tuple[RegionRecord, ...],
    ) -> Operation:
        line = NO_LINE if peer is None else peer._line
        operation = Operation(
            token or self._table.next_token(), completion.kind, line, completion.nbytes, completion
        )
        operation.started = completion._started
        operation.pins = pins
        if target is not None:
            operation.target = target
        completion._operation = operation
        return operation

    def submit(
        self,
        operation: Operation,
        signal: str | None,
        payload: bytes,
        ready: Awaitable[object] | StreamEvent | None,
    ) -> None:
        encoded, payload = self.check_signal(signal, payload)
        follow = None if ready is None else self._check_ready(ready)
        line = operation.line
        if line is NO_LINE:
            assert operation.target is not None
            self.unreachable(operation, operation.target.incarnation, operation.target)
            return
        direct = follow is None and line.idle
        if not direct:
            self._check_wait(operation)
        if encoded is not None:
            self.reserve(operation, encoded, payload)
            if operation.concluded:
                return
        if direct:
            self.start(operation)
            return
        self._table.add(operation)
        line.call(operation)
        self._runtime.ops.watch_deadline(operation)
        if follow is None:
            line.enter(operation)
        else:
            follow(operation)

    def check_signal(self, signal: str | None, payload: bytes) -> tuple[bytes | None, bytes]:
        """A bound signal's name as it goes over the wire, and its payload."""
        name = None if signal is None else encode_name(signal)
        if payload or type(payload) is not bytes:
            payload = check_payload(payload, self._runtime.capabilities.max_signal_payload)
            if name is None and payload:
                raise InvalidArgumentError(
                    argument="payload", value=payload, expected="b'' where there is no signal"
                )
        return name, payload

    def start(self, operation: Operation) -> None:
        """Post now if nothing is overtaken by that, else enter the line."""
        line = operation.line
        if not line.idle:
            self._table.add(operation)
            line.call(operation)
            line.enter(operation)
            return
        try:
            code = self._runtime.ops.start(operation, allow_inline=True)
        except NativeError as error:
            # Whoever waits for the signal must not wait for ever (INV-11).
            self._runtime.ops.send_negative(operation, error.status)
            raise self._forget(operation, from_native(error, self._runtime.ops.about(operation))) from None
        self.answered(operation, code)

    def answered(self, operation: Operation, code: int) -> None:
        """What native code said to an operation that was handed over within its call."""
        if code > 0:
            self._runtime.ops.posted(operation, code)
            return
        if code == 0:
            operation.name = None
            self._table.inline_count += 1
            self._table.inline_nbytes += operation.nbytes
            self._runtime.pace.count(operation.nbytes)
            self._done(operation, None)
            return
        if code == -Status.QUEUE_FULL:
            self._check_wait(operation)
            self._table.add(operation)
            operation.line.call(operation)
            self._runtime.ops.watch_deadline(operation)
            operation.line.enter(operation)
            return
        error = from_status(code, "", self._runtime.ops.about(operation))
        # Also when the call raises: whoever waits for that signal must not wait for ever (INV-11).
        self._runtime.ops.send_negative(operation, -code)
        if -code in _WORLD:
            operation.line.broken |= -code in (Status.PEER_LOST, Status.PEER_CLOSED)
            self._done(operation, error)
            return
        raise self._forget(operation, self._explain(operation, -code, error))

    def _check_wait(self, operation: Operation) -> None:
        """It may wait in line; or the call is refused, may be made again, and leaves nothing behind.

        It is posted later: see now what native code would refuse then, and keep offsets as they are now.
        """
        try:
            operation.line.check_room()
            if operation.parts is not None:
                operation.parts = checked_copy(operation.parts)
        except (TransferQueueFullError, InvalidArgumentError) as error:
            if operation.name is not None:
                operation.name = None
                self._runtime.native.unreserve_signal(operation.line.number)
            raise self._forget(operation, error) from None

    @staticmethod
    def _done(operation: Operation, error: HixlAioError | None) -> None:
        """It ended within its call: it was never in the table, and nothing is pinned."""
        operation.concluded = True
        operation.pins = ()
        operation.outcome._release()
        operation.outcome._conclude(operation, error)

    @staticmethod
    def _forget(operation: Operation, error: HixlAioError) -> HixlAioError:
        """The call raises: its Completion was never seen by anybody."""
        operation.concluded = True
        operation.pins = ()
        operation.outcome._release()
        return error

    def _explain(self, operation: Operation, status: int, error: HixlAioError) -> HixlAioError:
        """Say what a refusal means for the arguments of the call."""
        target = operation.target
        if status == Status.ACCESS_DENIED and target is not None:
            return denied(target, self._needed(operation))
        if status == Status.NO_LINK and target is not None:
            return UnsupportedError(
                f"{named_region(target.label)} is {target.kind.name.lower()} memory",
                feature="this memory over the links that are allowed",
                backend=self._runtime.backend,
                hint="See peer.route; allocate() makes memory for shm, options.links allows more kinds.",
            )
        return error

    def _needed(self, operation: Operation) -> Access:
        """What the refused transfer, or the part of a batch that is to blame, needs of its region."""
        batch = operation.outcome
        if isinstance(batch, Batch):
            is_get = batch._plan[self._runtime.native.refused_part][0]
        else:
            is_get = operation.kind is OperationKind.GET
        return Access.READ if is_get else Access.WRITE

    def reserve(self, operation: Operation, name: bytes, payload: bytes) -> None:
        """Take a place in the peer's signal queue before anything moves."""
        operation.name = name
        operation.payload = payload
        code = self._runtime.native.reserve_signal(operation.line.number)
        if code == 0:
            return
        error = from_status(code, "", self._runtime.ops.about(operation))
        operation.name = None
        if -code in _WORLD:
            self._done(operation, error)
            return
        raise self._forget(operation, error)

    def unreachable(self, operation: Operation, incarnation: str, target: RemoteRegion | None) -> None:
        """The memory's owner is not connected: our mistake raises, the world's arrives in the Completion."""
        error, is_world = self._runtime.control.why_unreachable(incarnation, target)
        if not is_world:
            raise self._forget(operation, error)
        gone = self._runtime.control.gone(incarnation)
        if gone is not None:
            operation.line = gone._line
            if isinstance(operation.outcome, Completion):
                operation.outcome.peer = gone
            if self._runtime.lookout.is_needed(gone):
                self._check_wait(operation)
                self._table.add(operation)
                operation.line.call(operation)
                self._runtime.ops.watch_deadline(operation)
                operation.drop_ready = _nothing
                self._runtime.lookout.hold(gone, operation)
                return
        self._done(operation, error)

    # ---- ready= and after=

    def _check_ready(self, ready: Any) -> Callable[[Operation], None]:
        if isinstance(ready, Completion):
            if ready._runtime.life.owner is not self._runtime.life.owner:
                raise _foreign(ready)
            return lambda operation: self.link(operation, ready, negative=False)
        if isinstance(ready, Awaitable):
            if not self._runtime.bridge.owns(ready):
                raise _foreign(ready)
            return lambda operation: self._follow(operation, ready)
        if isinstance(ready, StreamEvent):
            feature = "stream events: it has no device streams"
            raise UnsupportedError(
                feature=feature, backend=self._runtime.backend, hint="Pass an awaitable as `ready=`."
            )
        raise InvalidArgumentError(
            argument="ready", value=type(ready).__name__, expected="an awaitable, or None"
        )

    def _follow(self, operation: Operation, ready: Awaitable[object]) -> None:
        def resolved(error: BaseException | None) -> None:
            operation.drop_ready = None
            self._resolved(operation, error)

        operation.drop_ready = self._runtime.bridge.follow(ready, resolved)

    def link(self, operation: Operation, other: Completion, *, negative: bool) -> None:
        """Let `operation` enter its line when another one has completed."""

        def resolved(error: HixlAioError | None) -> None:
            if not operation.in_line:
                return  # stopped meanwhile
            operation.drop_ready = None
            if error is not None and negative:
                operation.send_status = status_of_failure(error)
                error = None
            self._resolved(operation, error)

        before = other._operation
        if other._ended or before is None:
            resolved(None if other._failure is None else other._failure.error)
            return
        before.links.append(resolved)
        operation.drop_ready = _nothing

    def _resolved(self, operation: Operation, error: BaseException | None) -> None:
        if error is None:
            operation.line.enter(operation)
            return
        about = self._runtime.ops.about(operation)
        cancelled = not isinstance(error, Exception)
        failure = (TransferStoppedError if cancelled else TransferFailedError)(
            f"what it was to wait for ended with {_brief(error)}; nothing has moved",
            op=about.op,
            peer=about.peer,
            nbytes=about.nbytes,
            status=Status.STOPPED if cancelled else Status.FAILED,
            backend=about.backend,
            hint="Look at the awaitable that was given as `ready=`.",
        )
        failure.__cause__ = error
        self._runtime.ops.end_waiting(operation, failure, failure.status)


class _NoLine:
    """Stands for the line of a peer that is not connected."""


NO_LINE: Final[Any] = _NoLine()


def _foreign(ready: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        argument="ready", value=repr(ready), expected="an awaitable of this engine's loop"
    )


def _brief(error: BaseException) -> str:
    """The cause itself hangs on the failure; a chain of operations must not repeat it in each message."""
    text = str(error)
    return (
        f"{type(error).__name__}: {text[:100]}{'…' if len(text) > 100 else ''}"
        if text
        else type(error).__name__
    )


def _nothing() -> None:
    """What a link needs to be dropped: the operation it would start is over, and it looks."""


def status_of_failure(error: HixlAioError) -> int:
    status = getattr(error, "status", Status.FAILED)
    return int(status) or int(Status.FAILED)


def denied(target: RemoteRegion, needed: Access) -> AccessDeniedError:
    return AccessDeniedError(label=target.label, granted=target.access.name, needed=needed.name)
