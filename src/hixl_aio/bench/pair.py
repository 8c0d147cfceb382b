"""The parent's side of the target process: starting it, asking it, and leaving nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator
from typing import Any, Final

from hixl_aio._program.process import child_command, child_environment
from hixl_aio.bench import _floors
from hixl_aio.bench.errors import TargetLostError, WorkloadError
from hixl_aio.bench.floors import LoopPing
from hixl_aio.bench.measure import Timed
from hixl_aio.bench.wire import MAX_LINE, Inheritance, receive, send

__all__ = ("Pair", "pair")

_GRACE: Final = 3.0  # seconds a target has to end by itself once its control socket is closed


class Pair:
    """The target process, as the bench sees it."""

    def __init__(self, ends: contextlib.AsyncExitStack) -> None:
        self._ends = ends
        self._asking = asyncio.Lock()
        self._owed = 0  # answers that have not come yet
        self._process: subprocess.Popen[bytes]
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._pidfd: int
        self._given: Inheritance
        self.blocking: socket.socket
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]
        self.loop_ping: LoopPing

    async def start(self, loop: str) -> None:
        """Start the process, on a loop of that kind."""
        ours, theirs = self._sockets()
        bare_ping, bare_pong, loop_ping, loop_pong = self._eventfds()
        self._given = Inheritance(
            loop=loop,
            control=theirs[0].fileno(),
            bare_ping=bare_ping,
            bare_pong=bare_pong,
            loop_ping=loop_ping,
            loop_pong=loop_pong,
            blocking=theirs[1].fileno(),
            streams=theirs[2].fileno(),
        )
        self._process = _spawn(self._given)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._ends.callback(os.close, self._pidfd)
        self._ends.push_async_callback(self._end)
        for each in theirs:
            each.close()
        self._watch()
        self._reader, self._writer = await asyncio.open_connection(sock=ours[0], limit=MAX_LINE)
        self._ends.push_async_callback(_close_stream, self._writer)
        self.blocking = ours[1]
        self.streams = await asyncio.open_connection(sock=ours[2])
        self._ends.push_async_callback(_close_stream, self.streams[1])
        self.loop_ping = LoopPing(self._given.loop_ping, self._given.loop_pong)
        self._ends.callback(self.loop_ping.close)

    def _sockets(self) -> tuple[list[socket.socket], list[socket.socket]]:
        ours, theirs = [], []
        for _ in range(3):
            one, other = socket.socketpair()
            self._ends.callback(one.close)
            self._ends.callback(other.close)
            ours.append(one)
            theirs.append(other)
        return ours, theirs

    def _eventfds(self) -> list[int]:
        fds = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(4)]
        for fd in fds:
            self._ends.callback(os.close, fd)
        return fds

    def _watch(self) -> None:
        """A thread that frees whoever blocks on an eventfd when the process has gone."""
        pidfd, stop, given = self._pidfd, os.eventfd(0, os.EFD_CLOEXEC), self._given

        def watch() -> None:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.register(stop, select.POLLIN)
            if any(fd == pidfd for fd, _ in poll.poll()):
                os.eventfd_write(given.bare_pong, _floors.GONE)
                os.eventfd_write(given.loop_pong, _floors.GONE)

        thread = threading.Thread(target=watch, name="bench-watch", daemon=True)
        thread.start()

        def end() -> None:
            os.eventfd_write(stop, 1)
            thread.join()
            os.close(stop)

        self._ends.callback(end)

    async def _end(self) -> None:
        """The control socket is closed, so it ends by itself, or is killed."""
        loop, pidfd = asyncio.get_running_loop(), self._pidfd
        ended: asyncio.Future[None] = loop.create_future()
        loop.add_reader(pidfd, _resolve, ended)
        try:
            async with asyncio.timeout(_GRACE):
                await ended
        except TimeoutError:
            self._process.kill()
        finally:
            loop.remove_reader(pidfd)
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()

    # ---- asking

    @property
    def pid(self) -> int:
        """Of the target."""
        return self._process.pid

    @property
    def loss(self) -> TargetLostError | None:
        """How it has ended; None while it lives."""
        status = self._process.poll()
        if status is None:
            return None
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return TargetLostError(how)

    async def ask(self, command: str, **arguments: Any) -> Any:
        """Have a command done, and give its answer.

        Raises:
            TargetLostError: the process is gone.
            WorkloadError: the command failed.
        """
        answer = None
        async with self._asking:
            try:
                self._owed += 1
                await send(self._writer, {"do": command, "with": arguments})
                while self._owed:  # those that nobody waited for come first
                    answer = await receive(self._reader)
                    self._owed -= 1
            except ConnectionError:
                answer = None
        if answer is None:
            raise await self._why_gone()
        if "error" in answer:
            raise WorkloadError(f"command {command}", answer["error"], answer["text"])
        return answer["value"]

    async def _why_gone(self) -> TargetLostError:
        """It has closed its end: its process ends now or has ended."""
        await asyncio.to_thread(self._process.wait)
        return self.loss or TargetLostError("has closed its end")

    # ---- floors between the two

    def bare_ping(self) -> Timed:
        """Half an eventfd round trip between two threads that block in read()."""

        async def run(repetitions: int) -> None:
            if not _floors.ping(self._given.bare_ping, self._given.bare_pong, repetitions):
                raise TargetLostError("was gone in the middle of a floor")

        return Timed(run, per=2)

    def looped_ping(self) -> Timed:
        """Half an eventfd round trip between two loops."""
        return Timed(self.loop_ping.run, per=2)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _spawn(given: Inheritance) -> subprocess.Popen[bytes]:
    """It has a session of its own: Ctrl-C at the terminal reaches the parent alone."""
    return subprocess.Popen(
        child_command("hixl_aio.bench.target", given.to_text()),
        stdin=subprocess.DEVNULL,
        pass_fds=given.descriptors,
        env=child_environment(),
        start_new_session=True,
    )


async def _close_stream(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def pair(loop: str) -> AsyncIterator[Pair]:
    """A target process for a block; afterwards nothing of it is left.

    Args:
        loop: which event loop it runs.

    Raises:
        TargetLostError: it ended in the middle.
    """
    async with contextlib.AsyncExitStack() as ends:
        found = Pair(ends)
        await found.start(loop)
        try:
            yield found
        except Exception as error:
            # What breaks when the other process is gone breaks in many words; this is the cause.
            if (loss := found.loss) is not None:
                raise loss from error
            raise
