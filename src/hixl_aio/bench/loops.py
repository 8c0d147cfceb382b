"""The event loops that the bench runs on."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from typing import Final

__all__ = ("LOOPS", "available_loops", "new_loop")

LOOPS: Final = ("asyncio", "uvloop")


def available_loops() -> tuple[str, ...]:
    """Those that are installed."""
    return LOOPS if importlib.util.find_spec("uvloop") is not None else LOOPS[:1]


def new_loop(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes a loop of that name."""
    if name == "asyncio":
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop
