"""Errors that say what the world did: operations, peers, the engine, limits. Public in `hixl_aio.errors`."""

from __future__ import annotations

from typing import ClassVar

from hixl_aio._status import Status
from hixl_aio._usage_errors import HixlAioError

__all__ = (
    "AbandonedTransferWarning",
    "AuthenticationError",
    "BackendUnavailableError",
    "BatchError",
    "ConnectTimeoutError",
    "EngineError",
    "HandshakeError",
    "InternalError",
    "PeerAlreadyConnectedError",
    "PeerError",
    "PeerLostError",
    "PeerNotConnectedError",
    "PeerRestartedError",
    "ResourceExhaustedError",
    "SignalError",
    "SignalQueueFullError",
    "TransferError",
    "TransferFailedError",
    "TransferLostError",
    "TransferQueueFullError",
    "TransferStoppedError",
    "TransferTimeoutError",
    "UnclosedResourceWarning",
    "UnsupportedError",
)


# ---- one operation is broken


class TransferError(HixlAioError):
    """One operation did not do what it was asked to.

    Attributes:
        op: "put", "get", "batch" or "signal".
        peer: the peer's address.
        nbytes: how much it was to move.
        status: what the transport said.
        backend: which transport said so.
    """

    _hint = "The destination's bytes are undefined; transfer them again if they are still wanted."
    _signal_hint: ClassVar[str] = "It had no bytes to move; send it again if the peer still waits for it."
    _said: ClassVar[str] = "failed"

    def __init__(
        self,
        detail: str = "",
        *,
        op: str = "",
        peer: str = "",
        nbytes: int = 0,
        status: Status = Status.FAILED,
        backend: str = "",
        hint: str | None = None,
    ) -> None:
        self.op = op
        self.peer = peer
        self.nbytes = nbytes
        self.status = status
        self.backend = backend
        if hint is None and op == "signal":
            hint = self._signal_hint
        super().__init__(detail, hint=hint)

    def _summary(self) -> str:
        what = "signal" if self.op == "signal" else f"{self.op or 'operation'} of {self.nbytes} bytes"
        return (
            f"{what} with peer {self.peer or 'unknown'} {self._said}"
            f" (status {self.status.name.lower()}, backend {self.backend or 'unknown'})"
        )


class TransferFailedError(TransferError):
    """The transport reported a failure, or what the operation waited for (`ready=`) failed."""

    _hint = (
        "The destination's bytes are undefined; transfer them again if they are still wanted. If it fails "
        "again, look at the memory of both ends: a file mapping cannot be copied where its file was cut off."
    )


class TransferTimeoutError(TransferError, TimeoutError):
    """The operation's own deadline is over. Its region is busy until the transport has let go
    (`op.settled()`).

    Attributes:
        timeout: the deadline, in seconds from the call.
    """

    _hint = "Await `op.settled()` before the buffer is used again; give more `timeout=`, or abort the peer."
    _said = "took longer than its timeout"

    def __init__(
        self,
        detail: str = "",
        *,
        timeout: float = 0.0,
        op: str = "",
        peer: str = "",
        nbytes: int = 0,
        status: Status = Status.TIMED_OUT,
        backend: str = "",
        hint: str | None = None,
    ) -> None:
        self.timeout = timeout
        super().__init__(detail, op=op, peer=peer, nbytes=nbytes, status=status, backend=backend, hint=hint)

    def _summary(self) -> str:
        return f"{super()._summary()} of {self.timeout:.3g} s"


class TransferStoppedError(TransferError):
    """The operation ended on request: the transport has let go, the destination's bytes are undefined."""

    _said = "was stopped on request"


class TransferLostError(TransferError):
    """The transport forgot the operation, because its link was reset."""

    _said = "was lost with its link"


