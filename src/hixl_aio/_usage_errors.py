"""The base of all errors, and those that say that the call was wrong. Public in `hixl_aio.errors`."""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = (
    "AccessDeniedError",
    "ClosedError",
    "EngineForkedError",
    "HixlAioError",
    "InvalidArgumentError",
    "NotContiguousError",
    "NotRegisteredError",
    "RegionBusyError",
    "StaleRegionError",
    "UsageError",
    "WrongLoopError",
    "named_region",
)

_PLAIN = (int, float, str, bytes, bool, type(None))
_MOST_CHARACTERS = 300  # of a value, in a message


def _shown(value: object) -> str:
    """The repr of a caller's value, whatever it is: refusing it must not fail on it."""
    try:
        text = repr(value)
    except Exception as error:  # an int of more digits than Python prints, a repr that raises
        text = f"<{type(value).__name__} without a repr: {type(error).__name__}>"
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"


def named_region(label: str) -> str:
    """A region in words; most have no label."""
    return f"region {label!r}" if label else "an unlabelled region"


def _restore(cls: type[HixlAioError], args: tuple[Any, ...], state: dict[str, Any]) -> HixlAioError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class HixlAioError(Exception):
    """Base of everything this library raises.

    Attributes:
        detail: what happened, from whoever noticed it first.
        hint: what to do next.
    """

    _hint: ClassVar[str] = "See the documentation of the call."

    detail: str
    hint: str

    def __init__(self, detail: str = "", *, hint: str | None = None) -> None:
        self.detail = detail
        self.hint = self._hint if hint is None else hint
        super().__init__(self._message())

    def _summary(self) -> str:
        """The fields in one phrase; empty when `detail` says it all."""
        return ""

    def _message(self) -> str:
        said = ": ".join(part for part in (self._summary(), self.detail) if part)
        said = said or type(self).__name__
        return f"{said.rstrip('.')}. {self.hint}" if self.hint else said

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__.copy())


# ---- the call was wrong


class UsageError(HixlAioError):
    """The call was wrong; nothing has moved."""


class InvalidArgumentError(UsageError, ValueError):
    """An argument has a value that the call cannot take.

    Attributes:
        argument: its name.
        value: what it was (its repr, when it is not a plain value).
        expected: what would have been right.
    """

    _hint = "Correct the argument and call again; nothing has moved."

    def __init__(
        self,
        detail: str = "",
        *,
        argument: str = "",
        value: object = None,
        expected: str = "",
        hint: str | None = None,
    ) -> None:
        self.argument = argument
        self.value = value if isinstance(value, _PLAIN) else _shown(value)
        self.expected = expected
        super().__init__(detail, hint=hint)

    def _summary(self) -> str:
        if not self.argument:
            return ""
        shown = (
            self.value if isinstance(self.value, str) and self.value.startswith("<") else _shown(self.value)
        )
        return f"{self.argument} is {shown}, expected {self.expected}"


class ClosedError(UsageError):
    """The engine, the region or the peer is closed, or not open yet.

    Attributes:
        what: the closed thing.
        state: the state it is in.
    """

    _hint = "Open a new one, and keep it open until its last use has ended."

    def __init__(
        self, detail: str = "", *, what: str = "", state: str = "closed", hint: str | None = None
    ) -> None:
        self.what = what
        self.state = state
        super().__init__(detail, hint=hint)

    def _summary(self) -> str:
        return f"{self.what} is {self.state}" if self.what else ""


class WrongLoopError(UsageError):
    """The engine belongs to another event loop.

    Attributes:
        owner: the loop that opened the engine.
        current: the loop that runs here; "none" if no loop does.
    """

    _hint = "Use the engine on the loop and thread that opened it, or open one engine for each loop."

    def __init__(
        self, detail: str = "", *, owner: str = "", current: str = "none", hint: str | None = None
    ) -> None:
        self.owner = owner
        self.current = current
        super().__init__(detail, hint=hint)

    def _summary(self) -> str:
        return f"the engine belongs to {self.owner or 'no loop'}, the running loop here is {self.current}"


