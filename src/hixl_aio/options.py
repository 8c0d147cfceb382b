"""Settings of an engine, and the small words that its calls take."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from hixl_aio._checks import check_seconds
from hixl_aio.errors import BackendUnavailableError, InvalidArgumentError, UnsupportedError

__all__ = (
    "DEFAULT",
    "LINK_KINDS",
    "Access",
    "Delivery",
    "EngineOptions",
    "Environment",
    "Timeout",
    "TimeoutPolicy",
)

LINK_KINDS: Final = ("inproc", "shm", "cma", "cooperative")


class Access(enum.IntEnum):
    """What peers may do with a region."""

    LOCAL = 0
    """Nothing: a source or destination of ours, invisible to peers."""
    READ = 1
    """Peers may `get` from it."""
    WRITE = 2
    """Peers may `put` into it."""
    READ_WRITE = 3
    """Both."""


class Delivery(enum.Enum):
    """What the completion of a put means."""

    REMOTE = "remote"
    """The bytes are visible to the peer."""
    LOCAL = "local"
    """The source may be reused; the bytes may still be under way."""


class _Default(enum.Enum):
    DEFAULT = "DEFAULT"

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Final = _Default.DEFAULT
"""The timeout that stands for `EngineOptions.transfer_timeout`."""

Timeout: TypeAlias = float | Literal[_Default.DEFAULT] | None
"""Seconds, None for no deadline, or DEFAULT."""

TimeoutPolicy: TypeAlias = Literal["drain", "abort"]
"""After a deadline: let the transport finish or stop in its own time, or tear the peer's links down."""


def _default_copy_threads() -> int:
    # Those that we may use, which may be fewer than the machine has.
    return min(4, len(os.sched_getaffinity(0)))


