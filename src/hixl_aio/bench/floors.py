"""The floors that are written in Python, and those of `_floors` as measures."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import socket
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Final

from hixl_aio.bench import _floors
from hixl_aio.bench.errors import TargetLostError
from hixl_aio.bench.measure import Timed

__all__ = (
    "HANDED_OVER",
    "HANDED_OVER_STREAMING",
    "LoopPing",
    "answer_blocking",
    "answer_streams",
    "awaited_bare_copy",
    "awaited_copy",
    "awaited_memmove",
    "copies",
    "copies_handed_over",
    "done_copies",
    "memcpy",
    "processes",
    "send_blocking",
    "send_streams",
)

_HEADER: Final = 8
_ACKNOWLEDGED: Final = b"\1"
_GONE: Final = "was gone in the middle of a floor"
_AT_END: Final[Iterator[Any]] = iter(())
next(_AT_END, None)

Run = Callable[[int], Coroutine[Any, Any, None]]


class _Done:
    """Awaitable, and done: what a Completion is after an inline copy."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        return _AT_END  # type: ignore[return-value]


def awaited_copy(to: memoryview, source: memoryview) -> Timed:
    """One pybind call that takes two buffers, a memcpy in it, and the await of a done awaitable.

    In a loop like the workload's.
    """
    copy, done, nbytes = _floors.copy_between, _Done(), source.nbytes

    async def run(repetitions: int) -> None:
        for _ in range(repetitions):
            copy(to, 0, source, 0, nbytes)
            await done

    return Timed(run)


def done_copies(to: memoryview, source: memoryview, count: int) -> Run:
    """So many of these calls, then as many awaits of done awaitables."""
    copy, done, nbytes = _floors.copy_between, _Done(), source.nbytes

    async def run(repetitions: int) -> None:
        for _ in range(repetitions):
            for _ in [copy(to, 0, source, 0, nbytes) for _ in range(count)]:
                await done

    return run


def awaited_bare_copy(to: int, source: int, nbytes: int) -> Timed:
    """The same with nothing but numbers: a call that would crash with wrong ones."""
    return _awaited(_floors.copy, to, source, nbytes)


def awaited_memmove(to: int, source: int, nbytes: int) -> Timed:
    """A memmove without an extension of one's own."""
    return _awaited(ctypes.memmove, to, source, nbytes)


def _awaited(copy: Callable[[int, int, int], object], to: int, source: int, nbytes: int) -> Timed:
    done = _Done()

    async def run(repetitions: int) -> None:
        for _ in range(repetitions):
            copy(to, source, nbytes)
            await done

    return Timed(run)


def copies(to: int, source: int, nbytes: int, *, cores: int) -> dict[str, Timed]:
    """A memcpy of one run with one thread, and with two where they help; with streaming stores likewise."""
    found = {"memcpy": _copy_many(to, source, nbytes, 1, streaming=False)}
    if nbytes >= _TWO_HELP and cores > 1:
        found["memcpy, 2 threads"] = _copy_many(to, source, nbytes, 2, streaming=False)
    if nbytes >= _STREAMING_HELPS and _floors.can_stream():
        found["streaming"] = _copy_many(to, source, nbytes, 1, streaming=True)
        if cores > 1:
            found["streaming, 2 threads"] = _copy_many(to, source, nbytes, 2, streaming=True)
    return found


def copies_handed_over(to: int, source: int, nbytes: int, *, cores: int) -> dict[str, Timed]:
    """The same by threads that sleep in between, awaited: what a loop that is not stalled pays."""
    found = {HANDED_OVER: _handed_over(to, source, nbytes, min(cores, 2), streaming=False)}
    if _floors.can_stream():
        found[HANDED_OVER_STREAMING] = _handed_over(to, source, nbytes, min(cores, 2), streaming=True)
    return found


def _handed_over(to: int, source: int, nbytes: int, threads: int, *, streaming: bool) -> Timed:
    crew = _floors.Crew(threads)

    async def run(repetitions: int) -> None:
        loop, fd = asyncio.get_running_loop(), crew.fileno()
        done: asyncio.Future[None] | None = None  # of the copy that is under way

        def rung() -> None:
            nonlocal done
            os.eventfd_read(fd)
            ended, done = done, None
            if ended is not None and not ended.done():
                ended.set_result(None)

        loop.add_reader(fd, rung)
        try:
            for _ in range(repetitions):
                done = loop.create_future()
                crew.copy(to, source, nbytes, streaming)
                await done
        finally:
            loop.remove_reader(fd)
            if done is not None:  # cancelled; the memory may go away next
                select.select([fd], [], [])
                os.eventfd_read(fd)

    return Timed(run)


