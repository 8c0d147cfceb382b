"""A stand-in for native code that a test drives by hand: what is posted stays posted until the test ends it.

It moves no bytes. It keeps the contract of `_native.pyi`: one answer to each request, one record to each
posted operation, one descriptor that is rung.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import Any

from hixl_aio import _native
from hixl_aio._records import SignalTuple
from hixl_aio._status import Status

FIRST_HANDLE = 1 << 32


@dataclass(slots=True)
class Posted:
    """One operation that the stand-in holds."""

    token: int
    handle: int
    kind: str
    peer: int
    nbytes: int
    name: bytes | None
    payload: bytes


class _NoShortWay:
    """Sends everything the ordinary way."""

    totals = (0, 0)

    def put(self, *_: object) -> None:
        return None

    get = put

    def close(self) -> None:
        return None


@dataclass(slots=True)
class StandIn:
    """What the engine sees as `_native.NativeEngine`, and what the test sees of it."""

    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    answers: list[int] = field(default_factory=list)  # for the next transfers; empty: post
    reserve_answer: int = 0
    posted: list[Posted] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    signals: list[tuple[bytes, bytes, int]] = field(default_factory=list)
    taken: list[tuple[int, int]] = field(default_factory=list)
    reserved: int = 0
    calls: int = 0
    forked: bool = False
    silent: bool = False  # requests of the control plane get no answer
    refusal: Status | None = None  # the next one is refused at once
    answer_status: Status = Status.OK  # what requests are answered with
    bad_batch: str = ""  # why the next batch is refused
    refused_part: int = 0  # of the last batch that was refused
    lost: set[int] = field(default_factory=set)
    looks: list[str] = field(default_factory=list)  # at these addresses
    living: str = ""  # the incarnation that looks find
    hold_shutdown: bool = False
    hold_closings: bool = False  # of regions: asked for in `closings`, and not answered
    closings: list[tuple[int, int]] = field(default_factory=list)  # (token, region)
    peers: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    _completions: list[tuple[int, int, int, bool, bytes | None]] = field(default_factory=list)
    _arrived: list[SignalTuple] = field(default_factory=list)
    _events: list[tuple[int, int, int, int, str, Any]] = field(default_factory=list)
    _fd: int = -1
    _regions: int = 0

    # ---- life

    def __post_init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def start(self, address: str) -> str:
        return "127.0.0.1:1"

    def fileno(self) -> int:
        return self._fd

    def begin_shutdown(self, token: int) -> None:
        if not self.hold_shutdown:
            for held in list(self.posted):
                self.end(held, Status.CLOSED)
            self._raise(_native.EVENT_SHUTDOWN, token)

    def abandon_after_fork(self) -> None:
        self.forked = True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def incarnation(self) -> str:
        return "11" * 16

    @property
    def capabilities(self) -> dict[str, object]:
        return {
            "name": "stand-in",
            "delivery": "remote",
            "order": "none",
            "max_in_flight_per_peer": 0,
            "max_descriptors": 0,
            "inline_nbytes": 0,
            "post_is_nonblocking": True,
            "can_stop": self.options.get("can_stop", True),
            "deregister_while_connected": True,
            "inline_signal": True,
            "signals_lossless": True,
            "max_signal_payload": 1024,
            "always_quiescent": False,
            "memory_shared": True,
            "memory_host": True,
            "memory_device": False,
        }

    def counters(self) -> dict[str, int]:
        return {"in_flight": len(self.posted)}

    # ---- control plane

    def _refuse(self) -> None:
        if self.refusal is not None:
            error = _native.NativeError("refused")
            error.status, error.text = int(self.refusal), "refused at once"
            self.refusal = None
            raise error

    def connect(self, token: int, address: str, timeout: float) -> None:
        self._refuse()
        if self.silent:
            return
        number = len(self.peers) + 1
        self.peers[number] = (f"peer-{number}", address, f"{number:032x}")
        self._raise(_native.EVENT_CONNECTED, token, number)

    def look(self, token: int, address: str, timeout: float) -> None:
        self.looks.append(address)
        if self.silent:
            return
        status = Status.OK if self.living else Status.CONNECT_FAILED
        self._raise(_native.EVENT_LOOKED, token, 0, int(status), self.living)

    def disconnect(self, token: int, peer: int, abort: bool) -> None:
        for held in [held for held in self.posted if held.peer == peer]:
            self.end(held, Status.PEER_CLOSED)
        self._raise(_native.EVENT_DISCONNECTED, token, peer)

    def refresh(self, token: int, peer: int) -> None:
        self._raise(_native.EVENT_REFRESHED, token, peer, int(self.answer_status))

    def allocate(self, token: int, nbytes: int, access: int, label: str) -> None:
        self.register(token, 0x1000, nbytes, _native.KIND_SHARED, access, label)

    def register(self, token: int, address: int, nbytes: int, kind: int, access: int, label: str) -> None:
        self._refuse()
        self._regions += 1
        info = (self._regions, 1, nbytes, address, kind, access, label)
        self._raise(_native.EVENT_ALLOCATED, token, region=info)

    def close_region(self, token: int, region: int, timeout: float) -> None:
        self.closings.append((token, region))
        if not self.hold_closings:
            self.closed_region(token, self.answer_status)

    def find_region(self, peer: int, label: str) -> tuple[int, int, int, int, int, int, str]:
        return (7, 1, 1 << 20, 0, _native.KIND_SHARED, 3, label)

    def peer_info(self, peer: int) -> tuple[str, str, str, int, int, tuple[tuple[str, str], ...]] | None:
        found = self.peers.get(peer)
        return None if found is None else (*found, 1, 0, (("stand-in", "of a test"),))

    def unreserve_signal(self, peer: int) -> None:
        self.reserved -= 1

    def forget_peer(self, peer: int) -> None:
        self.peers.pop(peer, None)

    def hold_region(self, region: int) -> None:
        return None

    # ---- data plane

    def transfer(
        self,
        token: int,
        kind: int,
        peer: int,
        local: int,
        region: int,
        generation: int,
        offset: int,
        nbytes: int,
        allow_inline: bool,
        name: bytes | None,
        payload: bytes,
    ) -> int:
        return self._post(token, "get" if kind else "put", peer, nbytes, name, payload)

    def short_way(self, parts: object) -> _NoShortWay:
        return _NoShortWay()

    def batch(
        self,
        token: int,
        peer: int,
        parts: list[Any],
        allow_inline: bool,
        name: bytes | None,
        payload: bytes,
    ) -> int:
        if self.bad_batch:
            error = _native.NativeError(self.bad_batch)
            error.status, error.text, self.bad_batch = int(Status.OUT_OF_BOUNDS), self.bad_batch, ""
            raise error
        return self._post(token, "batch", peer, len(parts), name, payload)

    def _post(self, token: int, kind: str, peer: int, nbytes: int, name: bytes | None, payload: bytes) -> int:
        if peer in self.lost:
            return -Status.PEER_LOST
        self.calls += 1
        answer = self.answers.pop(0) if self.answers else 1
        if answer <= 0:
            return answer
        held = Posted(token, FIRST_HANDLE + self.calls, kind, peer, nbytes, name, payload)
        self.posted.append(held)
        return held.handle

    def stop(self, handle: int) -> bool:
        self.stopped.append(handle)
        return True

    def reserve_signal(self, peer: int) -> int:
        if self.reserve_answer == 0:
            self.reserved += 1
        return self.reserve_answer

    def send_signal(self, peer: int, name: bytes, payload: bytes, status: int, reserved: bool) -> int:
        if reserved:
            self.reserved -= 1
        self.signals.append((name, payload, status))
        return 0

    def signals_taken(self, peer: int, count: int) -> None:
        self.taken.append((peer, count))

    def drain(self, limit: int) -> tuple[list[Any], list[Any], list[Any], bool]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        completions, self._completions = self._completions[:limit], self._completions[limit:]
        signals, self._arrived = self._arrived[:limit], self._arrived[limit:]
        events, self._events = self._events, []
        left = bool(self._completions or self._arrived)
        if left:
            self._ring()
        return completions, signals, events, left

    # ---- what a test does

    def end(
        self,
        held: Posted | None = None,
        status: Status = Status.OK,
        *,
        quiescent: bool = True,
        parts: bytes | None = None,
    ) -> None:
        """Give the record of an operation; of the first that is held, if none is named."""
        held = self.posted[0] if held is None else held
        self.posted.remove(held)
        if held.name is not None:
            self.reserved -= 1
            self.signals.append((held.name, held.payload, int(status)))
        self._completions.append((held.token, int(status), 0, quiescent, parts))
        self._ring()

    def repeat_record(self, token: int) -> None:
        """A record that came before, once more."""
        self._completions.append((token, 0, 0, True, None))
        self._ring()

    def closed_region(self, token: int, status: Status = Status.OK) -> None:
        """Answer a closing."""
        self._raise(_native.EVENT_REGION_CLOSED, token, 0, int(status))

    def arrive(
        self, peer: int, sequence: int, name: str, payload: bytes = b"", status: Status = Status.OK
    ) -> None:
        """A signal comes in."""
        self._arrived.append((peer, sequence, int(status), name, payload))
        self._ring()

    def peer_down(self, peer: int, status: Status = Status.PEER_LOST) -> None:
        """A peer dies: nothing is posted to it any more."""
        self.lost.add(peer)
        self._raise(_native.EVENT_PEER_DOWN, 0, peer, int(status), "of a test")

    def accepted(self, number: int, address: str, incarnation: str) -> None:
        """A peer connects to us."""
        self.peers[number] = (f"peer-{number}", address, incarnation)
        self._raise(_native.EVENT_ACCEPTED, 0, number)

    def _raise(
        self, kind: int, token: int, peer: int = 0, status: int = 0, text: str = "", region: Any = None
    ) -> None:
        self._events.append((kind, token, peer, status, text, region))
        self._ring()

    def _ring(self) -> None:
        os.eventfd_write(self._fd, 1)
