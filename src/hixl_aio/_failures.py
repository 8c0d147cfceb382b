"""The one place where native status codes become exceptions.

A status belongs to exactly one class; the registry refuses a second entry for it, and a test sees to it that
every status has one. Callers describe the circumstances in an `About`, and each class takes from it the
fields that it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hixl_aio import errors
from hixl_aio._native import NativeError
from hixl_aio._status import Status
from hixl_aio.errors import HixlAioError

__all__ = ("About", "Registry", "from_native", "from_status", "status_of")


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The circumstances of a failure: whatever the caller knows."""

    op: str = ""
    peer: str = ""
    nbytes: int = 0
    backend: str = "host"
    label: str = ""
    generation: int = 0
    granted: str = ""
    needed: str = ""
    name: str = ""
    what: str = ""
    argument: str = ""
    value: object = None
    expected: str = ""
    feature: str = ""
    pins: int = 0
    waited: float = 0.0
    waiting: int = 0
    limit: int = 0
    broken: str = ""  # why we gave up the links to the peer
    hint: str | None = None


_NOTHING: Final = About()


class Registry:
    """Which class stands for which status, and which fields it takes."""

    __slots__ = ("_classes",)

    def __init__(self) -> None:
        self._classes: dict[Status, tuple[type[HixlAioError], tuple[str, ...]]] = {}

    def add(self, status: Status, cls: type[HixlAioError], *fields: str) -> None:
        """Let `cls` stand for `status`.

        Raises:
            ValueError: the status has a class already.
        """
        if status in self._classes:
            raise ValueError(
                f"status {status.name} is {self._classes[status][0].__name__} already, not {cls.__name__} too"
            )
        self._classes[status] = (cls, fields)

    def statuses(self) -> frozenset[Status]:
        """All statuses that have a class."""
        return frozenset(self._classes)

    def build(self, status: Status, text: str, about: About) -> HixlAioError:
        """The exception for a status, with the fields that its class takes."""
        cls, fields = self._classes[status]
        taken: dict[str, object] = {name: getattr(about, name) for name in fields if name != "status"}
        if "status" in fields:
            taken["status"] = status
        if about.hint is not None:
            taken["hint"] = about.hint
        return cls(text, **taken)  # type: ignore[arg-type]


_TRANSFER: Final = ("op", "peer", "nbytes", "status", "backend")
_PEER: Final = ("peer", "status")

REGISTRY: Final = Registry()
for _status, _class, _fields in (
    (Status.WOULD_BLOCK, errors.InternalError, ()),
    (Status.STOPPED, errors.TransferStoppedError, _TRANSFER),
    (Status.FAILED, errors.TransferFailedError, _TRANSFER),
    (Status.LOST, errors.TransferLostError, _TRANSFER),
    (Status.PEER_LOST, errors.PeerLostError, _PEER),
    (Status.PEER_CLOSED, errors.PeerLostError, _PEER),
    (Status.NOT_CONNECTED, errors.PeerNotConnectedError, _PEER),
    (Status.STALE_REGION, errors.StaleRegionError, ("label", "generation")),
    (Status.ACCESS_DENIED, errors.AccessDeniedError, ("label", "granted", "needed")),
    (Status.OUT_OF_BOUNDS, errors.InvalidArgumentError, ("argument", "value", "expected")),
    (Status.NO_LINK, errors.UnsupportedError, ("feature", "backend", "status")),
    (Status.QUEUE_FULL, errors.TransferQueueFullError, ("peer", "waiting", "limit")),
    (Status.SIGNAL_QUEUE_FULL, errors.SignalQueueFullError, ("peer", "name")),
    (Status.INVALID_ARGUMENT, errors.InvalidArgumentError, ("argument", "value", "expected")),
    (Status.UNSUPPORTED, errors.UnsupportedError, ("feature", "backend", "status")),
    (Status.CLOSED, errors.ClosedError, ("what",)),
    (Status.RESOURCE_EXHAUSTED, errors.ResourceExhaustedError, ("limit",)),
    (Status.TIMED_OUT, errors.ConnectTimeoutError, _PEER),
    (Status.HANDSHAKE_REFUSED, errors.HandshakeError, _PEER),
    (Status.PERMISSION_DENIED, errors.AuthenticationError, _PEER),
    (Status.ADDRESS_IN_USE, errors.EngineError, ("status",)),
    (Status.CONNECT_FAILED, errors.PeerNotConnectedError, _PEER),
    (Status.NOT_REGISTERED, errors.NotRegisteredError, ("label", "peer")),
    (Status.REGION_BUSY, errors.RegionBusyError, ("label", "pins", "waited")),
    (Status.INTERNAL, errors.InternalError, ()),
    (Status.AUTHENTICATION_FAILED, errors.AuthenticationError, _PEER),
):
    REGISTRY.add(_status, _class, *_fields)
del _status, _class, _fields


def status_of(code: int) -> Status:
    """The status that a native integer stands for; INTERNAL for one that we do not know."""
    try:
        return Status(code)
    except ValueError:
        return Status.INTERNAL


def from_status(code: int, text: str = "", about: About = _NOTHING) -> HixlAioError:
    """The exception for a native status (a positive number, or a negative return code)."""
    status = status_of(abs(code))
    if status is Status.INTERNAL and abs(code) != Status.INTERNAL:
        text = f"unknown native status {code}" + (f": {text}" if text else "")
    if status in (Status.PEER_LOST, Status.PEER_CLOSED):
        text = text or about.broken
    if status is Status.OK:
        return errors.InternalError(
            "a native call said 'ok' where it had to fail" + (f": {text}" if text else "")
        )
    if status is Status.RESOURCE_EXHAUSTED and about.op:
        what = f"{about.op} of {about.nbytes} bytes with peer {about.peer}"
        return errors.ResourceExhaustedError(
            f"the {about.backend} transport has no room for one more {what}" + (f": {text}" if text else ""),
            retryable=True,
            hint="Let some operations end, then call again.",
        )
    return REGISTRY.build(status, text, about)


def from_native(error: NativeError, about: About = _NOTHING) -> HixlAioError:
    """The exception for a NativeError."""
    return from_status(error.status, error.text, about)
