"""Which kind of loop runs here."""

from __future__ import annotations

import sys

from hixl_aio._bridge.asyncio import AsyncioBridge, running_loop
from hixl_aio._bridge.base import Bridge
from hixl_aio.errors import UnsupportedError, WrongLoopError

__all__ = ("detect_bridge",)


def detect_bridge() -> Bridge:
    """A bridge to the running loop.

    Raises:
        WrongLoopError: no loop runs on this thread.
        UnsupportedError: a loop runs, and there is no bridge to it.
    """
    loop = running_loop()
    if loop is not None:
        return AsyncioBridge(loop)
    if _in_trio():
        raise UnsupportedError(
            feature="the trio event loop",
            hint="Use hixl_aio.run() or asyncio.run(); this version has a bridge to asyncio loops only.",
        )
    raise WrongLoopError(
        hint="Open the engine inside a coroutine: `async with Engine() as engine:` under hixl_aio.run()."
    )


def _in_trio() -> bool:
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())
