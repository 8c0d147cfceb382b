"""Numbers about an engine: frozen snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ("Capabilities", "EngineStatistics")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """What an engine holds, and what it has done. Counts unless named otherwise.

    Attributes:
        waiting, waiting_nbytes: operations in line for a credit, or for what they are `ready=` on.
        posted, posted_nbytes: with the transport, and awaited or awaitable.
        abandoned, abandoned_nbytes: with the transport; whoever waited has gone on.
        quarantined, quarantined_nbytes: failed, and possibly still touched by the transport.
        settled, settled_nbytes: over, since the engine opened.
        inlined: of those, done within the call.
        spins: turns of the loop in which it looked for news without sleeping (`EngineOptions.spin`).
        unread_signals: arrived, and not taken yet.
        peers: connected ones.
        regions: open ones.
        busy_regions: regions that unsettled operations hold.
        native: counters of the native core: submitted, completed, drained, inline_done, wakeups, in_flight,
            regions, peers, huge_nbytes (of what `allocate` made, how much lies on huge pages).
    """

    waiting: int = 0
    waiting_nbytes: int = 0
    posted: int = 0
    posted_nbytes: int = 0
    abandoned: int = 0
    abandoned_nbytes: int = 0
    quarantined: int = 0
    quarantined_nbytes: int = 0
    settled: int = 0
    settled_nbytes: int = 0
    inlined: int = 0
    spins: int = 0
    unread_signals: int = 0
    peers: int = 0
    regions: int = 0
    busy_regions: int = 0
    native: Mapping[str, int]

    @property
    def in_flight(self) -> int:
        """Operations whose memory is not settled."""
        return self.waiting + self.posted + self.abandoned + self.quarantined


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the backend of an engine can do.

    Attributes:
        name: the backend.
        delivery: what a completion means at best: "remote" or "local".
        order: in which order operations to one peer are delivered: "none" or "submission".
        max_in_flight_per_peer: 0: no limit of its own.
        max_descriptors: runs in one operation; 0: no limit of its own.
        inline_nbytes: transfers up to this size may be done within the call; 0: never.
        post_is_nonblocking: posting never waits.
        can_stop: a posted operation can be stopped.
        deregister_while_connected: regions may be closed while peers are connected.
        inline_signal: a bound signal travels with its operation.
        signals_lossless: signals arrive once and in order, by nature or because lost ones are sent again.
        max_signal_payload: bytes that may go with a signal.
        always_quiescent: every record says that the memory is free.
        memory_shared, memory_host, memory_device: kinds of memory that it moves.
    """

    name: str
    delivery: str
    order: str
    max_in_flight_per_peer: int
    max_descriptors: int
    inline_nbytes: int
    post_is_nonblocking: bool
    can_stop: bool
    deregister_while_connected: bool
    inline_signal: bool
    signals_lossless: bool
    max_signal_payload: int
    always_quiescent: bool
    memory_shared: bool
    memory_host: bool
    memory_device: bool

    @classmethod
    def from_native(cls, found: Mapping[str, Any]) -> Capabilities:
        """Read what the native core says; fields that it does not have yet are left out."""
        names = cls.__dataclass_fields__
        return cls(**{name: value for name, value in found.items() if name in names})
