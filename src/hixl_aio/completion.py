"""What a data call returns: the awaitable face of one operation.

Two things end separately, and this is where they are kept apart: the *result* (`done`, `exception`, `await`)
and the *custody of the memory* (`settled`). `await` joins both as far as it can be known (INV-6).
"""

from __future__ import annotations

import contextvars
import inspect
import warnings
from collections.abc import Callable, Generator
from time import monotonic
from typing import TYPE_CHECKING, Any

from hixl_aio._core.gate import Gate
from hixl_aio._core.optable import Operation, OperationKind, OperationState
from hixl_aio._native import CompletionBase
from hixl_aio.errors import (
    AbandonedTransferWarning,
    ClosedError,
    HixlAioError,
    InternalError,
    InvalidArgumentError,
    PeerError,
    TransferStoppedError,
)

if TYPE_CHECKING:
    from hixl_aio._bridge.base import Waitable, Waiter
    from hixl_aio._core.credits import PeerLine

__all__ = ("Completion", "OperationKind", "OperationState")


class _Failure:
    """The error of an operation, until somebody looks at it. Dropped unseen, it is reported, once.

    The loss of a peer is one piece of news, however many operations it ends.
    """

    __slots__ = ("about", "error", "line", "report", "seen")

    def __init__(self, error: HixlAioError, report: Callable[..., None], about: str, line: PeerLine) -> None:
        self.error = error
        self.report = report
        self.about = about
        self.line = line if isinstance(error, PeerError) else None
        # What the user ended on purpose is no news.
        self.seen = isinstance(error, TransferStoppedError | ClosedError)

    def look(self) -> HixlAioError:
        self.seen = True
        if self.line is not None:
            self.line.loss_was_told = True
        return self.error

    def __del__(self) -> None:
        if self.seen or (self.line is not None and self.line.loss_was_told):
            return
        self.look()
        self.report(f"{self.about} failed, and nobody looked at it", self.error)


