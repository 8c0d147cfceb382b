"""What the KV cache layer refuses, each with the field and both values."""

from __future__ import annotations

from hixl_aio._usage_errors import HixlAioError, InvalidArgumentError

__all__ = ("KVError", "KVLayoutError", "KVMismatchError", "KVMissingError", "KVOverlapError", "KVRangeError")


class KVError(HixlAioError):
    """Base of what the KV cache layer raises of its own."""


class KVLayoutError(KVError, InvalidArgumentError):
    """A layout, or its description, cannot be as it says.

    Attributes:
        argument: the field.
        value: what it was.
        expected: what would have been right.
    """

    _hint = "Correct the field; `describe()` of the layout shows the others."


class KVRangeError(KVError, InvalidArgumentError):
    """Tokens or blocks lie outside of what a side has.

    Attributes:
        argument: tokens or blocks, and of which side.
        value: what was asked for.
        expected: what there is.
    """

    _hint = "Ask for what is there, or give the block table that holds it; nothing has moved."


class KVMismatchError(KVError, InvalidArgumentError):
    """Source and destination differ in something that moving bytes cannot convert.

    Attributes:
        field: in what.
        source: its value there.
        destination: its value there.
    """

    _hint = "Give both sides the same value: bytes are moved, never computed."

    field: str
    source: str
    destination: str

    def __init__(
        self,
        detail: str = "",
        *,
        field: str = "",
        source: object = None,
        destination: object = None,
        hint: str | None = None,
    ) -> None:
        self.field = field
        self.source = str(source)
        self.destination = str(destination)
        super().__init__(
            detail,
            argument=field,
            value=self.source,
            expected=f"{self.destination} as the other has",
            hint=hint,
        )

    def _summary(self) -> str:
        if not self.field:
            return ""
        return f"{self.field} is {self.source} at the source and {self.destination} at the destination"


class KVMissingError(KVError, InvalidArgumentError):
    """A side does not hold layers or heads that are to be moved.

    Attributes:
        argument: layers or heads.
        side: source, destination, or (of `assign`) sources.
        wanted: those that are to be moved.
        held: those that the side holds.
    """

    _hint = "Ask for what both hold; `assign` says who holds what for whom."

    side: str
    wanted: str
    held: str

    def __init__(
        self,
        detail: str = "",
        *,
        argument: str = "",
        side: str = "",
        wanted: object = None,
        held: object = None,
        hint: str | None = None,
    ) -> None:
        self.side = side
        self.wanted = str(wanted)
        self.held = str(held)
        expected = f"among {self.held}"
        super().__init__(detail, argument=argument, value=self.wanted, expected=expected, hint=hint)

    def _summary(self) -> str:
        if not self.side:
            return ""
        return f"{self.argument} wanted: {self.wanted}; held by the {self.side}: {self.held}"


class KVOverlapError(KVError, InvalidArgumentError):
    """Something would be written twice.

    Attributes:
        argument: what names it.
        value: the block, or the plane, that is written twice.
        expected: the two places that name it.
    """

    _hint = "Name each destination once."
