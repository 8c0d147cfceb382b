"""All ways in which a task that awaits can be cancelled, each set off at a moment of the test's choice."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

__all__ = ("WAYS", "TaskCancel", "Way")

_SOON: Final = 0.05


class Sibling(Exception):
    """What the failing sibling of a task group raises."""


class Way:
    """Awaits something; `cancel()` ends that in one particular way.

    After `run()` has returned, the task that ran it must be as if nobody had cancelled it, unless it was
    cancelled for good.
    """

    restores_count = True  # of cancellations that the running task has not dealt with

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def run(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Await it. Raises AssertionError if the cancellation showed in another way than it must."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Now. Effective in this turn of the loop."""
        raise NotImplementedError


class TaskCancel(Way):
    """`task.cancel()`."""

    task: asyncio.Task[None]

    async def run(self, wait: Callable[[], Awaitable[None]]) -> None:
        self.task = asyncio.create_task(_coroutine(wait))
        self.begun.set()
        try:
            await asyncio.wait([self.task])
        finally:
            assert self.task.cancelled()

    def cancel(self) -> None:
        self.task.cancel()


class TaskCancelTwice(TaskCancel):
    """An impatient canceller."""

    def cancel(self) -> None:
        self.task.cancel()
        asyncio.get_running_loop().call_soon(self.task.cancel)


class Timeout(Way):
    """`asyncio.timeout`."""

    timeout: asyncio.Timeout

    async def run(self, wait: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(None) as self.timeout:
                self.begun.set()
                await wait()
        except TimeoutError:
            return
        raise AssertionError("asyncio.timeout did not raise")

    def cancel(self) -> None:
        self.timeout.reschedule(asyncio.get_running_loop().time() - 1.0)


class WaitFor(Way):
    """`asyncio.wait_for`. It may return normally when both happen in one turn."""

    async def run(self, wait: Callable[[], Awaitable[None]]) -> None:
        self.begun.set()
        try:
            await asyncio.wait_for(_coroutine(wait), _SOON)
        except TimeoutError:
            return

    def cancel(self) -> None:
        # Its clock cannot be set: keep the loop busy until it is over.
        time.sleep(_SOON * 1.5)


class SiblingFails(Way):
    """A task group one of whose tasks fails, while another one awaits."""

    restores_count = sys.version_info >= (
        3,
        13,
    )  # where the group waits for its tasks, older ones leave it at 1

    async def run(self, wait: Callable[[], Awaitable[None]]) -> None:
        self.fail = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._fail())
                await self._both(group, wait)
        except BaseExceptionGroup as failed:
            if [type(error) for error in failed.exceptions] == [Sibling]:
                return
            raise
        raise AssertionError("the task group did not raise")

    async def _both(self, group: asyncio.TaskGroup, wait: Callable[[], Awaitable[None]]) -> None:
        group.create_task(_coroutine(wait))
        self.begun.set()

    async def _fail(self) -> None:
        await self.fail.wait()
        raise Sibling

    def cancel(self) -> None:
        self.fail.set()


class BodyOfGroup(SiblingFails):
    """A task group one of whose tasks fails, while its body awaits."""

    async def _both(self, group: asyncio.TaskGroup, wait: Callable[[], Awaitable[None]]) -> None:
        self.begun.set()
        try:
            await wait()
        except asyncio.CancelledError:
            self.restores_count = True
            raise


class AnyioScope(Way):
    """An anyio cancel scope."""

    async def run(self, wait: Callable[[], Awaitable[None]]) -> None:
        with anyio.CancelScope() as self.scope:
            self.begun.set()
            await wait()
        assert self.scope.cancelled_caught

    def cancel(self) -> None:
        self.scope.cancel()


class Nested(Way):
    """A timeout in an anyio scope in a task group whose sibling fails, and all of it at once."""

    async def run(self, wait: Callable[[], Awaitable[None]]) -> None:
        self.inner, self.middle, self.outer = Timeout(), AnyioScope(), SiblingFails()

        async def innermost() -> None:
            await self.inner.run(wait)

        async def within() -> None:
            await self.middle.run(innermost)

        async def all_of_it() -> None:
            try:
                await within()
            except AssertionError:  # an outer one was faster, and the inner ones saw a cancellation only
                raise asyncio.CancelledError from None

        running = asyncio.ensure_future(self.outer.run(all_of_it))
        await self.outer.begun.wait()
        await self.middle.begun.wait()
        await self.inner.begun.wait()
        self.begun.set()
        await running

    def cancel(self) -> None:
        self.inner.cancel()
        self.middle.cancel()
        self.outer.cancel()


async def _coroutine(wait: Callable[[], Awaitable[None]]) -> None:
    await wait()


WAYS: Final[tuple[type[Way], ...]] = (
    TaskCancel,
    TaskCancelTwice,
    Timeout,
    WaitFor,
    SiblingFails,
    BodyOfGroup,
    AnyioScope,
    Nested,
)
