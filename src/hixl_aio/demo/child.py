"""A child of the demo: it obeys lines on standard input, answers on standard output, dies with its parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import IO, Any, Final, TypeVar

from hixl_aio import PeerError, TransferError
from hixl_aio.demo.channel import Channel
from hixl_aio.demo.errors import DemoError, HandoffError, first_leaf
from hixl_aio.demo.messages import Done, Failed, Message

__all__ = ("Parent", "ParentGoneError", "Runner", "Work", "claim_output", "run_child")

M = TypeVar("M", bound=Message)
_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2


class ParentGoneError(Exception):
    """Standard input ended before the work did: the parent is gone or wants an end."""


class Parent:
    """The parent, as its child sees it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._done = False
        self._knows = False
        self._ended = asyncio.Event()

    async def send(self, message: Message) -> None:
        await self._channel.send(message)

    async def receive(self, kind: type[M]) -> M:
        """The next message, which must be of this kind."""
        message = await self._inbox.get()
        if not isinstance(message, kind):
            raise HandoffError(f"{kind.__name__} was expected, not {type(message).__name__}")
        return message

    async def finish(self) -> None:
        """Say that everything is said, and wait until the parent has closed our standard input."""
        self._done = True
        await self.send(Done())
        await self._ended.wait()

    @contextlib.asynccontextmanager
    async def told_of_errors(self) -> AsyncIterator[None]:
        """Tell the parent what goes wrong inside: at once, so that it hears the cause before what follows.

        What follows when an engine closes, for one, is that its peers complain.
        """
        try:
            yield
        except Exception as error:
            await self.fail(error)
            raise

    async def fail(self, error: BaseException) -> None:
        """Say why we give up; the first time counts."""
        error = first_leaf(error)
        if self._knows or isinstance(error, ParentGoneError):
            return
        self._knows = True
        name = "" if isinstance(error, DemoError) else type(error).__name__
        with contextlib.suppress(OSError):
            await self.send(Failed(name, str(error), isinstance(error, PeerError | TransferError)))

    async def listen(self) -> None:
        """Take messages until the end, which is :class:`ParentGoneError` when we had not finished."""
        async for message in self._channel.messages():
            self._inbox.put_nowait(message)
        self._ended.set()
        if not self._done:
            if not _is_debugging():  # what breaks while everybody leaves is no news
                asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            raise ParentGoneError


Work = Callable[[Parent], Awaitable[None]]
Runner = Callable[[Coroutine[Any, Any, int]], int]


def run_child(work: Work, runner: Runner) -> int:
    """Be a child, on ``runner``'s event loop. Returns the exit status.

    ``work`` ends with :meth:`Parent.finish`. What it raises is told to the parent.
    """
    return runner(_child(work, claim_output()))


def claim_output() -> IO[bytes]:
    """Standard output for messages alone: what anybody prints goes to standard error from now on."""
    output = os.fdopen(os.dup(_STDOUT), "wb", 0)
    os.dup2(_STDERR, _STDOUT)
    return output


async def _child(work: Work, output: IO[bytes]) -> int:
    channel = await Channel.open(os.fdopen(_STDIN, "rb", 0), output)
    parent = Parent(channel)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(parent.listen())
            await work(parent)
    except BaseExceptionGroup as errors:
        if _is_debugging():
            traceback.print_exception(errors)
        await parent.fail(errors)
        return 1
    finally:
        await channel.close()
    return 0


def _is_debugging() -> bool:
    return os.environ.get("HIXL_AIO_DEBUG", "0") not in ("", "0")
