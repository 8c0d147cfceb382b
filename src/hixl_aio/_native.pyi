"""Typed face of the extension: tokens and plain records, one file descriptor.

Written by hand and checked by stubtest. Only `_core`, `_bridge` and `engine.py`'s neighbours may import it.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, Self, TypeVar, final

from typing_extensions import Buffer, disjoint_base

from hixl_aio._core.optable import Operation, OperationKind
from hixl_aio._records import CompletionTuple, EventTuple, PartTuple, PeerTuple, RegionTuple, SignalTuple
from hixl_aio._runtime import Runtime
from hixl_aio.completion import Completion, _Failure
from hixl_aio.peer import Peer

_T = TypeVar("_T")

__version__: Final[str]

# Values of hixl_aio::Status, by name ("ok", "stopped", …).
STATUS: Final[dict[str, int]]

PUT: Final = 0
GET: Final = 1
BATCH: Final = 2
SIGNAL: Final = 3

EVENT_CONNECTED: Final = 0
EVENT_ACCEPTED: Final = 1
EVENT_PEER_DOWN: Final = 2
EVENT_DISCONNECTED: Final = 3
EVENT_REFRESHED: Final = 4
EVENT_ALLOCATED: Final = 5
EVENT_REGION_CLOSED: Final = 6
EVENT_SHUTDOWN: Final = 7
EVENT_FAULT: Final = 8
EVENT_LOOKED: Final = 9

# What a rule of a fault plan does, and where it holds an operation.
FAULT_ACTIONS: Final[dict[str, int]]
FAULT_POINTS: Final[dict[str, int]]

PEER_CONNECTED: Final = 0
PEER_SUSPECT: Final = 3

KIND_SHARED: Final = 0
KIND_HOST: Final = 1
KIND_DEVICE: Final = 2

class NativeError(Exception):
    """(status, text): turned into a public exception in exactly one place, hixl_aio.errors."""

    status: int
    text: str

@final
class BufferPin:
    """Holds the export of one contiguous buffer; resizing its owner fails meanwhile.

    Raises BufferError when the object exports no contiguous buffer.
    """

    def __init__(self, obj: Buffer, /) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    def release(self) -> None: ...

@final
class ExportedMemory:
    """Exports memory through the buffer protocol and keeps `owner` alive while any view exists."""

    def __init__(self, address: int, nbytes: int, readonly: bool, owner: object, /) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class RegionHold:
    """Keeps the memory of a region mapped: the `owner` of an ExportedMemory. Only native code makes one."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

