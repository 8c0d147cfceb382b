"""A plan of faults: what an engine's transport shall do wrong, and when.

The transport underneath is the real one: bytes really move, or really do not. Rules are matched in the order
of the calls, so a test decides which operation is hit, and steps the rest: it holds, looks, releases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from hixl_aio._checks import check_seconds
from hixl_aio._core.gate import Gate
from hixl_aio._status import Status
from hixl_aio.engine import Engine
from hixl_aio.errors import ClosedError, InvalidArgumentError
from hixl_aio.peer import Peer
from hixl_aio.testing._rules import HoldPoint, Which, WhichOne, make_rule

if TYPE_CHECKING:
    from hixl_aio._native import NativeFaults
    from hixl_aio._runtime import Runtime

__all__ = ("Fault", "FaultPlan", "Hold", "HoldPoint")

F = TypeVar("F", bound="Fault")


class Fault:
    """One rule of a plan. Made by the methods of `FaultPlan`."""

    __slots__ = ("_number", "_plan", "_rule")

    def __init__(self, plan: FaultPlan, rule: tuple[Any, ...]) -> None:
        self._plan = plan
        self._rule = rule
        self._number = 0  # once the engine is open

    def _attach(self, native: NativeFaults) -> None:
        self._number = native.add_rule(*self._rule)

    @property
    def hits(self) -> int:
        """How many operations or signals it has picked so far."""
        native = self._plan._reach()
        return 0 if native is None else native.hits(self._number)

    def remove(self) -> None:
        """Pick no more. What it holds stays held."""
        self._plan._remove(self)


class Hold(Fault):
    """A rule that keeps operations until they are released."""

    __slots__ = ("_gates",)

    def __init__(self, plan: FaultPlan, rule: tuple[Any, ...]) -> None:
        super().__init__(plan, rule)
        self._gates: list[Gate] = []

    @property
    def caught(self) -> int:
        """How many it holds now."""
        native = self._plan._reach()
        return 0 if native is None else native.caught(self._number)

    async def wait_caught(self, count: int = 1) -> None:
        """Wait until it holds so many.

        Cancellation: ends the wait.

        Raises:
            ClosedError: the engine was closed, or is not open yet.
        """
        await self._plan._checkpoint()
        while self.caught < count:
            runtime = self._plan._runtime
            if runtime is None or self._plan._native is None:
                raise ClosedError(what="the engine of the fault plan")
            gate = Gate(runtime.bridge.wake)
            self._gates.append(gate)
            await runtime.wait_gate(gate)

    def release(self, index: int | None = None) -> int:
        """Let operations go on: all that it holds, or the one at `index` in the order in which they were
        caught.

        Returns:
            How many.
        """
        native = self._plan._reach()
        return 0 if native is None else native.release(self._number, -1 if index is None else index)

    def _wake(self) -> None:
        gates, self._gates = self._gates, []
        for gate in gates:
            gate.open()


class FaultPlan:
    """Makes the transport of one engine fail on demand, over any kind of link.

    ::

        plan = FaultPlan()
        async with plan.engine() as engine:
            ...
            held = plan.hold(at="half")
            op = engine.put(source, target)
            await held.wait_caught()
            op.cancel()

    Rules are matched when an operation is called, oldest rule first; one operation is picked by one rule.
    `skip` lets so many pass first ("fail the third": skip=2), `count` is how many are picked then, None for
    all. `kind`, `peer` and `min_nbytes` say which are considered: see `Which`. Bare signals are only with
    `kind=OperationKind.SIGNAL`. An operation that moves no bytes does not pass the transport, so no rule
    sees it.

    While a rule for operations may still pick something, or the link is throttled, nothing is copied within
    the call.

    Args:
        clock: "real", or "manual": delays and throttled links go on only by `advance`.
        can_stop: False: a transport that cannot stop what it has been given, as HIXL.
        lossy_signals: True: a transport that promises nothing of its signals, as HIXL, under the layer that
            sends lost ones again and drops repeated ones. The rules for arriving signals then hit what is
            below that layer, acknowledgements too, and `engine.wait_signal` shall notice nothing. Both ends
            of a connection must be made that way. A bound signal is sent when its operation has passed this
            plan, so it has not been sent yet where an operation is held at "signalled".
    """

    __slots__ = ("_before", "_faults", "_gates", "_lossy", "_manual", "_native", "_runtime", "_stoppable")

    def __init__(
        self,
        *,
        clock: Literal["real", "manual"] = "real",
        can_stop: bool = True,
        lossy_signals: bool = False,
    ) -> None:
        if clock not in ("real", "manual"):
            raise InvalidArgumentError(argument="clock", value=clock, expected="'real' or 'manual'")
        self._manual = clock == "manual"
        self._stoppable = can_stop
        self._lossy = lossy_signals
        self._native: NativeFaults | None = None
        self._runtime: Runtime | None = None
        self._faults: list[Fault] = []
        self._before: list[Callable[[NativeFaults], object]] = []  # said before the engine opened
        self._gates: list[Gate] = []

    def engine(self, address: str = "127.0.0.1:0", **arguments: Any) -> Engine:
        """The engine that this plan spoils. A plan has one at a time, and its rules end with it.

        Args:
            address: as for `Engine`.
            arguments: as for `Engine`.

        Raises:
            InvalidArgumentError: this plan has an engine already, or as for `Engine`.
        """
        if self._native is not None and self._runtime is not None:
            raise InvalidArgumentError(
                argument="plan", value=self._runtime.name, expected="a plan without an open engine"
            )
        engine = Engine(address, **arguments)
        if self._runtime is not None:
            self._runtime.faults = None  # that one was never opened
        self._runtime = engine._runtime
        engine._runtime.faults = self
        return engine

    # ---- what happens to operations

    def hold(self, *, at: HoldPoint = "posted", can_stop: bool = True, **which: Unpack[Which]) -> Hold:
        """Keep operations at one point of their way until they are released.

        Asked to stop at "posted" or "half" they end as stopped; later there is nothing left to stop.

        Args:
            at: where.
            can_stop: False: they do not end when they are asked to.
            which: of which operations, see `Which`.
        """
        hold = Hold(self, make_rule("hold", which, at=at, can_stop=can_stop))
        return self._add(hold)

    def delay(self, seconds: float, **which: Unpack[Which]) -> Hold:
        """Begin operations so many seconds after their call, by the plan's clock."""
        seconds = check_seconds("seconds", seconds)
        return self._add(Hold(self, make_rule("delay", which, seconds=seconds)))

    def fail(
        self, status: Status = Status.FAILED, *, quiescent: bool = True, **which: Unpack[Which]
    ) -> Fault:
        """Report operations as failed; nothing of them moves, their signals go out in the negative form.

        Args:
            status: as what.
            quiescent: the record says that the transport has let go of the memory.
        """
        rule = make_rule("fail", which, status=status, quiescent=quiescent)
        return self._add(Fault(self, rule))

    def lie(self, **which: Unpack[Which]) -> Hold:
        """Report operations as failed, while their bytes are still to come: they land when released.

        This is what a network card may do after a timeout. The memory is quarantined; after the link has been
        torn down nothing lands any more.
        """
        return self._add(Hold(self, make_rule("lie", which)))

    def lose(self, **which: Unpack[Which]) -> Hold:
        """Let the bytes land and keep the completion: until released, or until the link is torn down."""
        return self._add(Hold(self, make_rule("lose", which)))

    def duplicate(self, **which: Unpack[Which]) -> Fault:
        """Report completions twice."""
        return self._add(Fault(self, make_rule("duplicate", which)))

    def reorder(self, window: int, **which: Unpack[WhichOne]) -> Hold:
        """Collect `window` operations, then carry them out in reverse."""
        if not isinstance(window, int) or not 2 <= window <= 1 << 16:
            raise InvalidArgumentError(argument="window", value=window, expected="an integer from 2 to 65536")
        return self._add(Hold(self, make_rule("reorder", Which(count=window, **which), window=window)))

    def refuse(self, status: Status = Status.RESOURCE_EXHAUSTED, **which: Unpack[Which]) -> Fault:
        """Refuse operations when they are handed to the transport.

        Args:
            status: `RESOURCE_EXHAUSTED`: the call raises. `QUEUE_FULL`: no room just now; the operation waits
                in line. `FAILED`, `PEER_LOST`: the Completion says so.
        """
        return self._add(Fault(self, make_rule("refuse", which, status=status)))

    def latch(self, **which: Unpack[WhichOne]) -> Fault:
        """Break a link for good: one operation fails, and every later one to the same peer, until the
        connection is made anew. Nobody knows whether the transport has let go of their memory."""
        return self._add(Fault(self, make_rule("latch", Which(count=1, **which))))

    # ---- what happens to signals that arrive at this engine

    def drop_signal(
        self, name: str = "", *, peer: Peer | None = None, skip: int = 0, count: int | None = 1
    ) -> Fault:
        """Lose arriving signals.

        Args:
            name: of which name; empty: any.
            peer: from whom; None: from anybody.
            skip: let so many pass first.
            count: pick so many; None: all.
        """
        return self._add(
            Fault(self, make_rule("drop_signal", Which(peer=peer, skip=skip, count=count), signal=name))
        )

    def duplicate_signal(
        self, name: str = "", *, peer: Peer | None = None, skip: int = 0, count: int | None = 1
    ) -> Fault:
        """Give arriving signals twice."""
        return self._add(
            Fault(self, make_rule("duplicate_signal", Which(peer=peer, skip=skip, count=count), signal=name))
        )

    # ---- the link as a whole

    def throttle(self, nbytes_per_second: float | None, *, latency: float = 0.0) -> None:
        """Pace what this engine sends and gets: so many bytes a second to each peer, each operation and bare
        signal arriving `latency` seconds late. `peer.route` says so. None: as fast as it can.

        Args:
            nbytes_per_second: more than 0, or None.
            latency: in seconds.
        """
        rate = 0.0 if nbytes_per_second is None else float(nbytes_per_second)
        if nbytes_per_second is not None and not 0 < rate < float("inf"):
            raise InvalidArgumentError(
                argument="nbytes_per_second", value=nbytes_per_second, expected="more than 0, or None"
            )
        latency = check_seconds("latency", latency)
        self._say(lambda native: native.throttle(rate, latency))

    def advance(self, seconds: float) -> None:
        """Let time pass, with a manual clock."""
        if not self._manual:
            raise InvalidArgumentError(argument="clock", value="real", expected="'manual', to be advanced")
        seconds = check_seconds("seconds", seconds)
        self._say(lambda native: native.advance(seconds))

    def freeze(self, peer: Peer) -> None:
        """Let a peer stand still: what we ask of it waits, and its signals do not arrive."""
        self._say(lambda native: native.freeze(peer._id))

    def thaw(self, peer: Peer) -> None:
        """Let it go on."""
        self._say(lambda native: native.thaw(peer._id))

    def clear(self) -> None:
        """Remove all rules. What is held stays held, until its link ends."""
        self._faults.clear()
        self._say(lambda native: native.clear_rules())

    def release_all(self) -> None:
        """Let everything go on that rules hold."""
        for fault in self._faults:
            if isinstance(fault, Hold):
                fault.release()

    @property
    def pending(self) -> int:
        """Operations and signals that are in the hands of the plan."""
        native = self._reach()
        return 0 if native is None else native.pending()

    async def wait_pending(self, at_most: int = 0) -> None:
        """Wait until no more than so many are in its hands: what was released has ended, or has landed.

        Cancellation: ends the wait.
        """
        await self._checkpoint()
        while self._runtime is not None and self.pending > at_most:
            gate = Gate(self._runtime.bridge.wake)
            self._gates.append(gate)
            await self._runtime.wait_gate(gate)

    # ---- the engine's side (FaultListener)

    @property
    def settings(self) -> tuple[bool, bool, bool]:
        """For the engine."""
        return self._manual, self._stoppable, self._lossy

    def attach(self, runtime: Runtime, native: NativeFaults) -> None:
        """The engine opens."""
        self._runtime = runtime
        self._native = native
        for fault in self._faults:
            fault._attach(native)
        before, self._before = self._before, []
        for say in before:
            say(native)

    def on_caught(self, rule: int) -> None:
        """A rule has caught an operation, or what it released has landed."""
        self._wake()
        for fault in self._faults:
            if fault._number == rule and isinstance(fault, Hold):
                fault._wake()

    def detach(self) -> None:
        """The engine is closed."""
        self._native = None
        self._runtime = None
        self._wake()
        faults, self._faults = self._faults, []
        for fault in faults:
            if isinstance(fault, Hold):
                fault._wake()

    # ----

    def _reach(self) -> NativeFaults | None:
        """Native code, from where it may be reached: the engine's own loop and process."""
        if self._native is not None and self._runtime is not None:
            self._runtime.check_loop()
        return self._native

    def _add(self, fault: F) -> F:
        native = self._reach()
        self._faults.append(fault)
        if native is not None:
            fault._attach(native)
        return fault

    async def _checkpoint(self) -> None:
        if self._runtime is not None:
            await self._runtime.checkpoint_where_due()

    def _wake(self) -> None:
        gates, self._gates = self._gates, []
        for gate in gates:
            gate.open()

    def _remove(self, fault: Fault) -> None:
        native = self._reach()
        if native is not None:
            native.remove_rule(fault._number)
        elif fault in self._faults:
            self._faults.remove(fault)

    def _say(self, say: Callable[[NativeFaults], object]) -> None:
        native = self._reach()
        if native is None:
            self._before.append(say)
        else:
            say(native)