def _refuse(argument: str, value: object, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(argument=f"EngineOptions.{argument}", value=value, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Limits and habits of one engine. Times in seconds, sizes in bytes.

    Attributes:
        transfer_timeout: deadline of a data call that gives none; None for no deadline.
        cancel_grace: how long a cancelled await waits for its transfer to settle.
        drain_timeout: how long closing a region or a peer waits for operations that hold it; None for no
            limit.
        timeout_policy: what becomes of an operation whose deadline is over: "drain", it ends in the
            transport's own time; "abort", its peer is given up, and all operations with that peer end with a
            `PeerLostError` that names the late one.
        credits_per_peer: operations posted to one peer at a time.
        line_capacity: operations that may wait for a credit of one peer.
        signal_capacity: unread signals that each peer may leave with us.
        links: kinds of links that may be used, in order of preference; empty: all.
        copy_threads: native threads that copy, and share the chunks of a large transfer; None: one for each
            core that this process may use, at most 4.
        chunk_nbytes: large transfers are cut into pieces of this size; a stop takes effect between two of
            them.
        inline_nbytes: transfers up to this size, and batches up to four times as large in at most 1024 runs,
            are copied within the call, where that cannot block. The loop stands still meanwhile: about 0.1 ms
            for each MiB.
        stream_nbytes: transfers of this size and more are written past the cache, where a thread of ours
            copies.
        max_operations: operations accepted and not yet reported, over all peers.
        max_regions: regions alive at a time.
        allow_ptrace: let peers of the same user copy from and to this process where Yama asks for a
            permission.
        spin: how long a task that waits for an operation or a signal keeps the loop looking for it instead of
            sleeping. That saves the wake-up, and burns a core meanwhile. 0: never.
        huge_pages: let regions of 2 MiB and more that `allocate` makes lie on huge pages, where the system
            has any for us; `statistics().native["huge_nbytes"]` says how much does.
        populate: map what peers allocated in the background, as soon as we hear of it, instead of page by
            page in the first transfers. What we allocate is always mapped here when `allocate` returns.
        drain_limit: completions taken in one turn of the loop.
    """

    transfer_timeout: float | None = 30.0
    cancel_grace: float = 5.0
    drain_timeout: float | None = 5.0
    timeout_policy: TimeoutPolicy = "drain"
    credits_per_peer: int = 1024
    line_capacity: int = 65536
    signal_capacity: int = 4096
    links: tuple[str, ...] = ()
    copy_threads: int | None = None
    chunk_nbytes: int = 1 << 20
    inline_nbytes: int = 128 << 10
    stream_nbytes: int = 8 << 20
    max_operations: int = 65536
    max_regions: int = 131072
    allow_ptrace: bool = True
    huge_pages: bool = False
    populate: bool = False
    spin: float = 0.0
    drain_limit: int = 256

    def __post_init__(self) -> None:
        for name in ("transfer_timeout", "cancel_grace", "drain_timeout", "spin"):
            self._check_seconds(name, optional=name not in ("cancel_grace", "spin"))
        for name, least, most in _RANGES:
            self._check_integer(name, least, most)
        if self.copy_threads is None:
            object.__setattr__(self, "copy_threads", _default_copy_threads())
        self._check_integer("copy_threads", 1, 64)
        if self.timeout_policy not in ("drain", "abort"):
            raise _refuse("timeout_policy", self.timeout_policy, "'drain' or 'abort'")
        for name in ("allow_ptrace", "huge_pages", "populate"):
            if not isinstance(getattr(self, name), bool):
                raise _refuse(name, getattr(self, name), "True or False")
        self._check_links()

    def _check_seconds(self, name: str, *, optional: bool) -> None:
        value = getattr(self, name)
        checked = check_seconds(f"EngineOptions.{name}", value, optional=optional)
        object.__setattr__(self, name, checked)

    def _check_integer(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _refuse(name, value, f"an integer from {least} to {most}")

    def _check_links(self) -> None:
        kinds = self.links
        if not isinstance(kinds, tuple | list) or not all(isinstance(kind, str) for kind in kinds):
            raise _refuse("links", kinds, f"a tuple of names from {', '.join(LINK_KINDS)}")
        object.__setattr__(self, "links", tuple(self.links))
        for kind in self.links:
            if kind not in LINK_KINDS:
                raise _refuse("links", kind, f"names from {', '.join(LINK_KINDS)}")
        if len(set(self.links)) != len(self.links):
            raise _refuse("links", ", ".join(self.links), "each kind at most once")


_RANGES: Final = (
    ("credits_per_peer", 1, 1 << 20),
    ("line_capacity", 1, 1 << 24),
    ("signal_capacity", 1, 1 << 16),
    ("chunk_nbytes", 4096, 1 << 30),
    ("inline_nbytes", 0, 1 << 20),
    ("stream_nbytes", 0, 1 << 62),
    ("max_operations", 1, 1 << 22),
    ("max_regions", 1, 1 << 20),
    ("drain_limit", 1, 1 << 16),
)

_HOST: Final = "host"
_NEEDS: Final[Mapping[str, str]] = {
    "hixl": "the CANN toolkit with libhixl, an Ascend driver, and a build with that transport",
    "ucx": "UCX 1.14 or newer, and a build of this library with the ucx transport",
}
_LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the process environment asks for. What is said in code wins.

    Attributes:
        debug: HIXL_AIO_DEBUG: creation tracebacks in warnings.
        log: HIXL_AIO_LOG: a level; our logger then writes to standard error.
        backend: HIXL_AIO_BACKEND: stands in for backend="auto".
        key: HIXL_AIO_KEY: stands in for key=None.
        hixl_library: HIXL_AIO_HIXL_LIBRARY: path of the HIXL library.
    """

    debug: bool = False
    log: str | None = None
    backend: str | None = None
    key: bytes | None = None
    hixl_library: str | None = None

    @classmethod
    def read(cls, source: Mapping[str, str] | None = None) -> Environment:
        """Take the variables from `source`, or from the process.

        Raises:
            InvalidArgumentError: a variable has a value that it cannot have.
        """
        found = os.environ if source is None else source
        log = found.get("HIXL_AIO_LOG", "").strip().lower() or None
        if log is not None and log not in _LOG_LEVELS:
            raise InvalidArgumentError(
                argument="HIXL_AIO_LOG", value=log, expected="one of " + ", ".join(_LOG_LEVELS)
            )
        key = found.get("HIXL_AIO_KEY", "")
        return cls(
            debug=_flag("HIXL_AIO_DEBUG", found.get("HIXL_AIO_DEBUG", "")),
            log=log,
            backend=found.get("HIXL_AIO_BACKEND", "").strip().lower() or None,
            key=os.fsencode(key) if key else None,
            hixl_library=found.get("HIXL_AIO_HIXL_LIBRARY") or None,
        )


def _flag(name: str, text: str) -> bool:
    value = text.strip().lower()
    if value in ("", "0", "false", "no", "off"):
        return False
    if value in ("1", "true", "yes", "on"):
        return True
    raise InvalidArgumentError(argument=name, value=text, expected="1 or 0")


def choose_backend(backend: str, key: bytes | None, environment: Environment) -> str:
    """The backend that this engine will run on, after code and environment have spoken.

    Raises:
        InvalidArgumentError: there is no backend of that name.
        BackendUnavailableError: the backend is not there on this machine.
        UnsupportedError: a key was given, and the backend would not use it.
    """
    if backend not in ("auto", _HOST, *_NEEDS):
        raise InvalidArgumentError(
            argument="backend", value=backend, expected="'auto', 'host', 'hixl' or 'ucx'"
        )
    chosen, said_by = (
        (backend, "backend") if backend != "auto" else (environment.backend or "auto", "HIXL_AIO_BACKEND")
    )
    if chosen not in ("auto", _HOST, *_NEEDS):
        raise InvalidArgumentError(argument=said_by, value=chosen, expected="'auto', 'host', 'hixl' or 'ucx'")
    if chosen in _NEEDS:
        raise BackendUnavailableError(backend=chosen, missing=_NEEDS[chosen])
    if key is not None and not isinstance(key, bytes):
        raise InvalidArgumentError(argument="key", value=type(key).__name__, expected="bytes or None")
    if key is not None or environment.key is not None:
        raise UnsupportedError(
            feature="key=" if key is not None else "the key in HIXL_AIO_KEY",
            backend=_HOST,
            hint="The host backend admits processes of the same user: leave the key out.",
        )
    return _HOST
