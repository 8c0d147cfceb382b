"""Which kind of loop runs here."""

from __future__ import annotations

import sys

from hixl_aio._bridge.asyncio import AsyncioBridge, running_loop
from hixl_aio._bridge.base import Bridge
from hixl_aio.errors import WrongLoopError

__all__ = ("detect_bridge",)


def detect_bridge() -> Bridge:
    """A bridge to the running loop.

    Raises:
        WrongLoopError: no loop runs on this thread.
    """
    loop = running_loop()
    if _in_trio_task(hosted=loop is not None):
        from hixl_aio._bridge.trio import TrioBridge

        return TrioBridge()
    if loop is not None:
        return AsyncioBridge(loop)
    raise WrongLoopError(
        hint="Open the engine inside a coroutine, `async with Engine() as engine:`, under hixl_aio.run(), "
        "asyncio.run() or trio.run()."
    )


def _in_trio_task(*, hosted: bool) -> bool:
    """`hosted`: an asyncio loop runs on this thread too, as the host of a trio run or as its guest."""
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    sniffio = sys.modules.get("sniffio") if hosted else None
    return sniffio is None or sniffio.current_async_library() == "trio"
