"""The parent's side of its children: starting them, listening to them, and leaving none behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from typing import Final

from hixl_aio._program.process import child_command, child_environment
from hixl_aio.demo.channel import Channel
from hixl_aio.demo.errors import ChildError, DemoError, LostError, ToldError, first_leaf
from hixl_aio.demo.messages import Done, Failed, Message

__all__ = ("Child", "Children", "Hear", "children")

_GRACE: Final = 0.75  # seconds a child has to end by itself once its standard input is closed
_FINISH: Final = 10.0  # seconds a child has to end after its work was done

Hear = Callable[[Message], None]


class Child:
    """One child process. It has a session of its own: Ctrl-C at the terminal reaches the parent alone."""

    def __init__(self, role: str, process: subprocess.Popen[bytes], channel: Channel) -> None:
        self.role = role
        self.done = asyncio.Event()  # it has said its last word
        self.ended = asyncio.Event()
        self._process = process
        self._channel = channel
        # Readable once the process has ended, whatever becomes of its pipes.
        self._descriptor = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._reap)

    @classmethod
    async def start(cls, role: str, module: str) -> Child:
        process = _spawn(module)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            return cls(role, process, await Channel.open(process.stdout, process.stdin))
        except BaseException:
            process.kill()
            process.wait()
            raise

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._process.wait()
        self.ended.set()

    async def send(self, message: Message) -> None:
        """A child that is gone is told nothing; :meth:`listen` says why it is gone."""
        with contextlib.suppress(ConnectionError):
            await self._channel.send(message)

    async def listen(self, hear: Hear) -> None:
        """Hear the child out. An end before it was done, or a bad one, is a :class:`DemoError`."""
        async for message in self._channel.messages():
            match message:
                case Done():
                    self.done.set()
                case Failed():
                    raise _told(self.role, message)
                case _:
                    hear(message)
        await self.ended.wait()
        if self._process.returncode != 0 or not self.done.is_set():
            raise self._fate()

    def ask_to_end(self) -> None:
        self._channel.finish()

    async def end(self) -> None:
        """Kill it if need be, and let go of it."""
        if not self.ended.is_set():
            self._process.kill()
            await self.ended.wait()
        await self._channel.close()

    async def reason(self) -> DemoError | None:
        """Why it ended, unless because the other one had, or because it was asked to."""
        async for message in self._channel.messages():
            if isinstance(message, Failed) and not message.consequence:
                return _told(self.role, message)
        return self._fate() if self.ended.is_set() and self._process.returncode < 0 else None

    def _fate(self) -> ChildError:
        status = self._process.returncode
        if status < 0:
            return ChildError(self.role, f"was ended by {signal.Signals(-status).name}")
        return ChildError(self.role, f"ended early with status {status}")


def _spawn(module: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        child_command(module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=child_environment(),
        start_new_session=True,
    )


def _told(role: str, failed: Failed) -> DemoError:
    """The error that a child has told."""
    if not failed.error:
        return ToldError(failed.message)
    kind = LostError if failed.consequence else ChildError
    return kind(role, f"failed: {failed.error}: {failed.message}")


class Children:
    """The children of one run."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._children: list[Child] = []

    async def start(self, role: str, module: str, hear: Hear) -> Child:
        """Start ``module``; what it says goes to ``hear``."""
        child = await Child.start(role, module)
        self._children.append(child)
        self._group.create_task(child.listen(hear))
        return child

    async def finish(self) -> None:
        """Wait until all are done, and end them."""
        for child in self._children:
            await child.done.wait()
        for child in self._children:
            child.ask_to_end()
        for child in self._children:
            try:
                async with asyncio.timeout(_FINISH):
                    await child.ended.wait()
            except TimeoutError:
                raise ChildError(child.role, f"did not end within {_FINISH:g} s of its last word") from None

    async def end(self) -> DemoError | None:
        """End them all, gently where they listen. Returns a reason for which one had ended before."""
        try:
            for child in self._children:
                child.ask_to_end()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE):
                    for child in self._children:
                        await child.ended.wait()
            reasons = [await child.reason() for child in self._children if child.ended.is_set()]
        finally:
            for child in self._children:
                await child.end()
        return next(filter(None, reasons), None)


@contextlib.asynccontextmanager
async def children() -> AsyncIterator[Children]:
    """A block with children: it ends when all of them have ended well, or with the first error.

    However it ends, it takes less than two seconds from then and leaves no process. What is raised is the
    cause: that a process was killed rather than that the others missed it.
    """
    group = asyncio.TaskGroup()
    found = Children(group)
    try:
        async with group:
            yield found
            await found.finish()
    except BaseExceptionGroup as errors:
        _, others = errors.split(LostError)
        if others is not None:
            raise first_leaf(others) from errors
        raise await found.end() or first_leaf(errors) from errors
    finally:
        await found.end()