class BatchError(TransferError):
    """Parts of a batch did not complete.

    Attributes:
        failures: (index of the part, its error), in order.
    """

    _hint = "`failures` names the parts; the bytes of all others are there. Transfer the failed ones again."

    def __init__(
        self,
        detail: str = "",
        *,
        failures: tuple[tuple[int, HixlAioError], ...] = (),
        op: str = "batch",
        peer: str = "",
        nbytes: int = 0,
        status: Status = Status.FAILED,
        backend: str = "",
        hint: str | None = None,
    ) -> None:
        self.failures = failures
        super().__init__(detail, op=op, peer=peer, nbytes=nbytes, status=status, backend=backend, hint=hint)

    def _summary(self) -> str:
        first = f", the first is part {self.failures[0][0]}" if self.failures else ""
        return f"{super()._summary()}; {len(self.failures)} parts did not complete{first}"


# ---- one peer is broken


class PeerError(HixlAioError, ConnectionError):
    """The connection to one peer is broken, or was never made. Other peers notice nothing.

    Attributes:
        peer: the peer's address.
        status: what the transport said.
    """

    _hint = "Connect again."
    _said: ClassVar[str] = "is not usable"

    def __init__(
        self,
        detail: str = "",
        *,
        peer: str = "",
        status: Status = Status.NOT_CONNECTED,
        hint: str | None = None,
    ) -> None:
        self.peer = peer
        self.status = status
        super().__init__(detail, hint=hint)

    def _summary(self) -> str:
        return f"peer {self.peer or 'unknown'} {self._said}"


class PeerNotConnectedError(PeerError):
    """There is no connection to that peer."""

    _hint = "Call `await engine.connect(address)` first, and see that the peer listens there."
    _said = "is not connected"


class ConnectTimeoutError(PeerNotConnectedError, TimeoutError):
    """The peer did not answer the handshake in time."""

    _hint = "See that the peer runs and is not suspended; give more time with `connect(..., timeout=)`."
    _said = "did not answer in time"


class PeerAlreadyConnectedError(PeerError):
    """There is a connection to that peer already."""

    _hint = "Use the existing one: `engine.peers[address]`."
    _said = "is connected already"


class PeerLostError(PeerError):
    """The peer died, closed the connection, or its link broke. Bytes under way are undefined."""

    _hint = "Connect again once it is back; its regions must be taken anew."
    _said = "is gone"


class PeerRestartedError(PeerError):
    """Another life of the peer answers at that address; regions of the old one are gone."""

    _hint = "Connect once more with `await engine.connect(address)`, and take its regions anew."
    _said = "has restarted"


class HandshakeError(PeerError):
    """The two engines do not fit together; `detail` names the field and both values."""

    _hint = "Run the same version with matching settings on both sides."
    _said = "refused the handshake"


class AuthenticationError(PeerError):
    """The peer is not who may talk to us: another user, or another key."""

    _hint = "Run both engines as the same user, with the same key."
    _said = "is not authorized"


class SignalError(PeerError):
    """The negative form of a signal: what it was bound to did not complete.

    Attributes:
        name: the signal's name.
    """

    _hint = "Do not use the bytes that it announces; the sender's own operation carries the cause."

    def __init__(
        self,
        detail: str = "",
        *,
        name: str = "",
        peer: str = "",
        status: Status = Status.FAILED,
        hint: str | None = None,
    ) -> None:
        self.name = name
        super().__init__(detail, peer=peer, status=status, hint=hint)

    def _summary(self) -> str:
        return (
            f"peer {self.peer or 'unknown'} could not complete what signal {self.name!r} announces"
            f" (status {self.status.name.lower()})"
        )


# ---- the engine, limits, ourselves


class EngineError(HixlAioError):
    """The engine cannot do this, here, as it is set up.

    Attributes:
        status: what the native core said.
    """

    def __init__(self, detail: str = "", *, status: Status = Status.FAILED, hint: str | None = None) -> None:
        self.status = status
        super().__init__(detail, hint=hint)


