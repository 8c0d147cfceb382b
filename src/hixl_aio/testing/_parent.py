"""The test, as its second process sees it."""

from __future__ import annotations

import traceback
from typing import Any

from hixl_aio.testing._wire import Wire, encode

__all__ = ("Parent",)


class Parent:
    """The process that started this one; the first argument of what `child_process` runs."""

    __slots__ = ("_told", "_wire")

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._told = False

    async def say(self, value: object) -> None:
        """Tell the test something: what its `hear()` returns.

        Raises:
            InvalidArgumentError: JSON cannot carry it.
        """
        await self._wire.send(encode("value", {"said": value}))

    async def hear(self) -> Any | None:
        """The next thing the test says; None when it will say nothing more."""
        message = await self._wire.receive()
        return None if message is None else message["said"]

    async def _return(self, value: object) -> None:
        await self._wire.send(encode("what the function returned", {"result": value}))

    async def _fail(self, error: BaseException) -> None:
        """Once, as early as possible: before an engine that goes away makes the test fail elsewhere."""
        if not self._told:
            self._told = True
            text = "".join(traceback.format_exception(error))
            message = {"failed": type(error).__name__, "traceback": text}
            await self._wire.send(encode("the traceback", message))