class Completion(CompletionBase):
    """One operation that has been started: await it, watch it, ask for a stop, or drop it.

    Awaiting *joins* the operation: when `await` ends, with its result or by cancellation, the transport has
    let go of the local memory, or the region says that it is busy and refuses to be closed. Any number of
    tasks may await, and cancelling one does not touch the others. A Completion that is dropped still
    transfers and keeps its memory; a failure that nobody looked at is reported once, through the loop's
    exception handler (trio has none: there it goes to the logger `hixl_aio.unhandled`).

    Cancellation: when the last awaiting task of an operation without callbacks is cancelled, a stop is
    requested. In line, the operation ends at once. Posted, the task waits until the transport has let go, for
    at most `cancel_grace`; after that it goes on with an `AbandonedTransferWarning`, and the region stays
    busy until the operation has settled.

    Attributes:
        kind: what it does.
        peer: with whom; None for an empty batch.
        nbytes: how much it is to move.
        user_data: yours.
    """

    # The fields are native code's, which makes most of these, and answers `await` where one is done.
    __slots__ = ("__weakref__",)

    def __repr__(self) -> str:
        peer = "nobody" if self.peer is None else self.peer.address
        state = self.state.name.lower()
        if self._failure is not None:
            state += f", {type(self._failure.error).__name__}"
        return f"<{type(self).__name__} {self.kind.value} of {self.nbytes} bytes, peer {peer}, {state}>"

    # ---- awaiting

    def _join_it(self) -> Generator[Any, Any, None]:
        return self._join(join=True).__await__()

    async def wait(self, *, join: bool = True) -> None:
        """Await the operation, as a coroutine: `group.create_task(op.wait())`.

        Completion means: what it means for the call that made this.

        Cancellation: as for `await`; with `join=False` the call only observes: cancelling it neither stops
            the operation nor waits for it.

        Args:
            join: take part in the operation, or only look on.

        Raises:
            HixlAioError: what the operation failed with.
        """
        await self._join(join=join)

    async def _join(self, *, join: bool) -> None:
        runtime = self._runtime
        if not self._ended:
            runtime.check_loop()
            self._pace.rest()
            if runtime.spin:
                runtime.spinner.expect(runtime.spin)
            waiter = _Joined(self) if join else None
            if waiter is not None:
                await runtime.bridge.join(waiter)
            else:
                await self._observe()
        else:
            await runtime.breathe()
        if self._failure is not None:
            raise self._failure.look().with_traceback(None)

    async def _observe(self) -> None:
        operation, bridge = self._operation, self._runtime.bridge
        if operation is None:
            return
        waiter = bridge.new_waiter()
        operation.waiters.append(waiter)
        try:
            await bridge.park(waiter)
        finally:
            if waiter in operation.waiters:
                operation.waiters.remove(waiter)

    async def settled(self) -> None:
        """Wait until the transport has let go of the local memory, whatever became of the operation (INV-2).

        Completion means: the buffer may be freed, reused or changed.

        Cancellation: ends the wait, and does nothing else.

        Raises:
            ClosedError: the engine was closed, and could not find out.
        """
        operation, runtime = self._operation, self._runtime
        if operation is None:
            await runtime.checkpoint_where_due()
            return
        runtime.check_loop()
        if operation.settled is None:
            operation.settled = Gate(runtime.bridge.wake)
        waiter = runtime.bridge.new_waiter()
        operation.settled.add(waiter)
        try:
            await runtime.bridge.park(waiter)
        finally:
            operation.settled.discard(waiter)

    # ---- looking

    def done(self) -> bool:
        """Is the result known? The memory may still be under way (`settled`) if the deadline ended it."""
        return self._ended != 0.0

    def exception(self) -> HixlAioError | None:
        """The error it ended with; None if there is none, or not yet."""
        return None if self._failure is None else self._failure.look()

    @property
    def state(self) -> OperationState:
        """Who may touch the memory, and who waits for it."""
        return OperationState.SETTLED if self._operation is None else self._operation.state

    @property
    def elapsed(self) -> float:
        """Seconds from the call to the result, or until now."""
        return (self._ended or monotonic()) - self._started

    # ---- acting

    def cancel(self) -> bool:
        """Ask for a stop.

        In line, the operation ends at once. Posted, it stops between two chunks where the transport can do
        that, else it runs on;
        its record says what came of it: `TransferStoppedError`, or success after all.

        Returns:
            False if it is done already.

        Raises:
            WrongLoopError: called on another loop or thread.
        """
        if self._ended:
            return False
        runtime = self._runtime
        runtime.check_loop()
        if self._operation is None:
            raise InternalError(f"{self!r} is neither done nor under way")
        runtime.request_stop(self._operation)
        return True

    def add_done_callback(
        self, fn: Callable[[Completion], object], *, context: contextvars.Context | None = None
    ) -> None:
        """Call `fn(completion)` on the loop's thread, in a turn after the one in which the result is known.

        An operation with a callback is not stopped when its last awaiting task is cancelled.

        Args:
            fn: called once; what it raises is reported like a failure that nobody looked at.
            context: to run it in; a copy of the current one if None.

        Raises:
            InvalidArgumentError: `fn` cannot be called like that.
            WrongLoopError: called on another loop or thread.
        """
        if not callable(fn) or inspect.iscoroutinefunction(fn):
            expected = "a callable that is no coroutine function"
            raise InvalidArgumentError(argument="fn", value=repr(fn), expected=expected)
        if context is None:
            context = contextvars.copy_context()
        elif not isinstance(context, contextvars.Context):
            expected = "a contextvars.Context, or None"
            raise InvalidArgumentError(argument="context", value=type(context).__name__, expected=expected)
        runtime = self._runtime
        if self._ended:
            runtime.check_loop()
            runtime.call_soon(fn, self, context=context)
            return
        runtime.check_loop()
        assert self._operation is not None
        self._operation.callbacks.append((fn, context))

    # ---- told by the runtime

    def _conclude(self, operation: Operation, error: HixlAioError | None) -> None:
        """The result is known: wake everybody (INV-4: on the loop's thread)."""
        runtime = self._runtime
        self._ended = monotonic()
        if error is not None:
            self._failure = _Failure(error, runtime.bridge.report, repr(self), operation.line)
        waiters, operation.waiters = operation.waiters, []
        for waiter in waiters:
            runtime.bridge.wake(waiter)
        callbacks, operation.callbacks = operation.callbacks, []
        for fn, context in callbacks:
            runtime.call_soon(fn, self, context=context)

    def _release(self) -> None:
        """The memory is free."""
        self._operation = None


class _Joined:
    """One task that awaits an operation; the bridge drives it."""

    __slots__ = ("_completion", "_left", "_operation")

    def __init__(self, completion: Completion) -> None:
        operation = completion._operation
        assert operation is not None
        self._completion = completion
        self._operation = operation
        self._left = False

    def attach(self, waiter: Waiter) -> None:
        self._operation.waiters.append(waiter)
        self._operation.joined += 1

    def detach(self, waiter: Waiter) -> tuple[Waitable, float] | None:
        operation = self._operation
        operation.joined -= 1
        if waiter in operation.waiters:
            operation.waiters.remove(waiter)
        completion = self._completion
        runtime = completion._runtime
        if not completion._ended and not operation.joined and not operation.callbacks:
            runtime.request_stop(operation)
        if completion._operation is None or completion._ended:
            return None  # settled; or its result came before, and says that the region is busy
        if operation.state is OperationState.WAITING:
            return None  # the transport does not have it; others still want it
        if operation.settled is None:
            operation.settled = Gate(runtime.bridge.wake)
        return operation.settled, runtime.options.cancel_grace

    def give_up(self) -> None:
        operation, completion = self._operation, self._completion
        if operation.joined or operation.callbacks:
            return  # others still wait for it
        completion._runtime.abandon(operation)
        grace = completion._runtime.options.cancel_grace
        text = f"{completion!r} has not settled within {grace} s; its region stays busy until it has"
        try:
            warnings.warn(AbandonedTransferWarning(text), stacklevel=2)
        except Warning as warning:
            # Warnings may be errors here; this one must not take the place of the cancellation.
            completion._runtime.bridge.report("a transfer was abandoned", warning)
