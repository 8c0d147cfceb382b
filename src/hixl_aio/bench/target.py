"""The second process: it owns the memory that is written, answers wake-ups, and does what it is told.

Run as `python -m hixl_aio.bench.target INHERITANCE` by `hixl_aio.bench.pair`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Final

from hixl_aio import Access, Engine, EngineOptions, MemoryRegion
from hixl_aio.bench import _floors
from hixl_aio.bench.floors import answer_blocking, answer_streams
from hixl_aio.bench.loops import new_loop
from hixl_aio.bench.places import address_of, anonymous, find_place
from hixl_aio.bench.resources import Ticker, make_regions, resident_nbytes
from hixl_aio.bench.wire import MAX_LINE, Inheritance, receive, send

__all__ = ("Target", "main")

Command = Callable[..., Awaitable[object]]


class Target:
    """What the second process can be told to do. Each public coroutine is a command with a JSON answer."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._regions: dict[str, MemoryRegion] = {}
        self._echo: asyncio.Task[None] | None = None
        self._crowd = contextlib.AsyncExitStack()
        self._addresses: list[str] = []
        self._ticker = Ticker()

    @property
    def engine(self) -> Engine:
        """The engine that was opened."""
        if self._engine is None:
            raise RuntimeError("open an engine first")
        return self._engine

    # ---- commands

    async def open(self, options: dict[str, Any]) -> object:
        """Open the engine, in place of the one that may be open."""
        await self.close()
        options = {**options, "links": tuple(options.get("links", ()))}
        self._engine = await Engine(options=EngineOptions(**options)).__aenter__()
        return {"address": self._engine.address, "pid": os.getpid()}

    async def close(self) -> object:
        """Close it, with all its regions."""
        await self.quiet()
        engine, self._engine = self._engine, None
        self._regions.clear()
        if engine is not None:
            await engine.aclose()
        return None

    async def region(self, label: str, nbytes: int, shared: bool) -> object:
        """Make memory that the other process may read and write, and touch all of it."""
        if shared:
            region = await self.engine.allocate(nbytes, label=label, access=Access.READ_WRITE)
        else:
            region = await self.engine.register(anonymous(nbytes), label=label, access=Access.READ_WRITE)
        self._regions[label] = region
        address = address_of(region)
        ctypes.memset(address, 0, nbytes)
        return asdict(find_place(address))

    async def drop(self, label: str) -> object:
        """Close a region."""
        await self._regions.pop(label).aclose()
        return None

    # ---- signals

    async def echo(self, label: str, with_put: bool) -> object:
        """Answer each signal "ping" of the first peer with "pong", after a put into its region or alone."""
        await self.quiet()
        self._echo = asyncio.create_task(self._answer_signals(label, with_put))
        return None

    async def quiet(self) -> object:
        """Stop answering."""
        echo, self._echo = self._echo, None
        if echo is not None:
            echo.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await echo
        return None

    async def _answer_signals(self, label: str, with_put: bool) -> None:
        engine = self.engine
        peer = next(iter(engine.peers.values()))
        await peer.refresh()
        inbox = peer.region(label)
        source = await engine.allocate(inbox.nbytes)
        while True:
            await engine.wait_signal("ping")
            if with_put:
                engine.put(source, inbox, signal="pong")
            else:
                engine.signal(peer, "pong")

    # ---- more engines

    async def crowd(self, count: int, nbytes: int) -> object:
        """Open so many engines more, each with a region "inbox". Their addresses."""
        for _ in range(count):
            engine = await self._crowd.enter_async_context(Engine())
            await engine.allocate(nbytes, label="inbox", access=Access.READ_WRITE)
            self._addresses.append(engine.address)
        return self._addresses

    async def disperse(self) -> object:
        """Close them."""
        self._addresses.clear()
        await self._crowd.aclose()
        return None

    async def regions(self, count: int, nbytes: int) -> object:
        """Make so many regions more, of this size, with numbers for labels."""
        await make_regions(self.engine, count, nbytes)
        return None

    # ---- what it costs

    async def tick(self) -> object:
        """Start a ticker on this loop."""
        self._ticker.start()
        return None

    async def gaps(self) -> object:
        """Stop it, and give the gaps between its ticks."""
        return await self._ticker.stop()

    async def usage(self) -> object:
        """Seconds of processor time, and bytes of memory."""
        return {"cpu": time.process_time(), "memory": resident_nbytes()}


def _answer_loop(given: Inheritance) -> None:
    if os.eventfd_read(given.loop_ping) < _floors.GONE:
        os.eventfd_write(given.loop_pong, 1)


async def _obey(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while (line := await receive(reader)) is not None:
        name = line["do"]
        command: Command = getattr(target, name)
        try:
            answer = {"value": await command(**line["with"])}
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        await send(writer, answer)


async def _serve(given: Inheritance) -> None:
    loop = asyncio.get_running_loop()
    control = socket.socket(fileno=given.control)
    reader, writer = await asyncio.open_connection(sock=control, limit=MAX_LINE)
    streams = await asyncio.open_connection(sock=socket.socket(fileno=given.streams), limit=_STREAM_LIMIT)
    loop.add_reader(given.loop_ping, _answer_loop, given)
    answering = asyncio.create_task(answer_streams(*streams))
    target = Target()
    try:
        await _obey(target, reader, writer)
    finally:
        loop.remove_reader(given.loop_ping)
        await target.close()
        await target.disperse()
        answering.cancel()
        for each in (writer, streams[1]):
            each.close()
            with contextlib.suppress(ConnectionError):
                await each.wait_closed()


_STREAM_LIMIT: Final = 1 << 20


def main() -> None:
    """Be the target, until the control socket is closed."""
    given = Inheritance.from_text(sys.argv[1])
    blocking = socket.socket(fileno=given.blocking)
    # They sleep in the kernel, so they cost nothing until they are asked.
    threading.Thread(target=_floors.pong, args=(given.bare_ping, given.bare_pong), daemon=True).start()
    threading.Thread(target=answer_blocking, args=(blocking,), daemon=True).start()
    with asyncio.Runner(loop_factory=new_loop(given.loop)) as runner:
        runner.run(_serve(given))


if __name__ == "__main__":
    main()
