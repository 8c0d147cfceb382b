"""Closing an engine: everybody who waits hears of it, what is under way ends or is stopped, then native code
goes (INV-10).

Every wait in here is shielded and bounded, so that it also ends well in a task that is being cancelled. The
first cancellation is raised when all is done.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

from hixl_aio._bridge.base import weightier
from hixl_aio._checks import check_seconds
from hixl_aio._core.credits import MAX_ENDED_IN_A_TURN
from hixl_aio._core.gate import EitherGate, Gate
from hixl_aio._core.lifecycle import LifeState
from hixl_aio._core.optable import OperationState
from hixl_aio._log import log
from hixl_aio._requests import Request
from hixl_aio._status import Status
from hixl_aio.errors import AbandonedTransferWarning, ClosedError, InternalError

if TYPE_CHECKING:
    from hixl_aio._runtime import Runtime

__all__ = ("close_engine",)

_FAREWELL: Final = 1.5  # seconds; native code gives a silent peer one
_PEER_PATIENCE: Final = 0.5  # seconds for peers that have not answered to end the chunk in hand
_NATIVE_SHUTDOWN: Final = 10.0  # seconds; it never takes that long unless something is broken


async def close_engine(runtime: Runtime, drain_timeout: float | None) -> None:
    """See `Engine.aclose`."""
    life = runtime.life
    if life.state is LifeState.NEW:
        life.advance(LifeState.CLOSED)
    if life.state is LifeState.CLOSED:
        await runtime.checkpoint_where_due()
        return
    drain_timeout = check_seconds("drain_timeout", drain_timeout, optional=True)
    if runtime.current() is not life.owner or life.state is LifeState.FORKED:
        raise life.refusal(runtime.current())
    if runtime.closing_gate is not None:
        await _close_along(runtime, runtime.closing_gate)
        return
    runtime.closing_gate = Gate(runtime.bridge.wake)
    runtime.hurry = Gate(runtime.bridge.wake)
    life.advance(LifeState.CLOSING)
    try:
        cancelled = await _close(runtime, drain_timeout)
    finally:
        runtime.closing_gate.open()
    if cancelled is not None:
        raise cancelled


async def _close_along(runtime: Runtime, closed: Gate) -> None:
    """Another call closes it: wait for that. A cancellation here ends its drain, and is raised when all is
    closed."""
    _, cancelled = await runtime.bridge.hold(closed, None, patient=False)
    if cancelled is not None:
        if runtime.hurry is not None:
            runtime.hurry.open()
        await runtime.bridge.hold(closed, None)
        raise cancelled


async def _close(runtime: Runtime, drain_timeout: float | None) -> BaseException | None:
    _release_waiters(runtime)
    first = await _drain(runtime, drain_timeout)
    for step in (_stop, _shut_out):
        try:
            cancelled = await step(runtime)
        except Exception as error:  # whatever is broken, native code must still be ended
            runtime.bridge.report(f"engine {runtime.name} is closing", error)
        else:
            first = weightier(first, cancelled)
    request: Request = runtime.requests.begin(runtime.native.begin_shutdown)
    down, cancelled = await runtime.bridge.hold(request.gate, _NATIVE_SHUTDOWN)
    first = weightier(first, cancelled)
    try:
        if not down:
            runtime.bridge.unwatch(runtime.native.fileno())
            raise InternalError(
                f"native code of engine {runtime.name} did not shut down within {_NATIVE_SHUTDOWN} s"
            )
        runtime.drain_all()  # there may be more records than one turn takes
        runtime.bridge.unwatch(runtime.native.fileno())
        runtime.native.close()
    finally:
        _forget(runtime)
    return first


def _closed(runtime: Runtime) -> ClosedError:
    return ClosedError(what=f"engine {runtime.name}", state="closing")


def _release_waiters(runtime: Runtime) -> None:
    """Who waits for what will not come any more hears of it now, not after the drain."""
    runtime.mail.close()
    runtime.control.close()
    runtime.requests.fail_all(lambda: _closed(runtime))
    for operation in runtime.ops.table:
        if operation.state is OperationState.WAITING and operation.drop_ready is not None:
            runtime.ops.end_waiting(operation, _closed(runtime), Status.CLOSED)


async def _drain(runtime: Runtime, seconds: float | None) -> BaseException | None:
    """Let what is under way end; a cancellation cuts this short."""
    gate = runtime.ops.table.empty_gate(runtime.bridge.wake)
    if gate is None:
        return None
    enough = gate if runtime.hurry is None else EitherGate(gate, runtime.hurry)
    _, cancelled = await runtime.bridge.hold(enough, seconds, patient=False)
    return cancelled


async def _stop(runtime: Runtime) -> BaseException | None:
    """Stop what is still under way."""
    table = runtime.ops.table
    first: BaseException | None = None
    for number, operation in enumerate(table, 1):
        if operation.state is OperationState.WAITING:
            runtime.ops.end_waiting(operation, _closed(runtime), Status.CLOSED)
        if number % MAX_ENDED_IN_A_TURN == 0:
            first = weightier(first, await _turn(runtime))
    for operation in table:
        if operation.state is not OperationState.QUARANTINED:
            runtime.ops.request_stop(operation)
    gate = table.empty_gate(runtime.bridge.wake)
    if gate is None:
        return first
    settled, cancelled = await runtime.bridge.hold(gate, runtime.options.cancel_grace)
    if not settled:
        text = f"engine {runtime.name} closes with {len(table)} operations unsettled; tearing its links down"
        _warn(runtime, text)
    return weightier(first, cancelled)


async def _turn(runtime: Runtime) -> BaseException | None:
    """Let the loop go round, whatever is cancelled meanwhile."""
    gate = Gate(runtime.bridge.wake)
    runtime.call_soon(gate.open)
    return (await runtime.bridge.hold(gate, None))[1]


async def _shut_out(runtime: Runtime) -> BaseException | None:
    """No peer writes here any more. What a stopped process may still write to is kept for good (INV-10)."""
    if not runtime.control.has_peers():
        return None
    # Good-byes first: a peer that hears of a closed region before it hears that we go would blame itself.
    first = await runtime.control.leave_all(_FAREWELL)
    seconds = min(runtime.options.cancel_grace, _PEER_PATIENCE)
    stuck, cancelled = await runtime.regions.revoke_all(seconds)
    first = weightier(first, cancelled)
    if stuck:
        labels = ", ".join(repr(record.label) for record in stuck[:5])
        text = f"engine {runtime.name} closes while a stopped peer may still write to {labels}"
        _warn(
            runtime, f"{text} ({len(stuck)} regions); their memory stays referenced until this process ends"
        )
    return first


def _warn(runtime: Runtime, text: str) -> None:
    """Warnings may be errors here, and closing must go on."""
    try:
        warnings.warn(AbandonedTransferWarning(text), stacklevel=2)
    except Warning as warning:
        runtime.bridge.report("closing an engine", warning)


def _forget(runtime: Runtime) -> None:
    """Native code has gone, or must be taken for gone: nothing of it is touched from here on."""
    runtime.ops.drop_timer()
    runtime.ops.force_out(_closed(runtime))
    runtime.control.forget_all()
    runtime.mail.inbox.clear()
    runtime.regions.forget_all()
    runtime.data.close()
    if runtime.faults is not None:
        runtime.faults.detach()
    runtime.life.advance(LifeState.CLOSED)
    del runtime.native
    log("info", "engine closed", name=runtime.name)
