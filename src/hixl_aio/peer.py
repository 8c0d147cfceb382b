"""A peer: another engine that we are connected to, whoever began."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hixl_aio._checks import check_text
from hixl_aio._status import Status
from hixl_aio.errors import InvalidArgumentError, StaleRegionError
from hixl_aio.memory import RemoteRegion

if TYPE_CHECKING:
    from hixl_aio._core.credits import PeerLine
    from hixl_aio._core.gate import Gate
    from hixl_aio._records import PeerTuple
    from hixl_aio._runtime import Runtime

__all__ = ("Link", "Peer", "PeerState")


class PeerState(enum.Enum):
    """How it stands with a peer."""

    CONNECTED = "connected"
    SUSPECT = "suspect"
    """Connected and alive, but its process is stopped (SIGSTOP, a debugger): nothing runs there. Bytes still
    arrive in its memory over shm and cma; over the cooperative link they wait until it goes on."""
    CLOSING = "closing"
    CLOSED = "closed"
    """We closed the connection."""
    LOST = "lost"
    """It died, closed the connection, or its link broke."""


@dataclass(frozen=True, slots=True)
class Link:
    """One path to a peer.

    Attributes:
        name: "inproc", "shm", "cma" or "cooperative".
        reason: why it is used, or why a better one is not.
    """

    name: str
    reason: str


class Peer:
    """One life of another engine. Comes from `Engine.connect`, `Engine.accept` or `Engine.peers`.

    Attributes:
        name: what the peer calls itself.
        address: where it listens.
        incarnation: which life of it this is (32 hex digits); after a restart it is another one (INV-9).
    """

    __slots__ = (
        "__weakref__",
        "_broken",
        "_down_status",
        "_down_text",
        "_end",
        "_id",
        "_last_sequence",
        "_line",
        "_route",
        "_runtime",
        "_state",
        "_successor",
        "_wanted",
        "_was_accepted",
        "address",
        "incarnation",
        "name",
    )

    name: str
    address: str
    incarnation: str

    def __init__(self, runtime: Runtime, number: int, info: PeerTuple, line: PeerLine) -> None:
        self._runtime = runtime
        self._id = number
        self._line = line
        self._state = PeerState.CONNECTED
        self._down_status = Status.OK
        self._down_text = ""
        self._end: Gate | None = None  # for calls that wait for the news that it is down
        self._successor = ""  # the incarnation that was found at its address after it died
        self._wanted = False  # a call has returned it to the application
        self._was_accepted = False  # the other side began
        self._last_sequence = 0  # of its signals
        self._broken = ""  # why we gave its links up, if we did: a promise broken, a deadline over
        self.name, self.address, self.incarnation = info[:3]
        self._route = _links(info)

    @property
    def state(self) -> PeerState:
        """How it stands with it, at this moment: it is looked at, not remembered (ten microseconds)."""
        if self._state is PeerState.CONNECTED and self._runtime.control.is_suspect(self._id):
            return PeerState.SUSPECT
        return self._state

    @property
    def inflight(self) -> int:
        """Operations posted to it and not reported yet."""
        return self._line.inflight

    @property
    def waiting(self) -> int:
        """Operations that wait for a credit, or for what they are `ready=` on."""
        return self._line.waiting

    @property
    def route(self) -> tuple[Link, ...]:
        """The links to it in order of preference, and why each is used or not."""
        self._runtime.check_process()
        if self._state is PeerState.CONNECTED:
            info = self._runtime.control.peer_info(self._id)
            if info is not None:
                self._route = _links(info)
        return self._route

    def region(self, label: str) -> RemoteRegion:
        """The peer's live region of that label.

        Raises:
            NotRegisteredError: it has none, as far as we know; `await peer.refresh()` asks again.
            PeerNotConnectedError: the connection is over.
        """
        check_text("label", label, "the label of a region, not empty")
        return self._runtime.control.find_region(self, label)

    def bind(self, region: RemoteRegion) -> RemoteRegion:
        """See that a descriptor that came by other means belongs to this life of this peer.

        Raises:
            StaleRegionError: it belongs to another life, or another engine.
            InvalidArgumentError: it is no RemoteRegion.
        """
        if not isinstance(region, RemoteRegion):
            expected = "a RemoteRegion; RemoteRegion.from_bytes reads one"
            raise InvalidArgumentError(argument="region", value=type(region).__name__, expected=expected)
        if region.incarnation != self.incarnation:
            raise StaleRegionError(
                f"it belongs to incarnation {region.incarnation}, peer {self.address} is {self.incarnation}",
                label=region.label,
                generation=region.generation,
                hint="Ask its owner for a new descriptor, or bind it to the peer that it belongs to.",
            )
        return region

    async def refresh(self) -> None:
        """Learn of regions that were registered after the connection was made.

        Completion means: `region` knows all that the peer had when it answered.

        Cancellation: ends the wait.

        Raises:
            PeerError: the connection is over.
        """
        await self._runtime.control.refresh(self)

    async def aclose(self) -> None:
        """Close the connection: operations under way may end first, for at most
        `EngineOptions.drain_timeout`.

        Completion means: none of our operations touches this peer's memory any more.

        Cancellation: the connection is closed all the same; then the cancellation is raised.
        """
        await self._runtime.control.close_peer(self, abort=False)

    async def abort(self) -> None:
        """Tear our links to this peer down now.

        Operations under way fail. A copy that the *other* process is making right now cannot be stopped from
        here.

        Completion means: none of our links touches memory on either side any more.

        Cancellation: the links are torn down all the same; then the cancellation is raised.
        """
        await self._runtime.control.close_peer(self, abort=True)

    def __repr__(self) -> str:
        return f"<Peer {self.name} at {self.address}, {self._state.value}>"


def _links(info: PeerTuple) -> tuple[Link, ...]:
    return tuple(Link(name, reason) for name, reason in info[5])
