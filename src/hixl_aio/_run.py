"""`hixl_aio.run`: a program on the best loop that is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

__all__ = ("run",)

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Run a coroutine as the whole program, on uvloop where it is installed, else on asyncio's own loop.

    For asyncio only: on trio, `trio.run(main)` does it all.

    Completion means: what `asyncio.run` means by it: the loop, its tasks and its threads are gone.

    Args:
        main: the coroutine.
        debug: asyncio's debug mode; None takes its default (PYTHONASYNCIODEBUG).

    Returns:
        What the coroutine returned.
    """
    import asyncio

    with asyncio.Runner(debug=debug, loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