@final
class NativeFaults:
    """The rules of a fault transport. Only native code makes one; `hixl_aio.testing.FaultPlan` drives it."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...
    def add_rule(
        self,
        action: int,
        at: int,
        kind: int,
        peer: int,
        min_nbytes: int,
        signal: str,
        skip: int,
        count: int,
        status: int,
        quiescent: bool,
        can_stop: bool,
        seconds: float,
        window: int,
        /,
    ) -> int: ...
    def remove_rule(self, rule: int, /) -> None: ...
    def clear_rules(self) -> None: ...
    def caught(self, rule: int, /) -> int: ...
    def hits(self, rule: int, /) -> int: ...
    def release(self, rule: int, index: int, /) -> int: ...
    def throttle(self, nbytes_per_second: float, latency: float, /) -> None: ...
    def advance(self, seconds: float, /) -> None: ...
    def freeze(self, peer: int, /) -> None: ...
    def thaw(self, peer: int, /) -> None: ...
    def pending(self) -> int: ...

def maker(cls: type[_T], names: tuple[str, ...], /) -> Callable[..., _T]:
    """What makes an instance of `cls` from the values of these slots, by their places, without `__init__`."""

@final
class Pace:
    """How much one loop has been used since it last ran others."""

    def __new__(cls, free_awaits: int, free_nbytes: int) -> Self: ...
    @property
    def free_awaits(self) -> int: ...
    @property
    def free_nbytes(self) -> int: ...
    def step(self) -> bool:
        """One more await need not suspend; False if it has to."""
    def count(self, nbytes: int, /) -> None:
        """So much was copied within a call."""
    def rest(self) -> None:
        """Others run now."""

@disjoint_base
class CompletionBase:
    """The fields of a Completion, and `await` where it is done. Else that calls `_join_it`."""

    kind: Final[OperationKind]
    peer: Peer | None
    nbytes: Final[int]
    user_data: Any
    _runtime: Final[Runtime]
    _pace: Final[Pace]
    _failure: _Failure | None
    _operation: Operation | None
    _started: Final[float]
    _ended: float

    def __init__(
        self,
        runtime: Runtime,
        kind: OperationKind,
        peer: Peer | None,
        nbytes: int,
        started: float,
        ended: float,
    ) -> None: ...
    def __await__(self) -> Generator[Any, Any]: ...

@final
class ShortWay:
    """What is small and can be done at once, in one call. None: nothing has happened, go the ordinary way."""

    def put(self, src: object, dst: object, signal: str | None, payload: bytes, /) -> Completion | None: ...
    def get(self, src: object, dst: object, /) -> Completion | None: ...
    def close(self) -> None: ...
    @property
    def totals(self) -> tuple[int, int]:
        """How many it did, and their bytes."""

@final
class NativeEngine:
    def __init__(
        self,
        name: str,
        *,
        links: tuple[str, ...] = (),
        copy_threads: int = 1,
        chunk_nbytes: int = 1048576,
        inline_nbytes: int = 65536,
        stream_nbytes: int = 8388608,
        max_operations: int = 65536,
        max_regions: int = 131072,
        signal_capacity: int = 4096,
        allow_ptrace: bool = True,
        huge_pages: bool = False,
        populate: bool = False,
        faults: tuple[bool, bool, bool] | None = None,
    ) -> None:
        """`links`: allowed kinds, from inproc, shm, cma, cooperative; empty: all of them. `faults`: put a
        fault transport in front, with (manual clock, operations can be stopped, signals may get lost); in the
        last case a resend transport in front of that."""

    # life
    def start(self, address: str, /) -> str:
        """Bind, start the threads, return the real address. Raises NativeError; does not block."""
    def fileno(self) -> int: ...
    def begin_shutdown(self, token: int, /) -> None: ...
    def close(self) -> None:
        """Join the last thread and close the descriptors. Does not block after EVENT_SHUTDOWN. Idempotent."""
    def abandon_after_fork(self) -> None: ...
    @property
    def incarnation(self) -> str: ...
    @property
    def faults(self) -> NativeFaults | None:
        """The fault transport that was asked for."""
    @property
    def capabilities(self) -> dict[str, object]:
        """What the transport can do.

        name, delivery, order, max_in_flight_per_peer, max_descriptors, inline_nbytes, post_is_nonblocking,
        can_stop, deregister_while_connected, inline_signal, signals_lossless, max_signal_payload,
        always_quiescent, memory_shared, memory_host, memory_device.
        """
    def counters(self) -> dict[str, int]:
        """submitted, completed, drained, inline_done, wakeups, in_flight, strays, regions, peers,
        huge_nbytes."""

    # control plane: each answers with one event that carries the token
    def connect(self, token: int, address: str, timeout: float, /) -> None: ...
    def look(self, token: int, address: str, timeout: float, /) -> None:
        """Who lives at that address now? EVENT_LOOKED: its incarnation as text, or a status and why not."""
    def disconnect(self, token: int, peer: int, abort: bool, /) -> None: ...
    def refresh(self, token: int, peer: int, /) -> None: ...
    def allocate(self, token: int, nbytes: int, access: int, label: str, /) -> None: ...
    def register(self, token: int, address: int, nbytes: int, kind: int, access: int, label: str, /) -> None:
        """Answers with EVENT_ALLOCATED too."""
    def close_region(self, token: int, region: int, timeout: float, /) -> None: ...

    # look-ups
    def find_region(self, peer: int, label: str, /) -> RegionTuple | None:
        """The peer's live region of that label, or None. The address is 0."""
    def peer_info(self, peer: int, /) -> PeerTuple | None:
        """Also of a peer that is down, until it is forgotten."""
    def forget_peer(self, peer: int, /) -> None:
        """An EVENT_PEER_DOWN has been dealt with: nobody asks about that peer again."""
    def hold_region(self, region: int, /) -> RegionHold | None: ...

    # data plane. What transfer and batch return: 0 = done here; > 0 = handle of a posted operation, one
    # record follows; < 0 = minus the status of a refusal: nothing moved, no record follows, a reserved signal
    # place stays reserved.
    def short_way(self, parts: Mapping[str, object], /) -> ShortWay:
        """The hot path; `parts` are what it works with, by name."""
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
        /,
    ) -> int:
        """PUT or GET of one run. `name`: a bound signal, whose place was taken with reserve_signal."""
    def batch(
        self,
        token: int,
        peer: int,
        parts: list[PartTuple],
        allow_inline: bool,
        name: bytes | None,
        payload: bytes,
        /,
    ) -> int:
        """All parts as one operation; adjacent runs are merged. Offsets are int64, relative to the views.

        Raises NativeError(invalid_argument | out_of_bounds, text naming part and index) before a byte moves.
        """
    @property
    def refused_part(self) -> int:
        """Of the last batch that was refused because of a region: the part that is to blame."""
    def stop(self, handle: int, /) -> bool: ...

    # signals
    def reserve_signal(self, peer: int, /) -> int:
        """0, or minus the status (signal_queue_full, not_connected, peer_lost, peer_closed)."""
    def unreserve_signal(self, peer: int, /) -> None:
        """Give back a place that was reserved and not used."""
    def send_signal(self, peer: int, name: bytes, payload: bytes, status: int, reserved: bool, /) -> int:
        """Send now; `status` not 0 is the negative form. 0, or minus the status of a refusal.

        Not reserved: takes a place itself, and may answer signal_queue_full.
        """
    def signals_taken(self, peer: int, count: int, /) -> None: ...

    # the way up
    def drain(self, limit: int, /) -> tuple[list[CompletionTuple], list[SignalTuple], list[EventTuple], bool]:
        """Read the fd, re-arm, take at most `limit` completions and `limit` signals, and all events.

        True at the end: something was left, and the fd has been rung again. An EVENT_PEER_DOWN is given in
        the same call as, or after, every signal and every completion of that peer.
        """
