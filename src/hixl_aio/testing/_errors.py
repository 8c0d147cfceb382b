"""What the testing tools raise."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from hixl_aio.errors import HixlAioError

__all__ = ("NotQuiescentError", "ProcessFailedError", "ending")


def ending(returncode: int | None) -> str:
    """How a process ended, in words."""
    if returncode is None:
        return "still runs"
    if returncode >= 0:
        return f"ended with status {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


class ProcessFailedError(HixlAioError, AssertionError):
    """A second process of a test raised, or ended before it had said what was expected of it.

    Attributes:
        function: what it was running.
        pid: its process id.
        returncode: its exit status; negative: the signal that killed it; None: it had not ended yet.
        kind: the name of the exception's class; empty if it said nothing.
        traceback: the traceback as the process saw it; empty if it said nothing.
    """

    _hint = "This is its traceback:"

    def __init__(
        self,
        *,
        function: str,
        pid: int,
        returncode: int | None,
        kind: str = "",
        traceback: str = "",
        detail: str = "",
    ) -> None:
        self.function = function
        self.pid = pid
        self.returncode = returncode
        self.kind = kind
        self.traceback = traceback
        hint = None if traceback else "It left no traceback; see what it wrote to its standard error."
        super().__init__(detail, hint=hint)

    def _summary(self) -> str:
        end = f"failed with {self.kind}" if self.traceback else ending(self.returncode)
        return f"process {self.pid}, running {self.function}, {end}"

    def _message(self) -> str:
        return f"{super()._message()}\n\n{self.traceback}".rstrip()


class NotQuiescentError(HixlAioError, AssertionError):
    """Something has not come to rest.

    Attributes:
        left: what, one line each.
    """

    _hint = "Await or cancel what a test starts, take the signals that it causes, close what it opens."

    def __init__(self, left: Sequence[str]) -> None:
        self.left = tuple(left)
        super().__init__()

    def _summary(self) -> str:
        return f"not everything is at rest ({len(self.left)})"

    def _message(self) -> str:
        return "\n".join((super()._message(), *(f"  - {each}" for each in self.left)))
