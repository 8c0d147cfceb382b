"""The event loops that tests run on, and tasks that behave alike on all of them.

On asyncio these are native tasks and futures, so that what is tested there is asyncio itself and not a layer
above it. What needs no such care (events, timeouts, sleeping) tests take from anyio.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

import anyio
import anyio.lowlevel
import trio
import uvloop

__all__ = (
    "ASYNCIO_LOOPS",
    "CANCELLED",
    "LOOPS",
    "Promise",
    "Task",
    "Tasks",
    "gather",
    "on_trio",
    "outcomes",
    "reports",
    "run_on",
    "turns",
)

T = TypeVar("T")
Main = Callable[[], Coroutine[Any, Any, None]]

CANCELLED: Final = (asyncio.CancelledError, trio.Cancelled)


def on_trio() -> bool:
    """The code that asks runs on trio."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


# ---- loops


def _debug_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    return loop


def _eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    if sys.version_info >= (3, 12):
        loop.set_task_factory(asyncio.eager_task_factory)
    return loop


ASYNCIO_LOOPS: Final[Mapping[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": _debug_loop,
    "uvloop": uvloop.new_event_loop,
    **({"eager": _eager_loop} if sys.version_info >= (3, 12) else {}),
}
LOOPS: Final = (*ASYNCIO_LOOPS, "trio")


def run_on(loop: str, main: Main) -> None:
    """Run `main` on a loop of that kind, from the start of the loop to its end; no task may be left."""

    async def watched() -> None:
        before = _tasks()
        await main()
        if on_trio():
            await turns(3)  # a timer or follower that was called off ends in the next turn
        left = _tasks() - before
        assert not left, f"tasks are left: {left}"

    if loop == "trio":
        trio.run(watched)
        return
    with asyncio.Runner(loop_factory=ASYNCIO_LOOPS[loop]) as runner:
        runner.run(watched())


def _tasks() -> set[Any]:
    if not on_trio():
        return set(asyncio.all_tasks())
    found: set[Any] = set()
    unseen = [trio.lowlevel.current_root_task()]
    while unseen:
        task = unseen.pop()
        if task is not None:
            found.add(task)
            unseen += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found


async def turns(count: int = 1) -> None:
    """Let every task that can run do so, so many times."""
    for _ in range(count + on_trio()):  # trio runs in no order: who has just begun may come after us
        await anyio.lowlevel.checkpoint()


# ---- tasks


class Task(Generic[T]):
    """One task; what comes of it is kept until somebody asks."""

    def __init__(self) -> None:
        self.looked_at = False

    def done(self) -> bool:
        """It has ended."""
        raise NotImplementedError

    def cancel(self) -> bool:
        """Cancel it; False if it has ended."""
        raise NotImplementedError

    async def _outcome(self) -> T | BaseException:
        raise NotImplementedError

    async def outcome(self) -> T | BaseException:
        """What it returned or raised."""
        found = await self._outcome()
        self.looked_at = True
        return found

    async def result(self) -> T:
        """What it returned; raises what it raised."""
        found = await self.outcome()
        if isinstance(found, BaseException):
            raise found
        return found

    async def cancelled(self) -> bool:
        """Wait for its end: has the cancellation come out of it?"""
        return isinstance(await self.outcome(), CANCELLED)


class _AsyncioTask(Task[T]):
    def __init__(self, work: Awaitable[T]) -> None:
        super().__init__()
        self._task: asyncio.Future[T] = asyncio.ensure_future(work)

    def done(self) -> bool:
        return self._task.done()

    def cancel(self) -> bool:
        return self._task.cancel()

    async def _outcome(self) -> T | BaseException:
        await asyncio.wait([self._task])
        if self._task.cancelled():
            return asyncio.CancelledError()
        return self._task.exception() or self._task.result()


class _TrioTask(Task[T]):
    def __init__(self, work: Awaitable[T], nursery: trio.Nursery) -> None:
        super().__init__()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._found: Any = None
        nursery.start_soon(self._run, work)

    async def _run(self, work: Awaitable[T]) -> None:
        try:
            with self._scope:
                try:
                    self._found = await work
                except BaseException as error:
                    self._found = error
                    if not isinstance(error, Exception):
                        raise
        finally:
            self._ended.set()

    def done(self) -> bool:
        return self._ended.is_set()

    def cancel(self) -> bool:
        if self.done():
            return False
        self._scope.cancel()
        return True

    async def _outcome(self) -> T | BaseException:
        await self._ended.wait()
        return self._found  # type: ignore[no-any-return]


class Tasks:
    """`async with Tasks() as tasks`: waits for all; a failure that nobody looked at is raised then."""

    def __init__(self) -> None:
        self._started: list[Task[Any]] = []
        self._nursery = trio.open_nursery() if on_trio() else None
        self._opened: trio.Nursery | None = None

    async def __aenter__(self) -> Self:
        if self._nursery is not None:
            self._opened = await self._nursery.__aenter__()
        return self

    def start(self, work: Awaitable[T]) -> Task[T]:
        """Start a task."""
        task: Task[T] = _AsyncioTask(work) if self._opened is None else _TrioTask(work, self._opened)
        self._started.append(task)
        return task

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nursery is not None:
            await self._nursery.__aexit__(kind, error, trace)
        elif error is not None:
            for task in self._started:
                task.cancel()
        for task in self._started:
            looked_at = task.looked_at
            found = await task.outcome()
            if isinstance(found, Exception) and not looked_at and error is None:
                raise found


async def outcomes(*works: Awaitable[Any]) -> list[Any]:
    """What each of them returns or raises, run at the same time."""
    async with Tasks() as tasks:
        started = [tasks.start(work) for work in works]
        return [await task.outcome() for task in started]


async def gather(*works: Awaitable[Any]) -> list[Any]:
    """What each of them returns, run at the same time; raises the first failure."""
    async with Tasks() as tasks:
        started = [tasks.start(work) for work in works]
        return [await task.result() for task in started]


# ---- what the loops do in ways of their own


class Promise:
    """Something for `ready=`: on asyncio a future, which belongs to the test; on trio an object."""

    def __init__(self) -> None:
        self._future = None if on_trio() else asyncio.get_running_loop().create_future()
        self._event = trio.Event()
        self._error: Exception | None = None

    @property
    def awaitable(self) -> Awaitable[None]:
        """What is given away."""
        return self if self._future is None else self._future

    def __await__(self) -> Generator[Any, Any, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        await self._event.wait()
        if self._error is not None:
            raise self._error

    def set(self) -> None:
        """It resolves."""
        self._event.set()
        if self._future is not None:
            self._future.set_result(None)

    async def keep(self) -> None:
        """It resolves, as a task of its own."""
        self.set()

    def fail(self, error: Exception) -> None:
        """It fails."""
        self._error = error
        self._event.set()
        if self._future is not None:
            self._future.set_exception(error)


@contextmanager
def reports() -> Iterator[list[tuple[str, BaseException | None]]]:
    """What the library tells about failures that nobody else hears of: the message and the error."""
    found: list[tuple[str, BaseException | None]] = []
    if not on_trio():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, told: found.append((told["message"], told.get("exception"))))
        yield found
        loop.set_exception_handler(None)
        return

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((record.getMessage(), None if record.exc_info is None else record.exc_info[1]))

    logger, handler = logging.getLogger("hixl_aio.unhandled"), Handler()
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
