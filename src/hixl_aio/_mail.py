"""Signals that come in: from native records to the tasks that wait for them.

A place in the peer's queue is given back when the application *takes* the signal, not when it is drained:
that is what makes a full queue an error at the sender.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from hixl_aio._core.inbox import Inbox, Taker
from hixl_aio._core.lifecycle import NOWHERE
from hixl_aio._failures import status_of
from hixl_aio.errors import (
    ClosedError,
    HixlAioError,
    InternalError,
    InvalidArgumentError,
    PeerLostError,
    SignalError,
)
from hixl_aio.peer import Peer, PeerState
from hixl_aio.signals import Signal, make_signal, received_name

if TYPE_CHECKING:
    from hixl_aio._bridge.base import Bridge
    from hixl_aio._records import SignalTuple
    from hixl_aio._runtime import Runtime

__all__ = ("MailRoom",)

_CONNECTED: Final = PeerState.CONNECTED


class MailRoom:
    """The one place that hands out signals."""

    __slots__ = ("_arrivals", "_learn", "_peers", "_runtime", "inbox")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._peers = runtime.control.numbers
        self._learn = runtime.control.by_number
        self._arrivals = 0
        self.inbox = Inbox(lambda _: None)  # nobody waits yet

    def open(self, bridge: Bridge) -> None:
        """Wake takers so."""
        self.inbox = Inbox(bridge.wake)

    def record(self, item: SignalTuple) -> None:
        """A signal was drained."""
        number, sequence, code, name, payload = item
        peer = self._peers.get(number) or self._learn(number)
        if peer is None:
            raise InternalError(f"a signal came from peer {number}, which is not known")
        if sequence != peer._last_sequence + 1:
            self._out_of_order(peer, sequence)
            return
        peer._last_sequence = sequence
        arrival = self._arrivals = self._arrivals + 1
        error = None
        if code:
            error = SignalError(name=name, peer=peer.address, status=status_of(code))
        self.inbox.deliver(make_signal(name, payload, peer, sequence, error, arrival, number))

    def _out_of_order(self, peer: Peer, sequence: int) -> None:
        """One that was taken before; or one of a link that cannot be relied on any more."""
        expected = peer._last_sequence + 1
        if sequence > expected and not peer._broken:
            last, lost = peer._last_sequence, sequence - expected
            text = f"signal {sequence} came after signal {last}: {lost} of its signals were lost"
            self._runtime.control.fail_link(peer, text)

    def wait_signal(self, name: str, peer: Peer | None) -> Coroutine[Any, Any, Signal]:
        """The next one of that name."""
        self._runtime.check()
        text = received_name(name)
        if peer is not None and (not isinstance(peer, Peer) or peer._runtime is not self._runtime):
            raise InvalidArgumentError(
                argument="peer", value=repr(peer), expected="a peer of this engine, or None"
            )
        return self._next(text, peer)

    def next_signal(self) -> Coroutine[Any, Any, Signal]:
        """The next one of any name that nobody waits for."""
        self._runtime.check()
        return self._next(None, None)

    async def _next(self, name: str | None, peer: Peer | None) -> Signal:
        runtime = self._runtime
        if runtime.is_out_of_breath():
            await runtime.checkpoint()  # before a signal is in hand: a cancellation here must not lose one
        source = None if peer is None else peer._id
        signal: Signal | None = self.inbox.take(name, source)
        if signal is None:
            if peer is not None and peer._state in (PeerState.LOST, PeerState.CLOSED):
                peer._line.loss_was_told = True
                raise self._gone(peer)
            taker = Taker(name, source, runtime.bridge.new_waiter())
            self.inbox.wait(taker)
            if runtime.spin:
                runtime.spinner.expect(runtime.spin)
            try:
                await runtime.bridge.park(taker.waiter)
            except BaseException:
                self.inbox.leave(taker)
                raise
            if taker.failure is not None:
                if peer is not None:
                    peer._line.loss_was_told = True
                raise taker.failure
            signal = taker.signal
        if signal.peer._state is _CONNECTED and runtime.life.home is not NOWHERE:
            runtime.native.signals_taken(signal.source, 1)
        return signal

    @staticmethod
    def _gone(peer: Peer) -> HixlAioError:
        if peer._state is PeerState.CLOSED:
            return ClosedError(what=f"peer {peer.address}")
        return PeerLostError(peer._down_text, peer=peer.address, status=peer._down_status)

    def peer_gone(self, peer: Peer) -> None:
        """Those who wait for this peer alone hear of it; what it has sent stays."""
        self.inbox.fail_source(peer._id, lambda: self._gone(peer))

    def close(self) -> None:
        """The engine closes."""
        name = self._runtime.name
        self.inbox.fail_all(lambda: ClosedError(what=f"engine {name}", state="closing"))
