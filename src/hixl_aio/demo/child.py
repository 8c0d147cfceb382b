"""A child of the demo: it obeys lines on standard input, answers on standard output, dies with its parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import traceback
from collections.abc import Awaitable, Callable, Coroutine
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

    async def listen(self) -> None:
        """Take messages until the end, which is :class:`ParentGoneError` when we had not finished."""
        async for message in self._channel.messages():
            self._inbox.put_nowait(message)
        self._ended.set()
        if not self._done:
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
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(parent.listen())
            await work(parent)
    except BaseExceptionGroup as errors:
        failure = first_leaf(errors)
        if os.environ.get("HIXL_AIO_DEBUG"):
            traceback.print_exception(errors)
    if failure is not None and not isinstance(failure, ParentGoneError):
        with contextlib.suppress(OSError):
            await channel.send(_failed(failure))
    await channel.close()
    return 0 if failure is None else 1


def _failed(failure: BaseException) -> Failed:
    name = "" if isinstance(failure, DemoError) else type(failure).__name__
    return Failed(name, str(failure), isinstance(failure, PeerError | TransferError))