HANDED_OVER: Final = "memcpy, handed over and awaited"
HANDED_OVER_STREAMING: Final = "streaming, handed over and awaited"
_TWO_HELP: Final = 128 << 10
_STREAMING_HELPS: Final = 1 << 20


def memcpy(to: int, source: int, nbytes: int) -> Timed:
    """A memcpy with one thread."""
    return _copy_many(to, source, nbytes, 1, streaming=False)


def _copy_many(to: int, source: int, nbytes: int, threads: int, *, streaming: bool) -> Timed:
    async def run(repetitions: int) -> None:
        _floors.copy_many(to, source, nbytes, repetitions, threads, streaming)

    return Timed(run)


def processes(pid: int, remote: int, local: int, nbytes: int, *, read: bool, cores: int) -> dict[str, Timed]:
    """process_vm_writev or process_vm_readv, with one thread, and with two where they may help."""
    call = _floors.read_process if read else _floors.write_process
    name = "process_vm_readv" if read else "process_vm_writev"

    def make(threads: int) -> Timed:
        async def run(repetitions: int) -> None:
            call(pid, remote, local, nbytes, repetitions, threads)

        return Timed(run)

    found = {name: make(1)}
    if nbytes >= _TWO_HELP and cores > 1:
        found[f"{name}, 2 threads"] = make(2)
    return found


# ---- wake-ups


class LoopPing:
    """Eventfds between two loops: whoever can read one writes the other, in a reader of the loop."""

    def __init__(self, out: int, into: int) -> None:
        self._out = out
        self._in = into
        self._left = 0
        self._over: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(into, self._answered)

    async def run(self, rounds: int) -> None:
        """So many times there and back."""
        self._left = rounds
        self._over = self._loop.create_future()
        os.eventfd_write(self._out, 1)
        await self._over

    def _answered(self) -> None:
        value = os.eventfd_read(self._in)
        if self._over is None or self._over.done():
            return
        if value >= _floors.GONE:
            self._over.set_exception(TargetLostError(_GONE))
            return
        self._left -= 1
        if self._left:
            os.eventfd_write(self._out, 1)
        else:
            self._over.set_result(None)

    def close(self) -> None:
        """Leave the loop."""
        self._loop.remove_reader(self._in)


# ---- what one would write without us


def send_blocking(channel: socket.socket, data: memoryview) -> Timed:
    """Blocking sendall; the other side answers one byte when it has everything."""
    header = data.nbytes.to_bytes(_HEADER, "little")

    async def run(repetitions: int) -> None:
        for _ in range(repetitions):
            channel.sendall(header)
            channel.sendall(data)
            if channel.recv(1) != _ACKNOWLEDGED:
                raise TargetLostError(_GONE)

    return Timed(run)


def answer_blocking(channel: socket.socket) -> None:
    """The other side of `send_blocking`, until the socket is shut. For a thread."""
    buffer = bytearray()
    while header := channel.recv(_HEADER, socket.MSG_WAITALL):
        nbytes = int.from_bytes(header, "little")
        if len(buffer) < nbytes:
            buffer = bytearray(nbytes)
        view = memoryview(buffer)[:nbytes]
        while view:
            got = channel.recv_into(view)
            if not got:
                return
            view = view[got:]
        channel.sendall(_ACKNOWLEDGED)


def send_streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: memoryview) -> Timed:
    """asyncio streams; the other side answers one byte when it has everything."""
    header = data.nbytes.to_bytes(_HEADER, "little")

    async def run(repetitions: int) -> None:
        for _ in range(repetitions):
            writer.write(header)
            writer.write(data)
            await writer.drain()
            if await reader.read(1) != _ACKNOWLEDGED:
                raise TargetLostError(_GONE)

    return Timed(run)


async def answer_streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The other side of `send_streams`, until the socket is shut."""
    try:
        while True:
            header = await reader.readexactly(_HEADER)
            await reader.readexactly(int.from_bytes(header, "little"))
            writer.write(_ACKNOWLEDGED)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        return