class BackendUnavailableError(EngineError):
    """The backend is not there on this machine.

    Attributes:
        backend: which one was asked for.
        missing: what it would need.
    """

    _hint = "Install what is missing, or choose backend='host'."

    def __init__(
        self,
        detail: str = "",
        *,
        backend: str = "",
        missing: str = "",
        status: Status = Status.UNSUPPORTED,
        hint: str | None = None,
    ) -> None:
        self.backend = backend
        self.missing = missing
        super().__init__(detail, status=status, hint=hint)

    def _summary(self) -> str:
        return (
            f"backend {self.backend!r} is not available here, it needs {self.missing}" if self.backend else ""
        )


class UnsupportedError(EngineError, NotImplementedError):
    """This backend, or this version, cannot do that.

    Attributes:
        feature: what was asked for.
        backend: which backend was asked.
    """

    _hint = "Ask `engine.capabilities` first."

    def __init__(
        self,
        detail: str = "",
        *,
        feature: str = "",
        backend: str = "host",
        status: Status = Status.UNSUPPORTED,
        hint: str | None = None,
    ) -> None:
        self.feature = feature
        self.backend = backend
        super().__init__(detail, status=status, hint=hint)

    def _summary(self) -> str:
        return f"backend {self.backend!r} does not support {self.feature}" if self.feature else ""


class ResourceExhaustedError(HixlAioError):
    """A limit was reached: memory, descriptors, places in a queue.

    Attributes:
        limit: the limit, where it is a number of ours.
        retryable: the same call may work later.
    """

    _hint = "Free some, or raise the limit of the system or in EngineOptions."
    _retryable: ClassVar[bool] = False

    def __init__(
        self, detail: str = "", *, limit: int = 0, retryable: bool | None = None, hint: str | None = None
    ) -> None:
        self.limit = limit
        self.retryable = self._retryable if retryable is None else retryable
        super().__init__(detail, hint=hint)


class TransferQueueFullError(ResourceExhaustedError):
    """Too many operations wait for a credit of that peer.

    Attributes:
        peer: the peer's address.
        waiting: how many wait.
    """

    _hint = (
        "Call `await engine.wait_capacity(peer)` before the next one, or raise EngineOptions.line_capacity."
    )
    _retryable = True

    def __init__(
        self,
        detail: str = "",
        *,
        peer: str = "",
        waiting: int = 0,
        limit: int = 0,
        retryable: bool | None = None,
        hint: str | None = None,
    ) -> None:
        self.peer = peer
        self.waiting = waiting
        super().__init__(detail, limit=limit, retryable=retryable, hint=hint)

    def _summary(self) -> str:
        return f"{self.waiting} operations wait for peer {self.peer or 'unknown'}, at most {self.limit} may"


class SignalQueueFullError(ResourceExhaustedError):
    """The peer holds as many unread signals as it has places for; nothing moved, nothing was lost.

    Attributes:
        peer: the peer's address.
        name: the signal that had no place.
    """

    _hint = (
        "Send again when the peer has taken some (let it answer with a signal), or raise its signal_capacity."
    )
    _retryable = True

    def __init__(
        self,
        detail: str = "",
        *,
        peer: str = "",
        name: str = "",
        limit: int = 0,
        retryable: bool | None = None,
        hint: str | None = None,
    ) -> None:
        self.peer = peer
        self.name = name
        super().__init__(detail, limit=limit, retryable=retryable, hint=hint)

    def _summary(self) -> str:
        return f"the signal queue at peer {self.peer or 'unknown'} has no place for {self.name!r}"


class InternalError(HixlAioError):
    """An invariant of ours broke."""

    _hint = "This is a bug in hixl-aio: please report it, with this message."


class AbandonedTransferWarning(RuntimeWarning):
    """A cancelled task went on although its transfer has not settled: the region stays busy until it has."""


class UnclosedResourceWarning(ResourceWarning):
    """An engine or a region was dropped without `aclose()`."""
