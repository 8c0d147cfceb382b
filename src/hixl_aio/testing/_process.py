"""Second processes for tests, from the test's side: a coroutine function in an interpreter of its own.

Starting, killing and reaping are plain synchronous calls, so that no cancellation can come between: whatever
happens, no process outlives its context manager.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import anyio

from hixl_aio.errors import InvalidArgumentError
from hixl_aio.testing._errors import ProcessFailedError
from hixl_aio.testing._wire import Wire, encode

__all__ = ("ChildProcess", "Function", "child_process", "name_of", "start_process")

_BOOTSTRAP: Final = Path(__file__).with_name("_bootstrap.py")
_PATIENCE: Final = 10.0  # seconds that a child has to end once it hears nothing more

Function = Callable[..., Coroutine[Any, Any, Any]]


def name_of(function: Function) -> dict[str, str]:
    """How another process finds a function.

    Raises:
        InvalidArgumentError: it is no coroutine function, or cannot be found by its name.
    """
    name = getattr(function, "__qualname__", "")
    if not inspect.iscoroutinefunction(function) or "<" in name or not name:
        expected = "a coroutine function at the top level of a module: another process finds it by its name"
        raise InvalidArgumentError(argument="function", value=repr(function), expected=expected)
    return {"module": function.__module__, "file": inspect.getfile(function), "function": name}


class ChildProcess:
    """A running second process, seen from the test.

    Attributes:
        name: the function that it runs.
    """

    __slots__ = (
        "_expected_to_end",
        "_failure",
        "_has_result",
        "_heard",
        "_process",
        "_result",
        "_told",
        "_wire",
        "name",
    )

    def __init__(self, name: str, process: subprocess.Popen[bytes], wire: Wire) -> None:
        self.name = name
        self._process = process
        self._wire = wire
        self._heard: list[Any] = []
        self._result: Any = None
        self._has_result = False
        self._failure: dict[str, str] | None = None
        self._expected_to_end = False  # somebody has sent it a signal
        self._told = False  # somebody has heard of its failure

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status; negative: the signal that killed it; None: it runs."""
        return self._process.poll()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal. Its end is then no failure, unless that signal is SIGCONT."""
        self._expected_to_end = number != signal.SIGCONT
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def stop(self) -> None:
        """SIGSTOP; when this returns, none of its threads runs. At the end it is killed all the same."""
        self.kill(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """SIGCONT; when this returns, it runs."""
        self.kill(signal.SIGCONT)
        os.waitid(os.P_PID, self.pid, os.WCONTINUED)

    async def say(self, value: object) -> None:
        """Tell it something: what its `parent.hear()` returns.

        Raises:
            InvalidArgumentError: JSON cannot carry it.
        """
        await self._wire.send(encode("value", {"said": value}))

    async def hear(self) -> Any:
        """The next thing that it says.

        Raises:
            ProcessFailedError: it failed, or ended; with its traceback.
        """
        while not self._heard:
            await self._next("its function has returned, and has nothing more to say")
        return self._heard.pop(0)

    async def result(self) -> Any:
        """What its function returns.

        Completion means: the function has returned. What was said and not heard stays to be heard.

        Cancellation: ends the wait.

        Raises:
            ProcessFailedError: it failed, or ended; with its traceback.
        """
        while not self._has_result:
            await self._next("")
        return self._result

    async def _next(self, after_result: str) -> None:
        """Take one more message.

        Raises:
            ProcessFailedError: there will be none.
        """
        if self._failure is None and not self._has_result:
            message = await self._wire.receive()
            if message is None:
                await self._wait(1.0)  # its socket is gone, so it will be: let the report say how
            else:
                self._sort(message)
                if self._failure is None:
                    return
        self._told = True
        raise self._failed(after_result if self._has_result else "its function has not returned")

    def _sort(self, message: dict[str, Any]) -> None:
        if "said" in message:
            self._heard.append(message["said"])
        elif "failed" in message:
            self._failure = message
        else:
            self._result, self._has_result = message["result"], True

    def _failed(self, detail: str = "") -> ProcessFailedError:
        found = self._failure or {"failed": "", "traceback": ""}
        return ProcessFailedError(
            function=self.name,
            pid=self.pid,
            returncode=self.returncode,
            kind=found["failed"],
            traceback=found["traceback"],
            detail="" if self._failure else detail,
        )

    def failure(self) -> ProcessFailedError | None:
        """What it has failed with, as far as is known now; None if it has not, or was ended on purpose."""
        while (message := self._wire.receive_now()) is not None:
            self._sort(message)
        is_lost = self.returncode is not None and not self._has_result and not self._expected_to_end
        if self._failure is not None or is_lost or (self.returncode and not self._expected_to_end):
            return self._failed("its function has not returned")
        return None

    @property
    def failed_unheard(self) -> bool:
        """It has failed, and nobody was told by `hear` or `result`."""
        return not self._told and self.failure() is not None

    # ---- the end

    async def _wait(self, seconds: float) -> bool:
        """Let it end by itself."""
        if self.returncode is not None:
            return True
        descriptor = os.pidfd_open(self.pid)
        try:
            with anyio.move_on_after(seconds):
                await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        return self.returncode is not None

    async def _end(self) -> None:
        """Let it end in good order.

        Raises:
            ProcessFailedError: it did not.
        """
        if self._expected_to_end:
            return
        self._wire.finish()
        with anyio.move_on_after(_PATIENCE):
            # It may have much to say before it ends, and would wait for us to take it.
            while (message := await self._wire.receive()) is not None:
                self._sort(message)
        if not await self._wait(_PATIENCE):
            raise self._failed(f"it has not ended within {_PATIENCE} s after the last word")
        failure = self.failure()
        if failure is not None and not self._told:
            raise failure

    def reap(self) -> None:
        """Kill it if it still runs; nothing of it is left afterwards. Idempotent."""
        self.failure()  # take what it has said
        if self.returncode is None:
            self._expected_to_end = True
            self._process.kill()
        self._process.wait()
        self._wire.close()


def start_process(function: Function, /, **arguments: object) -> ChildProcess:
    """Start a second process; whoever calls this must `reap` it.

    Raises:
        InvalidArgumentError: the function cannot be found by name, or JSON cannot carry the arguments.
    """
    order = {"path": sys.path, "arguments": arguments, **name_of(function)}
    line = encode("the arguments", order)
    ours, theirs = socket.socketpair()
    try:
        process = _spawn(theirs)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        ours.sendall(line)  # if it is gone already, whoever listens finds that out
    return ChildProcess(function.__qualname__, process, Wire(ours))


def _spawn(theirs: socket.socket) -> subprocess.Popen[bytes]:
    warnings = [flag for option in sys.warnoptions for flag in ("-W", option)]
    arguments = [str(_BOOTSTRAP), str(theirs.fileno()), str(os.getpid())]
    return subprocess.Popen(
        [sys.executable, "-P", "-X", "faulthandler", *warnings, *arguments],
        stdin=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,  # Ctrl-C at the terminal is the test's business
    )


@contextlib.asynccontextmanager
async def child_process(function: Function, /, **arguments: object) -> AsyncIterator[ChildProcess]:
    """Run `await function(parent, **arguments)` in a new interpreter; `parent` is a `Parent`.

    What it prints goes where the test's own output goes. At the end of the block it hears that nothing more
    comes (`parent.hear()` returns None) and has ten seconds to return; when the block raises, it is killed.

    Completion means: the process is gone and reaped, whatever happened.

    Cancellation: kills it.

    Args:
        function: a coroutine function at the top level of a module.
        arguments: what JSON can carry.

    Raises:
        ProcessFailedError: it failed, or did not end; with its traceback.
        InvalidArgumentError: the function cannot be found by name, or JSON cannot carry the arguments.
    """
    running = start_process(function, **arguments)
    try:
        yield running
        await running._end()
    finally:
        running.reap()
