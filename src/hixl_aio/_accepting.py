"""Peers that connected to us, and the tasks that wait for one: each peer goes to exactly one of them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hixl_aio._core.inbox import Taker
from hixl_aio.errors import ClosedError

if TYPE_CHECKING:
    from hixl_aio._runtime import Runtime
    from hixl_aio.peer import Peer

__all__ = ("Reception",)


class Reception:
    """First come, first served, on both sides."""

    __slots__ = ("_peers", "_runtime", "_takers")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._peers: deque[Peer] = deque()
        self._takers: deque[Taker] = deque()

    async def accept(self) -> Peer:
        """The next peer that connected to us."""
        runtime = self._runtime
        runtime.check()
        await runtime.breathe()
        peer = self._peers.popleft() if self._peers else await self._wait()
        peer._wanted = True
        return peer

    async def _wait(self) -> Peer:
        bridge = self._runtime.bridge
        taker = Taker(None, None, bridge.new_waiter())
        self._takers.append(taker)
        try:
            await bridge.park(taker.waiter)
        except BaseException:
            self._leave(taker)
            raise
        if taker.failure is not None:
            raise taker.failure
        peer: Peer = taker.signal
        return peer

    def _leave(self, taker: Taker) -> None:
        if taker.signal is None:
            if taker in self._takers:
                self._takers.remove(taker)
        elif self._takers:
            self.arrive(taker.signal)
        else:
            self._peers.appendleft(taker.signal)

    def arrive(self, peer: Peer) -> None:
        """Hand it out, or keep it for the next who asks."""
        if not self._takers:
            self._peers.append(peer)
            return
        taker = self._takers.popleft()
        taker.signal = peer
        self._runtime.bridge.wake(taker.waiter)

    def forget(self, peer: Peer) -> None:
        """It is gone before anybody asked for it."""
        if peer in self._peers:
            self._peers.remove(peer)

    def close(self) -> None:
        """The engine closes: nobody is accepted any more."""
        while self._takers:
            taker = self._takers.popleft()
            taker.failure = ClosedError(what=f"engine {self._runtime.name}", state="closing")
            self._runtime.bridge.wake(taker.waiter)
