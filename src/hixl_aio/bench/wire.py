"""How the bench and its target process talk: one JSON object a line over a socket, and what each inherits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

__all__ = ("MAX_LINE", "Inheritance", "Line", "receive", "send")

MAX_LINE: Final = 32 << 20
Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What the target process gets at birth: numbers of open descriptors, and the loop to run.

    Attributes:
        loop: "asyncio" or "uvloop".
        control: a stream socket for commands.
        bare_ping, bare_pong: eventfds that a thread of the target answers.
        loop_ping, loop_pong: eventfds that the loop of the target answers.
        blocking, streams: stream sockets for what one would write without the library.
    """

    loop: str
    control: int
    bare_ping: int
    bare_pong: int
    loop_ping: int
    loop_pong: int
    blocking: int
    streams: int

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(value for value in asdict(self).values() if isinstance(value, int))

    def to_text(self) -> str:
        """As one argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Inheritance:
        """What `to_text` has made."""
        return cls(**json.loads(text))


async def send(writer: asyncio.StreamWriter, line: Line) -> None:
    """Send one line."""
    writer.write(json.dumps(line).encode() + b"\n")
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> Line | None:
    """The next line; None when the other side has closed its end."""
    text = await reader.readline()
    return json.loads(text) if text.endswith(b"\n") else None
