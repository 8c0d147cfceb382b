"""Requests of the control plane: a token goes down, one event with that token comes up.

A request that nobody waits for any more is an orphan: what it made is given back when its event arrives, so
that a cancelled call leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hixl_aio._core.gate import Gate
from hixl_aio._failures import About, from_native
from hixl_aio._native import NativeError
from hixl_aio.errors import HixlAioError, InternalError

if TYPE_CHECKING:
    from hixl_aio._records import EventTuple
    from hixl_aio._runtime import Runtime

__all__ = ("Request", "Requests")


class Request:
    """One question to native code, and its answer."""

    __slots__ = ("event", "failure", "gate", "orphan")

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.event: EventTuple | None = None
        self.failure: HixlAioError | None = None
        self.orphan: Callable[[EventTuple], None] | None = (
            None  # set: nobody waits; call this with the answer
        )


class Requests:
    """All questions that are open."""

    __slots__ = ("_open", "_runtime")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._open: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, start: Callable[[int], None], about: About | None = None) -> Request:
        """Ask: `start(token)` calls native code.

        Raises:
            HixlAioError: native code refused at once.
        """
        runtime = self._runtime
        token = runtime.ops.table.next_token()
        request = self._open[token] = Request(Gate(runtime.bridge.wake))
        try:
            start(token)
        except NativeError as error:
            del self._open[token]
            raise from_native(error, About() if about is None else about) from None
        return request

    async def ask(
        self,
        start: Callable[[int], None],
        orphan: Callable[[EventTuple], None],
        about: About | None = None,
    ) -> EventTuple:
        """Ask and wait for the answer. If the wait is cancelled, `orphan` gets the answer instead."""
        request = self.begin(start, about)
        try:
            await self._runtime.wait_gate(request.gate)
        except BaseException:
            self.disown(request, orphan)
            raise
        if request.failure is not None:
            raise request.failure
        if request.event is None:
            raise InternalError("a request was answered without an event")
        return request.event

    @staticmethod
    def disown(request: Request, orphan: Callable[[EventTuple], None]) -> None:
        """Nobody waits for the answer any more: `orphan` gets it, now or later."""
        if request.event is not None:
            orphan(request.event)
        else:
            request.orphan = orphan

    def answer(self, event: EventTuple) -> bool:
        """An event has come up that carries a token; False if nobody asked."""
        request = self._open.pop(event[1], None)
        if request is None:
            return False
        request.event = event
        request.gate.open()
        if request.orphan is not None:
            request.orphan(event)
        return True

    def fail_all(self, failure: Callable[[], HixlAioError], *, keep: Request | None = None) -> None:
        """The engine closes: whoever waits hears of it. Orphans still get their answers."""
        for request in self._open.values():
            if request is not keep and not request.gate.is_open:
                request.failure = failure()
                request.gate.open()
