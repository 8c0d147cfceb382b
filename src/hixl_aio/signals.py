"""Signals: small named messages that a peer sends with an operation, or alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hixl_aio._native import maker
from hixl_aio.errors import InvalidArgumentError, SignalError

if TYPE_CHECKING:
    from hixl_aio._runtime import Runtime
    from hixl_aio.peer import Peer

__all__ = ("MAX_NAME_NBYTES", "MAX_PAYLOAD_NBYTES", "Signal", "SignalStream")

MAX_NAME_NBYTES: Final = 1024
MAX_PAYLOAD_NBYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal that has arrived.

    Attributes:
        name: what it was sent under.
        payload: what came with it.
        peer: who sent it.
        sequence: its number among those that this peer sent to us; without gaps.
        error: None, or in the negative form what kept its operation from completing.
    """

    name: str
    payload: bytes
    peer: Peer
    sequence: int
    error: SignalError | None = None
    arrival: int = field(default=0, repr=False, compare=False)
    source: int = field(default=0, repr=False, compare=False)


make_signal: Final = maker(Signal, ("name", "payload", "peer", "sequence", "error", "arrival", "source"))
"""A Signal from all of its fields, in their order."""


class SignalStream(AsyncIterator[Signal]):
    """Signals that nobody waits for by name, in the order of their arrival; each goes to one iteration."""

    __slots__ = ("_runtime",)

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def __aiter__(self) -> SignalStream:
        return self

    async def __anext__(self) -> Signal:
        """The next one.

        Cancellation: ends the wait; a signal that was already in hand goes back to its place.

        Raises:
            ClosedError: the engine is closed.
        """
        return await self._runtime.mail.next_signal()


def encode_name(name: object) -> bytes:
    """A signal's name as it goes over the wire.

    Raises:
        InvalidArgumentError: no text, empty, or too long.
    """
    if type(name) is str and 0 < len(name) <= MAX_NAME_NBYTES and name.isascii():
        return name.encode()
    if not isinstance(name, str):
        raise InvalidArgumentError(argument="signal", value=type(name).__name__, expected="a str")
    encoded = name.encode("utf-8", "surrogatepass")
    if not 0 < len(encoded) <= MAX_NAME_NBYTES:
        expected = f"a name of 1 to {MAX_NAME_NBYTES} bytes of UTF-8"
        raise InvalidArgumentError(
            argument="the length of the signal's name", value=len(encoded), expected=expected
        )
    return encoded


def received_name(name: object) -> str:
    """A signal's name as its receiver sees it.

    Raises:
        InvalidArgumentError: as for `encode_name`.
    """
    if type(name) is str and 0 < len(name) <= MAX_NAME_NBYTES and name.isascii():
        return name
    return encode_name(name).decode("utf-8", "backslashreplace")


def check_payload(payload: object, most: int = MAX_PAYLOAD_NBYTES) -> bytes:
    """A signal's payload, of which the backend takes so many bytes at most.

    Raises:
        InvalidArgumentError: no bytes, or too many.
    """
    if not isinstance(payload, bytes):
        if not isinstance(payload, bytearray | memoryview):
            raise InvalidArgumentError(argument="payload", value=type(payload).__name__, expected="bytes")
        payload = bytes(payload)
    if len(payload) > most:
        expected = f"at most {most} bytes (capabilities.max_signal_payload); put larger data into a region"
        raise InvalidArgumentError(
            argument="the length of the payload", value=len(payload), expected=expected
        )
    return payload
