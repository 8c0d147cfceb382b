"""One rule of a fault plan, checked, as native code takes it."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, TypedDict

from hixl_aio import _native
from hixl_aio._status import Status
from hixl_aio.completion import OperationKind
from hixl_aio.errors import InvalidArgumentError
from hixl_aio.peer import Peer

__all__ = ("HoldPoint", "Which", "WhichOne", "make_rule")

HoldPoint: TypeAlias = Literal["posted", "half", "landed", "signalled"]
"""Where a held operation waits: with the transport, nothing has moved; half of its bytes have; all have, and
its signal has not been sent; its signal has been sent, and its record has not come."""


class WhichOne(TypedDict, total=False):
    """Which operations a rule picks that picks a fixed number of them.

    Attributes:
        kind: of which kind; None, the default: all but bare signals.
        peer: with whom; None, the default: with anybody.
        min_nbytes: those that move at least so many bytes; 0 by default.
        skip: let so many pass first; 0 by default.
    """

    kind: OperationKind | None
    peer: Peer | None
    min_nbytes: int
    skip: int


class Which(WhichOne, total=False):
    """Which operations a rule picks, and how many.

    Attributes:
        count: pick so many, 1 by default; None: all.
    """

    count: int | None


_EVERY: Final = 0xFFFFFFFF
# What a transport can say of an operation, and what it can answer when it is given one.
_FAILURES: Final = (
    Status.FAILED,
    Status.LOST,
    Status.STOPPED,
    Status.PEER_LOST,
    Status.PEER_CLOSED,
    Status.STALE_REGION,
    Status.RESOURCE_EXHAUSTED,
    Status.INTERNAL,
)
_REFUSALS: Final = (
    Status.FAILED,
    Status.PEER_LOST,
    Status.PEER_CLOSED,
    Status.STALE_REGION,
    Status.NO_LINK,
    Status.QUEUE_FULL,
    Status.SIGNAL_QUEUE_FULL,
    Status.RESOURCE_EXHAUSTED,
)
_KINDS: Final = {
    OperationKind.PUT: _native.PUT,
    OperationKind.GET: _native.GET,
    OperationKind.BATCH: _native.BATCH,
    OperationKind.SIGNAL: _native.SIGNAL,
}


def make_rule(
    action: str,
    which: Which,
    *,
    at: HoldPoint = "posted",
    signal: str = "",
    status: Status = Status.FAILED,
    quiescent: bool = True,
    can_stop: bool = True,
    seconds: float = 0.0,
    window: int = 0,
) -> tuple[Any, ...]:
    """The arguments of `NativeFaults.add_rule`.

    Raises:
        InvalidArgumentError: names the argument.
    """
    if at not in _native.FAULT_POINTS:
        raise InvalidArgumentError(
            argument="at", value=at, expected="one of " + ", ".join(_native.FAULT_POINTS)
        )
    kind, peer_id, min_nbytes, skip, count = _matching(action, **which)
    if not isinstance(signal, str):
        raise InvalidArgumentError(argument="name", value=signal, expected="a str")
    for name, flag in (("quiescent", quiescent), ("can_stop", can_stop)):
        if not isinstance(flag, bool):
            raise InvalidArgumentError(argument=name, value=flag, expected="True or False")
    possible = _REFUSALS if action == "refuse" else _FAILURES
    if not isinstance(status, Status) or status not in possible:
        names = ", ".join(one.name for one in possible)
        raise InvalidArgumentError(argument="status", value=status, expected=f"one of {names}")
    return (
        _native.FAULT_ACTIONS[action],
        _native.FAULT_POINTS[at],
        kind,
        peer_id,
        min_nbytes,
        signal,
        skip,
        count,
        int(status),
        quiescent,
        can_stop,
        seconds,
        window,
    )


def _matching(
    action: str,
    *,
    kind: OperationKind | None = None,
    peer: Peer | None = None,
    min_nbytes: int = 0,
    skip: int = 0,
    count: int | None = 1,
) -> tuple[int, int, int, int, int]:
    """What `Which` says, checked, as numbers in the same order."""
    if kind is not None and kind not in _KINDS:
        raise InvalidArgumentError(argument="kind", value=kind, expected="an OperationKind, or None")
    if kind is OperationKind.SIGNAL and action != "refuse":
        expected = "a transfer: a signal of its own is over within its call, and can only be refused"
        raise InvalidArgumentError(argument="kind", value=kind, expected=expected)
    if peer is not None and not isinstance(peer, Peer):
        raise InvalidArgumentError(argument="peer", value=peer, expected="a Peer, or None")
    for name, value in (("min_nbytes", min_nbytes), ("skip", skip), ("count", count or 0)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _EVERY:
            expected = f"an integer from 0 to {_EVERY - 1}"
            raise InvalidArgumentError(argument=name, value=value, expected=expected)
    return (
        -1 if kind is None else _KINDS[kind],
        0 if peer is None else peer._id,
        min_nbytes,
        skip,
        _EVERY if count is None else count,
    )
