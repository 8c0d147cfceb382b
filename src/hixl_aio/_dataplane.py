"""The data calls: what the short way does not do.

The short way is the hot path (design: 128 bytes over shm cost no hand-over and no wake-up): one native call
that checks, copies, and makes a done Completion; or says that it did nothing. Everything else comes here, and
goes through an Operation in the op table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hixl_aio._batching import BatchPlan, checked_copy, plan_batch
from hixl_aio._checks import check_seconds
from hixl_aio._core.credits import PeerLine
from hixl_aio._core.gate import Gate
from hixl_aio._core.lifecycle import Lifecycle
from hixl_aio._core.optable import Operation, OperationKind
from hixl_aio._core.regions import RegionRecord, refuse_readonly
from hixl_aio._remote import as_remote
from hixl_aio._submission import NO_LINE, StreamEvent, Submission, denied, status_of_failure
from hixl_aio._usage_errors import named_region
from hixl_aio.batch import Batch, BatchOp
from hixl_aio.completion import Completion
from hixl_aio.errors import (
    ClosedError,
    HixlAioError,
    InvalidArgumentError,
)
from hixl_aio.memory import LocalView, RemoteRegion, RemoteView, as_local
from hixl_aio.options import DEFAULT, Access, Timeout
from hixl_aio.peer import Peer, PeerState
from hixl_aio.signals import check_payload, encode_name

if TYPE_CHECKING:
    from hixl_aio._native import NativeEngine, ShortWay
    from hixl_aio._runtime import Runtime

__all__ = ("DataPlane",)

# By `is_get`.
_KINDS: Final = (OperationKind.PUT, OperationKind.GET)
_NEEDED: Final = (Access.WRITE, Access.READ)
_PARTS: Final[Mapping[str, object]] = {
    **{
        cls.__name__: cls
        for cls in (LocalView, RegionRecord, RemoteView, RemoteRegion, Peer, PeerLine, Lifecycle, Completion)
    },
    "put": OperationKind.PUT,
    "get": OperationKind.GET,
    "READ": Access.READ,
    "WRITE": Access.WRITE,
    "READ_WRITE": Access.READ_WRITE,
}

PutNow: TypeAlias = Callable[[Any, Any, str | None, bytes], Completion | None]
GetNow: TypeAlias = Callable[[Any, Any], Completion | None]


def _not_now(*_: object) -> None:
    """What is not open has no short way."""


class DataPlane:
    """Starts operations. Synchronous throughout: nothing here blocks or suspends."""

    __slots__ = ("_current", "_life", "_peers", "_runtime", "_short", "_table", "_way", "get_now", "put_now")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._life = runtime.life
        self._table = runtime.ops.table
        self._peers = runtime.control.by_incarnation
        self._current: Callable[[], object] = runtime.current
        self._way = Submission(runtime)
        self._short: ShortWay | None = None
        self.put_now: PutNow = _not_now
        self.get_now: GetNow = _not_now

    def open(self, native: NativeEngine) -> None:
        """Keep at hand what the hot path needs."""
        self._current = self._runtime.current
        ours = {
            "runtime": self._runtime,
            "life": self._life,
            "current": self._current,
            "peers": self._peers,
            "pace": self._runtime.pace,
        }
        short = self._short = native.short_way({**_PARTS, **ours})
        self.put_now, self.get_now = short.put, short.get

    def close(self) -> None:
        """Let go of native code."""
        self.put_now = self.get_now = _not_now
        if self._short is not None:
            self._short.close()

    def done_now(self) -> tuple[int, int]:
        """How many were done by the short way, and their bytes."""
        return (0, 0) if self._short is None else self._short.totals

    # ---- put and get

    def transfer(
        self,
        is_get: int,
        local: Any,
        remote: Any,
        timeout: Timeout,
        signal: str | None,
        payload: bytes,
        ready: Awaitable[object] | StreamEvent | None,
    ) -> Completion:
        """One run between a view of ours and a view of a peer's. `is_get`: 0 or 1, as native code counts."""
        life = self._life
        if self._current() is not life.home:
            raise life.refusal(self._current())
        if type(local) is not LocalView or type(remote) is not RemoteView:
            local = as_local(local, "dst" if is_get else "src")
            remote = as_remote(remote, "src" if is_get else "dst")
            if timeout is DEFAULT and ready is None:
                done = self.get_now(remote, local) if is_get else self.put_now(local, remote, signal, payload)
                if done is not None:
                    return done
        record = local._record
        if (
            local._nbytes != remote._nbytes
            or record.owner is not self._runtime
            or (is_get and record.readonly)
        ):
            raise self._wrong(is_get, local, remote)
        needed = _NEEDED[is_get]
        if not remote.region.access & needed:
            raise denied(remote.region, needed)
        started = monotonic()
        seconds = self._seconds(timeout)
        peer = self._peers.get(remote._region.incarnation)
        completion, operation = self._accepted(is_get, local, remote, peer, started)
        operation.timeout = seconds
        self._way.submit(operation, signal, payload, ready)
        return completion

    def _accepted(
        self, is_get: int, local: LocalView, remote: RemoteView, peer: Peer | None, started: float
    ) -> tuple[Completion, Operation]:
        target, nbytes = remote.region, local.nbytes
        completion = Completion(self._runtime, _KINDS[is_get], peer, nbytes, started, 0.0)
        operation = self._way.operation(completion, 0, peer, target, (local._record,))
        if nbytes:
            operation.run = (is_get, local._address, target.id, target.generation, remote.offset)
        return completion, operation

    def _wrong(self, is_get: int, local: LocalView, remote: RemoteView) -> HixlAioError:
        """Why a transfer between these two cannot be."""
        record = local._record
        if record.owner is not self._runtime:
            return _region_unusable(local)
        if local.nbytes != remote.nbytes:
            ends = ("src", "dst", local.nbytes, remote.nbytes)
            if is_get:
                ends = ("src", "dst", remote.nbytes, local.nbytes)
            expected = f"{ends[2]} bytes, the length of {ends[0]}"
            hint = "Slice the longer one to the length of the other."
            return InvalidArgumentError(
                argument=f"the length of {ends[1]}", value=ends[3], expected=expected, hint=hint
            )
        return refuse_readonly(record.label, "writing: it is the destination of a get")

    # ---- batch

    def batch(
        self,
        ops: Sequence[BatchOp],
        timeout: Timeout,
        signal: str | None,
        payload: bytes,
        ready: Awaitable[object] | StreamEvent | None,
    ) -> Batch:
        """All parts as one operation with one peer."""
        life = self._life
        if self._current() is not life.home:
            raise life.refusal(self._current())
        started = monotonic()
        plan = plan_batch(ops)
        for index, view in enumerate(plan.locals):
            if view._record.owner is not self._runtime:
                raise _region_unusable(view, f"part {index}")
        seconds = self._seconds(timeout)
        if plan.target is None:
            return self._empty_batch(plan, started, signal, payload, ready)
        peer = self._peers.get(plan.target.incarnation)
        batch = Batch(self._runtime, peer, plan.nbytes, started, plan.parts)
        operation = self._way.operation(batch, 0, peer, plan.target, plan.records())
        if plan.nbytes:
            operation.parts = plan.native
        else:
            checked_copy(plan.native)  # native code does not see it, so its bounds are checked here
        operation.timeout = seconds
        self._way.submit(operation, signal, payload, ready)
        return batch

    def _empty_batch(
        self,
        plan: BatchPlan,
        started: float,
        signal: str | None,
        payload: bytes,
        ready: Awaitable[object] | StreamEvent | None,
    ) -> Batch:
        self._way.check_signal(signal, payload)
        if signal is not None or ready is not None:
            what = "a signal" if signal is not None else "ready="
            hint = "An empty batch names no peer; use engine.signal(peer, name), and await `ready` yourself."
            raise InvalidArgumentError(
                argument="the number of ops", value=0, expected=f"at least one part with {what}", hint=hint
            )
        batch = Batch(self._runtime, None, 0, started, plan.parts)
        batch._ended = monotonic()
        return batch

    # ---- signal

    def signal(self, peer: Peer, name: str, payload: bytes, after: Completion | None) -> Completion:
        """A signal of its own."""
        life = self._life
        if self._current() is not life.home:
            raise life.refusal(self._current())
        self._check_peer(peer)
        encoded = encode_name(name)
        payload = check_payload(payload, self._runtime.capabilities.max_signal_payload)
        if after is not None and (not isinstance(after, Completion) or after._runtime is not self._runtime):
            raise InvalidArgumentError(
                argument="after", value=repr(after), expected="a Completion of this engine, or None"
            )
        completion = Completion(self._runtime, OperationKind.SIGNAL, peer, 0, monotonic(), 0.0)
        operation = self._way.operation(
            completion, 0, peer if peer._state is PeerState.CONNECTED else None, None, ()
        )
        if operation.line is NO_LINE:
            self._way.unreachable(operation, peer.incarnation, None)
            return completion
        self._way.reserve(operation, encoded, payload)
        if operation.concluded:
            return completion
        if after is None or after._ended:
            if after is not None and after._failure is not None:
                operation.send_status = status_of_failure(after._failure.error)
            self._way.start(operation)
            return completion
        self._table.add(operation)
        operation.line.call(operation)
        self._way.link(operation, after, negative=True)
        return completion

    # ---- order and room

    def fence(self, peer: Peer) -> None:
        """Later operations start after earlier ones are delivered."""
        life = self._life
        if self._current() is not life.home:
            raise life.refusal(self._current())
        self._check_connected(peer)
        peer._line.fence()

    async def flush(self, peer: Peer | None) -> None:
        """Every operation called before is delivered."""
        runtime = self._runtime
        runtime.check()
        if peer is not None:
            self._check_peer(peer)
            if peer._state is not PeerState.CONNECTED:
                raise await runtime.lookout.explain(peer)
        peers = list(runtime.control.connected()) if peer is None else [peer]
        pending = [
            found
            for one in peers
            if (found := one._line.flush(lambda: Gate(runtime.bridge.wake))) is not None
        ]
        for gate, _ in pending:
            await runtime.wait_gate(gate)
        await runtime.breathe()
        for _, epoch in pending:
            if epoch.failure is not None:
                raise epoch.failure.with_traceback(None)

    async def wait_capacity(self, peer: Peer) -> None:
        """One more operation may wait in the line."""
        runtime = self._runtime
        runtime.check()
        self._check_peer(peer)
        await runtime.breathe()  # before we look: what is found must still hold when the caller goes on
        runtime.check()
        line = peer._line
        while not line.has_room():
            gate = Gate(runtime.bridge.wake)
            line.want_room(gate)
            try:
                await runtime.wait_gate(gate)
            except BaseException:
                line.drop_room(gate)
                raise
            runtime.check()
            if line.down:
                break
            # If we do not use the room, the next one may.
            runtime.bridge.call_soon(line.offer_room)
        if peer._state is not PeerState.CONNECTED:
            raise await runtime.lookout.explain(peer)

    # ---- small checks

    def _seconds(self, timeout: Timeout) -> float | None:
        if timeout is DEFAULT:
            return self._runtime.options.transfer_timeout
        if timeout is None:
            return None
        return check_seconds("timeout", timeout)

    def _check_peer(self, peer: object) -> None:
        if not isinstance(peer, Peer) or peer._runtime is not self._runtime:
            raise InvalidArgumentError(argument="peer", value=repr(peer), expected="a peer of this engine")

    def _check_connected(self, peer: Peer) -> None:
        self._check_peer(peer)
        if peer._state is not PeerState.CONNECTED:
            raise self._runtime.control.why_unreachable(peer.incarnation, None)[0]


def _region_unusable(view: LocalView, where: str = "") -> HixlAioError:
    record = view._record
    if record.owner is None:
        return ClosedError(where, what=f"{named_region(record.label)} of {record.nbytes} bytes")
    expected = "a region of this engine"
    hint = "Register the buffer with the engine that transfers it."
    return InvalidArgumentError(
        where, argument="region", value=repr(view.region), expected=expected, hint=hint
    )
