"""What a person sees on standard output: the answers in order, as they come."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from hixl_aio.demo.errors import OutputError

__all__ = ("Answers", "Output", "standard_output")

_TITLE: Final = 72  # characters of a prompt that head its answer
# A model may say anything: control characters other than tab and line feed must not reach the terminal.
_HARMLESS: Final = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (0x09, 0x0A)}


class Output:
    """A file descriptor to write text to. Writing never waits: a reader that stalls stalls nobody else."""

    def __init__(self, descriptor: int, encoding: str) -> None:
        self._descriptor = descriptor
        self._encoding = encoding
        self._texts: asyncio.Queue[str | None] = asyncio.Queue()

    def write(self, text: str) -> None:
        self._texts.put_nowait(text)

    def end(self) -> None:
        self._texts.put_nowait(None)

    async def drain(self) -> None:
        """Write what there is and what will come, until :meth:`end`."""
        while (text := await self._texts.get()) is not None:
            data = text.encode(self._encoding, "replace")
            while data:
                await self._ready()
                try:
                    data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
                except BrokenPipeError:
                    raise OutputError("nobody reads it any more") from None
                except OSError as error:
                    raise OutputError(error.strerror) from error

    async def _ready(self) -> None:
        """Wait until as much as a pipe takes at once can be written without blocking."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        if poll.poll(0):
            return
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(self._descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._descriptor)


@asynccontextmanager
async def standard_output() -> AsyncIterator[Output]:
    """Standard output; leaving the block writes the rest. Raises :class:`OutputError` for what goes wrong."""
    if sys.stdout is None:
        raise OutputError("it is closed")
    output = Output(sys.stdout.fileno(), sys.stdout.encoding)
    async with asyncio.TaskGroup() as group:
        group.create_task(output.drain())
        yield output
        output.end()


class Answers:
    """Streams answers one after the other; what comes early waits for its turn."""

    def __init__(self, prompts: tuple[str, ...], write: Callable[[str], None]) -> None:
        self._prompts = prompts
        self._write = write
        self._waiting = [""] * len(prompts)
        self._ended = [False] * len(prompts)
        self._current = 0
        self._headed = False

    def add(self, request: int, text: str) -> None:
        self._waiting[request] += text.translate(_HARMLESS)
        self._show()

    def end(self, request: int) -> None:
        self._ended[request] = True
        self._show()

    def _show(self) -> None:
        while self._current < len(self._prompts):
            text, ended = self._waiting[self._current], self._ended[self._current]
            if not text and not ended:
                return
            if not self._headed:
                self._write(f"[{self._current + 1}/{len(self._prompts)}] {self._title()}\n")
                self._headed = True
            self._write(text)
            self._waiting[self._current] = ""
            if not ended:
                return
            self._write("\n\n")
            self._current, self._headed = self._current + 1, False

    def _title(self) -> str:
        words = " ".join(self._prompts[self._current].translate(_HARMLESS).split())
        return words if len(words) <= _TITLE else words[: _TITLE - 4] + " ..."
