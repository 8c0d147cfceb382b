"""What an engine knows of a fault plan; the plan itself is in `hixl_aio.testing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hixl_aio._native import NativeFaults
    from hixl_aio._runtime import Runtime

__all__ = ("FaultListener",)


class FaultListener(Protocol):
    """Whoever spoils the transport of an engine."""

    @property
    def settings(self) -> tuple[bool, bool, bool]:
        """Time is advanced by hand; what is held can be stopped; signals may get lost, and are sent again."""

    def attach(self, runtime: Runtime, native: NativeFaults) -> None:
        """The engine opens."""

    def on_caught(self, rule: int) -> None:
        """A rule has caught an operation."""

    def detach(self) -> None:
        """The engine is closed."""
