"""Messages between a test and its second process: JSON lines over a socket, on any loop that anyio knows.

JSON, because what comes from another process is data and nothing else (INV-12).
"""

from __future__ import annotations

import json
import socket
from typing import Any, Final

import anyio

from hixl_aio.errors import InvalidArgumentError

__all__ = ("MAX_MESSAGE_NBYTES", "Wire", "encode")

MAX_MESSAGE_NBYTES: Final = 64 << 20


def encode(argument: str, value: object) -> bytes:
    """A value as one line.

    Raises:
        InvalidArgumentError: JSON has no such value, or it is too long.
    """
    try:
        line = json.dumps(value, allow_nan=True).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        expected = f"a value that JSON can carry ({error})"
        raise InvalidArgumentError(argument=argument, value=repr(value), expected=expected) from None
    if len(line) > MAX_MESSAGE_NBYTES:
        expected = f"at most {MAX_MESSAGE_NBYTES} bytes of JSON; move larger data with the engine"
        raise InvalidArgumentError(argument=argument, value=f"{len(line)} bytes", expected=expected)
    return line


class Wire:
    """One end. Whatever is cancelled, no message is torn: what is half read or half written waits here."""

    __slots__ = ("_incoming", "_outgoing", "_searched", "_socket", "ended")

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._searched = 0  # so far there is no end of a line in what has come in
        self.ended = False  # the other side has closed its end, or is gone

    async def send(self, line: bytes) -> None:
        """Send what `encode` made; silently nothing when the other side is gone."""
        self._outgoing += line
        while self._outgoing:
            try:
                del self._outgoing[: self._socket.send(self._outgoing)]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except (BrokenPipeError, ConnectionResetError):
                self._outgoing.clear()

    async def receive(self) -> dict[str, Any] | None:
        """The next message, or None at the end."""
        while (message := self.receive_now()) is None and not self.ended:
            await anyio.wait_readable(self._socket)
        return message

    def receive_now(self) -> dict[str, Any] | None:
        """The next message, if it is here already."""
        while (end := self._incoming.find(b"\n", self._searched)) < 0:
            self._searched = len(self._incoming)
            if self._searched > MAX_MESSAGE_NBYTES:
                expected = f"at most {MAX_MESSAGE_NBYTES} bytes"
                raise InvalidArgumentError(
                    argument="the length of a message", value=self._searched, expected=expected
                )
            if not self._read():
                return None
        line, self._searched = bytes(self._incoming[:end]), 0
        del self._incoming[: end + 1]
        message = json.loads(line)
        if not isinstance(message, dict):
            raise InvalidArgumentError(argument="a message", value=line[:100], expected="a JSON object")
        return message

    def _read(self) -> bool:
        """Take what is here; False if that is nothing."""
        if self.ended:
            return False
        try:
            found = self._socket.recv(1 << 20)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            found = b""
        self._incoming += found
        self.ended = not found
        return bool(found)

    def finish(self) -> None:
        """Say that nothing more comes from here."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it is gone

    def close(self) -> None:
        """Close this end."""
        self.ended = True
        self._socket.close()
