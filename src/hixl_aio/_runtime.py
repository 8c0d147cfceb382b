"""What stands behind an Engine: joins `_core` (what is remembered) with `_bridge` (how tasks wait) and native
code.

The loop holds the runtime through the reader of the one descriptor, not the Engine; so an Engine that is
dropped warns, and what it started still ends.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from hixl_aio import _native
from hixl_aio._bridge.detect import detect_bridge
from hixl_aio._closing import close_engine
from hixl_aio._control import ControlPlane
from hixl_aio._core.lifecycle import NOWHERE, Lifecycle, LifeState
from hixl_aio._core.optable import OperationState
from hixl_aio._dataplane import DataPlane
from hixl_aio._failures import About, from_native
from hixl_aio._log import log, prepare, send_to_stderr
from hixl_aio._lookout import Lookout
from hixl_aio._mail import MailRoom
from hixl_aio._operations import Operations
from hixl_aio._regions import RegionBook
from hixl_aio._requests import Requests
from hixl_aio._spinning import Spinner
from hixl_aio.errors import ClosedError, InternalError
from hixl_aio.stats import Capabilities, EngineStatistics

if TYPE_CHECKING:
    from hixl_aio._bridge.base import Bridge
    from hixl_aio._core.gate import Gate
    from hixl_aio._core.optable import Operation
    from hixl_aio._faults import FaultListener
    from hixl_aio._native import NativeEngine
    from hixl_aio._records import EventTuple
    from hixl_aio.options import EngineOptions, Environment

__all__ = ("Runtime", "default_name")

_numbers: Final = itertools.count(1)


def default_name() -> str:
    """A name for an engine that was given none."""
    return f"engine-{os.getpid()}-{next(_numbers)}"


def _no_loop() -> object:
    return None


class Runtime:
    """The state of one engine."""

    __slots__ = (
        "__weakref__",
        "address",
        "backend",
        "bridge",
        "capabilities_found",
        "closing_gate",
        "control",
        "current",
        "data",
        "debug",
        "environment",
        "faults",
        "hurry",
        "incarnation",
        "life",
        "lookout",
        "mail",
        "native",
        "ops",
        "options",
        "pace",
        "regions",
        "requests",
        "spin",
        "spinner",
    )

    bridge: Bridge
    native: NativeEngine

    def __init__(self, name: str, options: EngineOptions, environment: Environment) -> None:
        self.life = Lifecycle(name)
        self.options = options
        self.environment = environment
        self.debug = environment.debug
        self.backend = "host"
        self.address = ""
        self.incarnation = ""
        self.pace = _native.Pace(1, 1)  # the bridge says how much
        self.current: Callable[[], object] = _no_loop
        self.capabilities_found: Capabilities | None = None
        self.ops = Operations(self)
        self.control = ControlPlane(self)
        self.regions = RegionBook(self)
        self.requests = Requests(self)
        self.lookout = Lookout(self)
        self.mail = MailRoom(self)
        self.spin = options.spin
        self.spinner = Spinner(self)
        self.data = DataPlane(self)
        self.closing_gate: Gate | None = None
        self.hurry: Gate | None = None  # while it closes: opens when the drain is to end
        self.faults: FaultListener | None = None  # set before it opens, by hixl_aio.testing

    # ---- life

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.life.name

    @property
    def is_open(self) -> bool:
        """Calls are right, on its loop."""
        return self.life.home is not NOWHERE

    @property
    def closing(self) -> bool:
        """It is being closed."""
        return self.life.state is LifeState.CLOSING

    def check(self) -> None:
        """Refuse a call on the wrong loop, or at the wrong time."""
        current = self.current()
        if current is not self.life.home:
            raise self.life.refusal(current)

    @property
    def is_forked(self) -> bool:
        """This process is a child of the one that opened it."""
        return self.life.is_forked

    def check_process(self) -> None:
        """Refuse a call in a forked child."""
        if self.life.is_forked:
            raise self.life.refusal(None)

    def check_loop(self) -> None:
        """Refuse a call on another loop or thread, also when the engine is closed."""
        self.check_process()
        current = self.current()
        if current is not self.life.owner:
            raise self.life.elsewhere(current)

    async def open(self, address: str) -> None:
        """Start native code and listen to its descriptor, on the running loop."""
        bridge = detect_bridge()
        if not bridge.free_awaits:
            await bridge.checkpoint()  # while there is nothing yet that a cancellation could leave behind
        self._open(address, bridge)

    def _open(self, address: str, bridge: Bridge) -> None:
        life = self.life
        if life.state is not LifeState.NEW:
            hint = "An engine opens once; make a new one."
            raise ClosedError(what=f"engine {self.name}", state=f"{life.state.value} already", hint=hint)
        self.bridge = bridge
        self.pace = _native.Pace(bridge.free_awaits, bridge.free_nbytes)
        self.debug = self.environment.debug or self.bridge.debug
        if self.environment.log is not None:
            send_to_stderr(self.environment.log)
        prepare()
        life.advance(LifeState.OPENING)
        life.owner, life.pid = self.bridge.home, os.getpid()
        native: NativeEngine | None = None
        try:
            native = self._make_native()
            if self.faults is not None and native.faults is not None:
                self.faults.attach(self, native.faults)
            self.address = native.start(address)
        except _native.NativeError as error:
            self._abandon_start(native)
            about = About(
                argument="address",
                value=address,
                expected="host:port, [v6]:port or unix:NAME",
                feature=f"address {address!r}",
            )
            raise from_native(error, about) from None
        except BaseException:
            self._abandon_start(native)
            raise
        self.native = native
        self.incarnation = native.incarnation
        self.capabilities_found = Capabilities.from_native(native.capabilities)
        self.current = self.bridge.current
        self.data.open(native)
        self.mail.open(self.bridge)
        self.bridge.watch(native.fileno(), self.on_readable)
        life.advance(LifeState.OPEN)
        _remember_for_fork(self)
        log("info", "engine opened", name=self.name, address=self.address, incarnation=self.incarnation)

    def _abandon_start(self, native: NativeEngine | None) -> None:
        self.life.advance(LifeState.CLOSED)
        if self.faults is not None:
            self.faults.detach()
        if native is not None:
            native.close()  # now: the traceback of what is raised holds a reference

    def _make_native(self) -> NativeEngine:
        options = self.options
        return _native.NativeEngine(
            self.name,
            links=options.links,
            copy_threads=options.copy_threads or 1,
            chunk_nbytes=options.chunk_nbytes,
            inline_nbytes=options.inline_nbytes,
            stream_nbytes=options.stream_nbytes,
            max_operations=options.max_operations,
            max_regions=options.max_regions,
            signal_capacity=options.signal_capacity,
            allow_ptrace=options.allow_ptrace,
            huge_pages=options.huge_pages,
            populate=options.populate,
            faults=None if self.faults is None else self.faults.settings,
        )

    async def close(self, drain_timeout: float | None) -> None:
        """End everything; see `_closing`."""
        await close_engine(self, drain_timeout)

    def forked(self) -> None:
        """We are in a forked child: close descriptors, touch no loop, refuse everything."""
        if self.life.is_live:
            self.life.advance(LifeState.FORKED)
            self.native.abandon_after_fork()

    def __del__(self) -> None:
        # Dropped without aclose(). Native threads may be copying: they must be gone before the collector
        # takes the buffers, and finalizers run before anything of a cycle is cleared. The join does not hold
        # the GIL.
        if self.life.is_live:
            self.native.close()

    # ---- the way up

    def on_readable(self) -> None:
        """The descriptor is readable: a hint (INV-8). Native code re-arms, and rings if some is left."""
        self.pace.rest()
        if self.life.is_live:
            self.drain()

    def drain_all(self) -> None:
        """Take everything that is there now: for moments when what has ended must be known."""
        turns = len(self.ops.table) // self.options.drain_limit + 1
        while turns and self.drain():
            turns -= 1

    def drain(self) -> bool:
        """Take what is there, at most `drain_limit` of each kind; True if some is left."""
        completions, signals, events, is_left = self.native.drain(self.options.drain_limit)
        if self.spin and (completions or signals):
            self.spinner.rest()
        if completions:
            self._each(self.ops.record, completions)
        if signals:
            self._each(self.mail.record, signals)
        if events:
            self._each(self.on_event, events)
        self.ops.resume_stalled()
        return is_left

    def _each(self, handler: Callable[[Any], None], items: list[Any]) -> None:
        """One bad record must not take the others with it (INV-1)."""
        for item in items:
            try:
                handler(item)
            except Exception as error:
                self.bridge.report(f"engine {self.name} could not handle a native record", error)

    def on_event(self, event: EventTuple) -> None:
        """News of the control plane."""
        kind, token, number, code, text, _ = event
        if kind == _native.EVENT_CONNECTED and not code:
            self.control.on_connected(number)
        elif kind == _native.EVENT_ACCEPTED:
            self.control.on_accepted(number)
        elif kind == _native.EVENT_PEER_DOWN:
            self.control.on_down(number, code, text)
        elif kind == _native.EVENT_FAULT and self.faults is not None:
            self.faults.on_caught(number)
        if token and not self.requests.answer(event):
            raise InternalError(f"an event of kind {kind} came for token {token}, which asked nothing")

    # ---- waiting

    async def wait_gate(self, gate: Gate) -> None:
        """A plain, cancellable wait."""
        waiter = self.bridge.new_waiter()
        if not gate.add(waiter):
            return
        try:
            await self.bridge.park(waiter)
        finally:
            gate.discard(waiter)

    async def wait_gate_for(self, gate: Gate, seconds: float) -> bool:
        """A cancellable wait with a limit; True if the gate is open."""
        waiter = self.bridge.new_waiter()
        if not gate.add(waiter):
            return True
        try:
            await self.bridge.park_for(waiter, seconds)
        finally:
            gate.discard(waiter)
        return gate.is_open

    def is_out_of_breath(self) -> bool:
        """Is a checkpoint due? For calls that often need not wait: others must run once in a while."""
        return not self.pace.step()

    async def breathe(self) -> None:
        """Let others run, once in a while."""
        if self.is_out_of_breath():
            await self.checkpoint()

    async def checkpoint_where_due(self) -> None:
        """For calls that end at once: nothing on asyncio, a checkpoint where every await has to be one."""
        if not self.pace.free_awaits:
            await self.bridge.checkpoint()

    async def checkpoint(self) -> None:
        """Let others run, now."""
        self.pace.rest()
        await self.bridge.checkpoint()

    def call_soon(self, fn: Callable[..., object], *args: object, context: Context | None = None) -> None:
        """Call in the next turn of our loop."""
        self.bridge.call_soon(fn, *args, context=context)

    def request_stop(self, operation: Operation) -> None:
        """Ask for a stop."""
        self.ops.request_stop(operation)

    def abandon(self, operation: Operation) -> None:
        """Nobody waits any more."""
        self.ops.abandon(operation)

    # ---- looking

    @property
    def capabilities(self) -> Capabilities:
        """What the backend can do."""
        if self.capabilities_found is None:
            raise self.life.refusal(self.current())
        return self.capabilities_found

    def statistics(self) -> EngineStatistics:
        """A snapshot."""
        self.check_process()
        table = self.ops.table
        counts, nbytes = table.totals.counts, table.totals.nbytes
        state = OperationState
        done_now, done_now_nbytes = self.data.done_now()
        inlined, inlined_nbytes = table.inline_count + done_now, table.inline_nbytes + done_now_nbytes
        native = self.native.counters() if self.life.is_live else {}
        return EngineStatistics(
            waiting=counts[state.WAITING],
            waiting_nbytes=nbytes[state.WAITING],
            posted=counts[state.POSTED],
            posted_nbytes=nbytes[state.POSTED],
            abandoned=counts[state.ABANDONED],
            abandoned_nbytes=nbytes[state.ABANDONED],
            quarantined=counts[state.QUARANTINED],
            quarantined_nbytes=nbytes[state.QUARANTINED],
            settled=counts[state.SETTLED] + inlined,
            settled_nbytes=nbytes[state.SETTLED] + inlined_nbytes,
            inlined=inlined,
            spins=self.spinner.turns,
            unread_signals=self.mail.inbox.unread,
            peers=len(self.control.peers),
            regions=len(self.regions.records),
            busy_regions=sum(1 for record in self.regions.records.values() if record.pins),
            native=native,
        )


# ---- fork

_open_runtimes: Final[weakref.WeakSet[Runtime]] = weakref.WeakSet()
_fork_hook: Final[list[bool]] = []


def _after_fork_in_child() -> None:
    for runtime in list(_open_runtimes):
        runtime.forked()


def _remember_for_fork(runtime: Runtime) -> None:
    if not _fork_hook:
        _fork_hook.append(True)
        os.register_at_fork(after_in_child=_after_fork_in_child)
    _open_runtimes.add(runtime)