class EngineForkedError(UsageError):
    """The engine was opened before this process was forked.

    Attributes:
        owner_pid: the process that opened it.
        pid: this process.
    """

    _hint = "Open a new engine in the child; the parent's engine is not affected."

    def __init__(
        self, detail: str = "", *, owner_pid: int = 0, pid: int = 0, hint: str | None = None
    ) -> None:
        self.owner_pid = owner_pid
        self.pid = pid
        super().__init__(detail, hint=hint)

    def _summary(self) -> str:
        return f"the engine belongs to process {self.owner_pid}, this is its forked child {self.pid}"


class NotRegisteredError(UsageError):
    """No live region has that name.

    Attributes:
        label: the label or id that was asked for.
        peer: the peer that was asked.
    """

    _hint = (
        "Register it there with that label and an access that is not LOCAL, then call `await peer.refresh()`."
    )

    def __init__(self, detail: str = "", *, label: str = "", peer: str = "", hint: str | None = None) -> None:
        self.label = label
        self.peer = peer
        super().__init__(detail, hint=hint)

    def _summary(self) -> str:
        return (
            f"peer {self.peer or 'unknown'} has no region {self.label!r}" if self.label or self.peer else ""
        )


class StaleRegionError(UsageError):
    """The descriptor names a region, or a life of a peer, that is over. Nothing was written.

    Attributes:
        label: the region's label.
        generation: the generation that the descriptor names.
        current: the generation that is live now, or None if it is not known.
    """

    _hint = "Take the region anew, from `peer.region(label)` or from its owner."

    def __init__(
        self,
        detail: str = "",
        *,
        label: str = "",
        generation: int = 0,
        current: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.label = label
        self.generation = generation
        self.current = current
        super().__init__(detail, hint=hint)

    def _summary(self) -> str:
        now = "no longer registered" if self.current is None else f"now at generation {self.current}"
        return f"{named_region(self.label)} of generation {self.generation} is {now}"


class RegionBusyError(UsageError):
    """Something may still touch the region, so that it cannot be closed yet.

    Attributes:
        label: the region's label.
        pins: our own operations that hold it; 0 if only peers do.
        waited: how long the call waited, in seconds.
    """

    _hint = (
        "Wait for the operations (`await op.settled()`), or abort the peer that holds them; then close again."
    )

    def __init__(
        self,
        detail: str = "",
        *,
        label: str = "",
        pins: int = 0,
        waited: float = 0.0,
        hint: str | None = None,
    ) -> None:
        self.label = label
        self.pins = pins
        self.waited = waited
        super().__init__(detail, hint=hint)

    def _summary(self) -> str:
        holders = f"{self.pins} operations of ours" if self.pins else "a peer"
        return f"{named_region(self.label)} is still held by {holders} after {self.waited:.3g} s"


class NotContiguousError(UsageError):
    """The buffer is not one contiguous run of bytes.

    Attributes:
        shape: its shape.
        strides: its strides, in bytes.
    """

    _hint = "Copy it first, or register the storage and move its runs with PutBlocks or GetBlocks."

    def __init__(
        self,
        detail: str = "",
        *,
        shape: tuple[int, ...] = (),
        strides: tuple[int, ...] = (),
        hint: str | None = None,
    ) -> None:
        self.shape = shape
        self.strides = strides
        super().__init__(detail, hint=hint)

    def _summary(self) -> str:
        return f"the buffer of shape {self.shape} has strides {self.strides} bytes, which is not one run"


class AccessDeniedError(UsageError):
    """The region does not grant this direction, or the buffer is read-only.

    Attributes:
        label: the region's label.
        granted: the access it has.
        needed: the access the call needs.
    """

    _hint = "Its owner decides: register it with the access that is needed."

    def __init__(
        self,
        detail: str = "",
        *,
        label: str = "",
        granted: str = "",
        needed: str = "",
        hint: str | None = None,
    ) -> None:
        self.label = label
        self.granted = granted
        self.needed = needed
        super().__init__(detail, hint=hint)

    def _summary(self) -> str:
        return (
            f"{named_region(self.label)} grants {self.granted or 'nothing'}, the call needs {self.needed}"
            if self.needed
            else ""
        )
