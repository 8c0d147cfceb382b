"""Second processes for tests: a function of `children.py` in an interpreter of its own.

Tracebacks travel back.

A child speaks JSON lines: what it `say`s on standard output, what it `hear`s on standard input. It ends when
its standard input ends, so no child outlives its test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Self

CHILDREN = Path(__file__).with_name("children.py")


class ChildFailed(AssertionError):
    """A child ended with a traceback of its own."""


class Child:
    """One running child, seen from the test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._killed = False

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    async def hear(self) -> dict[str, Any]:
        """The next thing the child says."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise ChildFailed(await self._traceback())
        heard = json.loads(line)
        assert isinstance(heard, dict)
        return heard

    def say(self, **message: object) -> None:
        """Tell the child something."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def stop(self) -> None:
        """SIGSTOP; when this returns, none of its threads runs."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """SIGCONT; when this returns, it runs."""
        os.kill(self.pid, signal.SIGCONT)
        os.waitid(os.P_PID, self.pid, os.WCONTINUED)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; the child's end is then expected."""
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def expect_end(self) -> None:
        """The kernel will kill it."""
        self._killed = True

    async def _traceback(self) -> str:
        assert self._process.stderr is not None
        text = (await self._process.stderr.read()).decode(errors="replace")
        return f"child {self.pid} ended with {await self._process.wait()}:\n{text}"

    async def end(self) -> None:
        """Close its input and wait; a traceback of the child fails the test, unless it was killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self._process.stdin.wait_closed()
        if self._killed:
            self.kill()
            await self._process.wait()
        report = await self._traceback()
        assert self._process.stdout is not None
        await self._process.stdout.read()  # to its end: else its pipe may outlive the loop
        if self._process.returncode != 0 and not self._killed:
            raise ChildFailed(report)


@contextlib.asynccontextmanager
async def child(function: str, **arguments: object) -> AsyncIterator[Child]:
    """Run `children.<function>(**arguments)` in a new interpreter."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "error",
        str(CHILDREN),
        function,
        json.dumps(arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    running = Child(process)
    try:
        yield running
    except BaseException:
        running.kill()
        with contextlib.suppress(ChildFailed):
            await running.end()
        raise
    await running.end()


class Steady:
    """Does the same over and over beside what fails, and must never fail itself."""

    def __init__(self, once: Callable[[], Awaitable[None]]) -> None:
        self.seconds: list[float] = []  # how long each time took
        self._once = once
        self._target: tuple[int, asyncio.Event] | None = None
        self._task = asyncio.ensure_future(self._run())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Whatever went wrong in it is raised."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            started = time.perf_counter()
            await self._once()
            self.seconds.append(time.perf_counter() - started)
            if self._target is not None and len(self.seconds) >= self._target[0]:
                self._target[1].set()
                self._target = None
            await asyncio.sleep(0)

    async def goes_on(self, count: int) -> None:
        """It is done so often again."""
        reached = asyncio.Event()
        self._target = (len(self.seconds) + count, reached)
        waiting = asyncio.ensure_future(reached.wait())
        await asyncio.wait((waiting, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await self._task
