"""Peers: connecting, accepting, losing and closing them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hixl_aio._accepting import Reception
from hixl_aio._bridge.base import weightier
from hixl_aio._checks import check_seconds, check_text
from hixl_aio._core.credits import PeerLine
from hixl_aio._core.gate import Gate
from hixl_aio._failures import About, from_status, status_of
from hixl_aio._log import log
from hixl_aio._native import PEER_CONNECTED, PEER_SUSPECT
from hixl_aio._requests import Request
from hixl_aio._status import Status
from hixl_aio.errors import (
    ClosedError,
    ConnectTimeoutError,
    HixlAioError,
    InternalError,
    NotRegisteredError,
    PeerError,
    PeerLostError,
    PeerNotConnectedError,
    PeerRestartedError,
    StaleRegionError,
)
from hixl_aio.memory import MemoryKind, RemoteRegion
from hixl_aio.options import Access
from hixl_aio.peer import Peer, PeerState

if TYPE_CHECKING:
    from hixl_aio._records import EventTuple, PeerTuple
    from hixl_aio._runtime import Runtime

__all__ = ("ControlPlane",)

_REMEMBERED: Final = 1024  # peers that are gone, for better messages
_STANDING: Final = (PEER_CONNECTED, PEER_SUSPECT)  # as native code says it


class ControlPlane:
    """Who we are connected to."""

    __slots__ = (
        "_closing",
        "_connecting",
        "_gone",
        "_runtime",
        "_unclaimed",
        "by_incarnation",
        "numbers",
        "peers",
        "peers_view",
        "reception",
    )

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.by_incarnation: dict[str, Peer] = {}  # connected ones: the hot path looks here
        self.peers: dict[str, Peer] = {}
        self.peers_view: Mapping[str, Peer] = MappingProxyType(self.peers)
        self.numbers: dict[int, Peer] = {}  # by what native code calls them
        self._gone: OrderedDict[str, Peer] = OrderedDict()
        self._closing: dict[int, Gate] = {}
        self._connecting = 0  # calls
        self._unclaimed: list[Peer] = []  # connected for calls that have gone
        self.reception = Reception(runtime)

    # ---- look-ups

    def by_number(self, number: int) -> Peer | None:
        """The peer under which native code knows that number."""
        return self.numbers.get(number) or self._learn(number)

    def has_peers(self) -> bool:
        """Is there anybody who may reach our memory?"""
        return bool(self.numbers)

    def connected(self) -> Iterator[Peer]:
        """All connected peers."""
        return iter(list(self.by_incarnation.values()))

    def peer_info(self, number: int) -> PeerTuple | None:
        """What native code knows of a peer."""
        return self._runtime.native.peer_info(number) if self._runtime.is_open else None

    def is_suspect(self, number: int) -> bool:
        """Its process is alive and stopped."""
        info = self.peer_info(number)
        return info is not None and info[4] == PEER_SUSPECT

    def find_region(self, peer: Peer, label: str) -> RemoteRegion:
        """A peer's region by its label."""
        self._runtime.check()
        if peer._state is not PeerState.CONNECTED:
            raise self.why_unreachable(peer.incarnation, None)[0]
        info = self._runtime.native.find_region(peer._id, label)
        if info is None:
            known = self._runtime.native.peer_info(peer._id)
            if known is None or known[4] not in _STANDING:  # it is down, and the event is on its way
                raise PeerLostError(peer=peer.address, status=Status.PEER_LOST)
            raise NotRegisteredError(label=label, peer=peer.address)
        number, generation, nbytes, _, kind, access, found = info
        return RemoteRegion(
            peer.incarnation, number, generation, nbytes, MemoryKind(kind), Access(access), found
        )

    def gone(self, incarnation: str) -> Peer | None:
        """The peer that had that life, if it is remembered."""
        return self._gone.get(incarnation)

    def why_unreachable(self, incarnation: str, target: RemoteRegion | None) -> tuple[HixlAioError, bool]:
        """Why there is no connection to that life of an engine, and whether that is the world's doing."""
        peer = self._gone.get(incarnation)
        if peer is None:
            detail = f"no connected peer has incarnation {incarnation}"
            return PeerNotConnectedError(detail), False
        successor = self.peers.get(peer.address)
        if successor is not None and successor._wanted:
            if target is None:
                detail = "this Peer stands for an earlier life; use the one that connect() returned since"
                return PeerNotConnectedError(detail, peer=peer.address), False
            detail = (
                f"peer {peer.address} is at incarnation {successor.incarnation} now, it was {incarnation}"
            )
            return StaleRegionError(detail, label=target.label, generation=target.generation), False
        if successor is not None or peer._state is PeerState.LOST or peer._broken:
            return self.why_lost(peer), True
        return PeerNotConnectedError("we closed the connection", peer=peer.address), False

    def why_lost(self, peer: Peer) -> PeerError:
        """It died; and somebody else lives at its address, if we know of that."""
        successor = self.peers.get(peer.address)
        incarnation = peer._successor if successor is None else successor.incarnation
        if not incarnation:
            text = peer._down_text or peer._broken
            return PeerLostError(text, peer=peer.address, status=peer._down_status)
        detail = f"it was incarnation {peer.incarnation}, {incarnation} lives there now"
        return PeerRestartedError(detail, peer=peer.address, status=Status.PEER_LOST)

    # ---- connecting

    async def connect(self, address: str, timeout: float) -> Peer:  # noqa: ASYNC109
        """Connect, or give what is there."""
        runtime = self._runtime
        runtime.check()
        check_text("address", address, "host:port or unix:NAME")
        timeout = check_seconds("timeout", timeout, positive=True)
        known = self.peers.get(address)
        if known is not None and self._stands(known):
            known._wanted = True
            await runtime.checkpoint_where_due()
            return known
        if known is not None:
            timeout = await self._wait_for_its_end(known, timeout)
        # Each call asks for itself, with its own time; native code makes one connection of them.
        about = About(peer=address, argument="address", value=address, expected="host:port or unix:NAME")
        request = runtime.requests.begin(lambda token: runtime.native.connect(token, address, timeout), about)
        self._connecting += 1
        try:
            # Native code says more about why, so its own clock goes first.
            if not await runtime.wait_gate_for(request.gate, timeout + 0.25):
                raise ConnectTimeoutError(peer=address, status=Status.TIMED_OUT)
            return self._answer(address, request)
        finally:
            self._connecting -= 1
            runtime.requests.disown(request, self._unwanted)
            self._drop_unwanted()

    def _stands(self, peer: Peer) -> bool:
        info = self.peer_info(peer._id)
        return info is not None and info[4] in _STANDING and not peer._line.broken

    async def _wait_for_its_end(self, peer: Peer, seconds: float) -> float:
        """A peer is down, and the news is on its way. Returns the seconds that are left."""
        runtime = self._runtime
        begun = monotonic()
        if peer._end is None:
            peer._end = Gate(runtime.bridge.wake)
        if not await runtime.wait_gate_for(peer._end, seconds):
            raise ConnectTimeoutError(peer=peer.address, status=Status.TIMED_OUT)
        runtime.check()
        return max(0.001, seconds - (monotonic() - begun))

    def _answer(self, address: str, request: Request) -> Peer:
        if request.failure is not None:
            raise request.failure
        if request.event is None:
            raise InternalError(f"connecting to {address} was answered without an event")
        _, _, number, code, text, _ = request.event
        if code:
            raise from_status(
                code, text, About(peer=address, argument="address", value=address, expected="valid")
            )
        peer = self.numbers.get(number)  # the event has made it known, and it may be gone since
        if peer is None or peer._state is not PeerState.CONNECTED:
            raise PeerLostError(peer=address, status=Status.PEER_LOST)
        peer._wanted = True
        return peer

    def _unwanted(self, event: EventTuple) -> None:
        """A connect whose callers have gone was answered: no half-peer may stay."""
        _, _, number, code, _, _ = event
        peer = None if code else self.numbers.get(number)
        if peer is None or peer._wanted or peer._was_accepted or not self._runtime.is_open:
            return
        self._unclaimed.append(peer)
        self._drop_unwanted()

    def _drop_unwanted(self) -> None:
        """Not while anybody connects: the same connection may be the answer to that call, by whatever name it
        asked for the peer.
        """
        if self._connecting:
            return
        unclaimed, self._unclaimed = self._unclaimed, []
        for peer in unclaimed:
            is_claimed = peer._wanted or peer._was_accepted or peer._state is not PeerState.CONNECTED
            if not is_claimed and self._runtime.is_open:
                self._begin_disconnect(peer, abort=False)

    def _learn(self, number: int) -> Peer | None:
        """Native code speaks of a peer for the first time."""
        runtime = self._runtime
        info = runtime.native.peer_info(number)
        if info is None:
            return None
        options = runtime.options
        line = PeerLine(
            number,
            info[1],
            runtime.ops.post_waiting,
            credits=options.credits_per_peer,
            capacity=options.line_capacity,
            later=runtime.call_soon,
        )
        peer = Peer(runtime, number, info, line)
        self.numbers[number] = peer
        self.by_incarnation[peer.incarnation] = peer
        self.peers[peer.address] = peer
        self._gone.pop(peer.incarnation, None)
        log("info", "peer connected", peer=peer.address, name=peer.name, incarnation=peer.incarnation)
        return peer

    # ---- events

    def on_connected(self, number: int) -> None:
        """A connect of ours has succeeded."""
        self.by_number(number)

    def on_accepted(self, number: int) -> None:
        """A peer has connected to us."""
        peer = self.by_number(number)
        if peer is None:
            return
        peer._was_accepted = True
        self.reception.arrive(peer)

    def on_down(self, number: int, code: int, text: str) -> None:
        """A peer is gone; all its records and signals have come before."""
        peer = self.numbers.get(number)
        self._runtime.native.forget_peer(number)
        if peer is None or peer._state in (PeerState.LOST, PeerState.CLOSED):
            return
        status = status_of(code)
        if peer._broken:
            status, text = Status.PEER_LOST, peer._broken
        ours = (peer._state is PeerState.CLOSING and not peer._broken) or self._runtime.closing
        if not ours:
            level, event = ("warning", "peer lost") if status is Status.PEER_LOST else ("info", "peer left")
            log(level, event, peer=peer.address, status=status.name.lower(), detail=text)
        self._retire(peer, PeerState.CLOSED if ours else PeerState.LOST, status, text)

    def _retire(self, peer: Peer, state: PeerState, status: Status, text: str = "") -> None:
        runtime = self._runtime
        peer._state = state
        peer._down_status = status if status is not Status.OK else Status.PEER_CLOSED
        peer._down_text = text
        self._withdraw(peer)
        self._gone[peer.incarnation] = peer
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)
        self.reception.forget(peer)
        peer._line.take_down()
        error: HixlAioError = PeerLostError(text, peer=peer.address, status=peer._down_status)
        if state is PeerState.CLOSED:
            error = ClosedError(what=f"peer {peer.address}")
        runtime.ops.fail_all(peer._line, error, peer._down_status)
        runtime.mail.peer_gone(peer)
        self.numbers.pop(peer._id, None)
        for gate in (self._closing.pop(peer._id, None), peer._end):
            if gate is not None:
                gate.open()

    def _withdraw(self, peer: Peer) -> None:
        """No new operation finds it."""
        if self.by_incarnation.get(peer.incarnation) is peer:
            del self.by_incarnation[peer.incarnation]
        if self.peers.get(peer.address) is peer:
            del self.peers[peer.address]

    # ---- refreshing, closing

    async def refresh(self, peer: Peer) -> None:
        """Learn of new regions."""
        runtime = self._runtime
        runtime.check()
        if peer._state is not PeerState.CONNECTED:
            raise await runtime.lookout.explain(peer)
        about = About(peer=peer.address)
        event = await runtime.requests.ask(
            lambda token: runtime.native.refresh(token, peer._id), lambda _: None, about
        )
        if event[3]:
            raise from_status(event[3], event[4], about)

    async def close_peer(self, peer: Peer, *, abort: bool) -> None:
        """End the connection, after what is under way or in the middle of it."""
        runtime = self._runtime
        if peer._state in (PeerState.LOST, PeerState.CLOSED):
            await runtime.checkpoint_where_due()
            return
        runtime.check()
        first: BaseException | None = None
        if peer._state is PeerState.CONNECTED:
            peer._state = PeerState.CLOSING
            self._withdraw(peer)
            self._gone[peer.incarnation] = peer
        if not abort and peer._id not in self._closing:  # whoever else closes it
            pending = peer._line.flush(lambda: Gate(runtime.bridge.wake))
            if pending is not None:
                _, first = await runtime.bridge.hold(pending[0], runtime.options.drain_timeout)
        if peer._id in self.numbers:
            gate = self._begin_disconnect(peer, abort=abort or bool(peer._line.inflight))
            _, cancelled = await runtime.bridge.hold(gate, runtime.options.cancel_grace)
            first = weightier(first, cancelled)
        if first is not None:
            raise first

    def _begin_disconnect(self, peer: Peer, *, abort: bool) -> Gate:
        runtime = self._runtime
        peer._state = PeerState.CLOSING
        self._withdraw(peer)
        gate = self._closing.get(peer._id)
        if gate is None:
            gate = self._closing[peer._id] = Gate(runtime.bridge.wake)
        elif not abort:
            return gate
        request = runtime.requests.begin(lambda token: runtime.native.disconnect(token, peer._id, abort))
        request.orphan = lambda event: self._disconnected(peer, event)
        return gate

    def _disconnected(self, peer: Peer, event: EventTuple) -> None:
        if peer._state in (PeerState.LOST, PeerState.CLOSED):
            return
        state, status = PeerState.CLOSED, Status.PEER_CLOSED
        if peer._broken:
            state, status = PeerState.LOST, Status.PEER_LOST
        self._retire(peer, state, status, peer._broken)

    def fail_link(self, peer: Peer, text: str) -> None:
        """The link to a peer has broken its promise: nothing that comes over it can be relied on."""
        if peer._state is PeerState.CONNECTED:
            log("error", "link failed", peer=peer.address, detail=text)
            peer._broken = text
            self._begin_disconnect(peer, abort=True)

    def abort_line(self, line: PeerLine, late: str) -> None:
        """A deadline is over, and the policy is to tear the links down. All whom that ends hear why."""
        peer = self.numbers.get(line.number)
        if peer is not None and peer._state in (PeerState.CONNECTED, PeerState.CLOSING):
            log("warning", "peer aborted after a timeout", peer=peer.address, detail=late)
            if peer._state is PeerState.CONNECTED:  # else the application has ended it
                peer._broken = f"{late}, and timeout_policy='abort' tore the links down"
            self._begin_disconnect(peer, abort=True)

    def why_broken(self, number: int) -> str:
        """What we tore the links of that peer down for; empty if we did not."""
        peer = self.numbers.get(number)
        return "" if peer is None else peer._broken

    # ---- the end

    def _ask_to_leave(self, peer: Peer) -> Request:
        native = self._runtime.native
        return self._runtime.requests.begin(lambda token: native.disconnect(token, peer._id, False))

    async def leave_all(self, seconds: float) -> BaseException | None:
        """Say good-bye to all peers, and give them time to let go of what they are doing here.

        Returns:
            The first cancellation.
        """
        runtime = self._runtime
        asked = [self._ask_to_leave(peer) for peer in self.numbers.values()]
        first: BaseException | None = None
        for request in asked:
            _, cancelled = await runtime.bridge.hold(request.gate, seconds)
            first = weightier(first, cancelled)
        return first

    def close(self) -> None:
        """The engine closes: nobody is accepted any more, nobody waits for room."""
        self.reception.close()
        for peer in self.numbers.values():
            peer._line.release_room()

    def forget_all(self) -> None:
        """The engine is closed: so are all its peers."""
        for peer in list(self.numbers.values()):
            self._retire(peer, PeerState.CLOSED, Status.PEER_CLOSED)
