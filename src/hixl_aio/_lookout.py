"""Who lives now at the address of a peer that was lost.

Nobody tells us that a peer has started again, so the first call that uses the dead one asks: native code
reads the greeting at its address, which names the incarnation, and goes. It costs nothing until then, and
whoever lives there has no peer of us by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hixl_aio._status import Status
from hixl_aio.peer import Peer, PeerState

if TYPE_CHECKING:
    from hixl_aio._core.optable import Operation
    from hixl_aio._records import EventTuple
    from hixl_aio._requests import Request
    from hixl_aio._runtime import Runtime
    from hixl_aio.errors import HixlAioError

__all__ = ("Lookout",)

_PATIENCE: Final = 0.25  # seconds; an engine greets from a native thread, so only a stopped process is silent


class _Look:
    """One question, and who waits for its answer besides tasks."""

    __slots__ = ("operations", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.operations: list[Operation] = []


class Lookout:
    """Asks at most one question about a peer at a time."""

    __slots__ = ("_looks", "_runtime")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._looks: dict[str, _Look] = {}

    def is_needed(self, peer: Peer) -> bool:
        """It died, and we know of no successor."""
        return (
            peer._state is PeerState.LOST
            and peer._down_status is Status.PEER_LOST
            and not peer._successor
            and peer.address not in self._runtime.control.peers
            and self._runtime.is_open
        )

    def hold(self, peer: Peer, operation: Operation) -> None:
        """End an operation, which is in the table, with what the look will say."""
        self._look(peer).operations.append(operation)

    async def explain(self, peer: Peer) -> HixlAioError:
        """Why a call to a peer that is not connected cannot be."""
        if self.is_needed(peer):
            await self._runtime.wait_gate(self._look(peer).request.gate)
            self._runtime.check()
        peer._line.loss_was_told = True
        return self._runtime.control.why_unreachable(peer.incarnation, None)[0]

    def _look(self, peer: Peer) -> _Look:
        look = self._looks.get(peer.incarnation)
        if look is None:
            native = self._runtime.native
            request = self._runtime.requests.begin(lambda token: native.look(token, peer.address, _PATIENCE))
            look = self._looks[peer.incarnation] = _Look(request)
            request.orphan = lambda event: self._answered(peer, event)
        return look

    def _answered(self, peer: Peer, event: EventTuple) -> None:
        code, incarnation = event[3], event[4]
        if not code and incarnation != peer.incarnation:
            peer._successor = incarnation
        look = self._looks.pop(peer.incarnation)
        for operation in look.operations:
            if not operation.in_line:
                continue  # stopped, overdue, or the engine closes
            operation.drop_ready = None
            error = self._runtime.control.why_lost(peer)
            self._runtime.ops.end_waiting(operation, error, error.status)
