"""A child of the demo: it obeys lines on standard input, answers on standard output, dies with its parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from hixl_aio.demo.errors import HandoffError
from hixl_aio.demo.messages import MAX_LINE, Done, Failed, Message, decode_message, encode_message

__all__ = ("Channel", "ParentGoneError", "Runner", "Work", "first_leaf", "run_child")

M = TypeVar("M", bound=Message)
_STDIN: Final = 0


class ParentGoneError(Exception):
    """Standard input ended before the work did: the parent is gone or wants an end."""


class Channel:
    """The two pipes to the parent, on the running loop."""

    def __init__(
        self, reader: asyncio.StreamReader, source: asyncio.BaseTransport, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._source = source
        self._writer = writer
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._done = False
        self._ended = asyncio.Event()

    @classmethod
    async def open(cls, stdin: int, stdout: int) -> Channel:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(MAX_LINE)
        source, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(stdin, "rb", 0)
        )
        sink, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(stdout, "wb", 0)
        )
        return cls(reader, source, asyncio.StreamWriter(sink, protocol, None, loop))

    async def send(self, message: Message) -> None:
        self._writer.write(encode_message(message))
        await self._writer.drain()

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
        while line := await self._reader.readline():
            self._inbox.put_nowait(decode_message(line))
        self._ended.set()
        if not self._done:
            raise ParentGoneError

    async def close(self) -> None:
        self._source.close()
        self._writer.close()
        with contextlib.suppress(OSError):  # nobody reads any more
            await self._writer.wait_closed()


Work = Callable[[Channel], Awaitable[None]]
Runner = Callable[[Coroutine[Any, Any, int]], int]


def run_child(work: Work, runner: Runner) -> int:
    """Be a child, on ``runner``'s event loop. Returns the exit status.

    ``work`` ends with :meth:`Channel.finish`. What it raises is told to the parent.
    """
    output = os.dup(1)
    os.dup2(2, 1)  # what anybody prints must not look like a message
    return runner(_child(work, output))


async def _child(work: Work, output: int) -> int:
    channel = await Channel.open(_STDIN, output)
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(channel.listen())
            await work(channel)
    except BaseExceptionGroup as errors:
        failure = first_leaf(errors)
        if os.environ.get("HIXL_AIO_DEBUG"):
            traceback.print_exception(errors)
    if failure is not None and not isinstance(failure, ParentGoneError):
        with contextlib.suppress(OSError):
            await channel.send(Failed(type(failure).__name__, str(failure)))
    await channel.close()
    return 0 if failure is None else 1


def first_leaf(error: BaseException) -> BaseException:
    """The first error inside nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
