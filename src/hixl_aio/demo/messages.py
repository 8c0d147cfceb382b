"""What the parent and its children say to each other: one JSON object a line.

Times are seconds on the machine's monotonic clock, which all processes of one host share.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, get_args

from hixl_aio.demo.errors import HandoffError
from hixl_aio.demo.options import ModelName

__all__ = (
    "MAX_LINE",
    "Connect",
    "Connected",
    "Done",
    "Failed",
    "Fetched",
    "Generated",
    "Landed",
    "Listening",
    "Message",
    "Sent",
    "Setup",
    "Text",
    "Trace",
    "decode_message",
    "encode_message",
)

MAX_LINE: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Setup:
    """Parent to child, first: what to do."""

    model: ModelName
    path: str | None
    prompts: tuple[str, ...]
    max_tokens: int
    verify: bool
    backend: str
    links: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listening:
    """Decode: where it can be reached."""

    address: str


@dataclass(frozen=True, slots=True)
class Connect:
    """Parent to prefill: where decode is."""

    address: str


@dataclass(frozen=True, slots=True)
class Connected:
    """Prefill: how it reaches decode."""

    route: str


@dataclass(frozen=True, slots=True)
class Landed:
    """Decode: a request's bytes are all there, and with them its first token."""

    request: int
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """Decode: more text of a request."""

    request: int
    text: str


@dataclass(frozen=True, slots=True)
class Generated:
    """Decode: a request is finished. ``steps`` decoding steps took ``seconds``."""

    request: int
    tokens: tuple[int, ...]
    stopped: bool
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Sent:
    """Prefill: how a request was computed and sent. ``hidden``: the part of ``transfer`` during computing."""

    request: int
    prompt_tokens: int
    kv_nbytes: int
    started: float
    prefill: float
    transfer: float
    hidden: float


@dataclass(frozen=True, slots=True)
class Trace:
    """Decode or the single process: what must be equal. ``kv`` has hashes of each layer's K and V in turn."""

    request: int
    tokens: tuple[int, ...]
    kv: tuple[str, ...]
    logits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fetched:
    """Download: where the checked model file is."""

    path: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A child: why it gives up. ``error`` is empty where the message says it all.

    ``consequence``: it lost the other process, whose own end tells more.
    """

    error: str
    message: str
    consequence: bool


@dataclass(frozen=True, slots=True)
class Done:
    """A child: everything is said; it ends when its standard input does."""


Message = (
    Setup | Fetched | Listening | Connect | Connected
    | Landed | Text | Generated | Sent | Trace | Failed | Done
)  # fmt: skip
_KINDS: Final[dict[str, Callable[..., Message]]] = {kind.__name__: kind for kind in get_args(Message)}


def encode_message(message: Message) -> bytes:
    body = {"kind": type(message).__name__} | dataclasses.asdict(message)
    return json.dumps(body).encode("ascii") + b"\n"


def decode_message(line: bytes) -> Message:
    """Raises :class:`HandoffError` for anything that :func:`encode_message` did not make."""
    try:
        body = json.loads(line)
        kind = _KINDS[body.pop("kind")]
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in body.items()}
        return kind(**values)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise HandoffError(f"the line {line[:80]!r} is no message") from None
