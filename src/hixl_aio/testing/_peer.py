"""A second process with an engine of its own, connected to one of the test's."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from hixl_aio.engine import Engine
from hixl_aio.options import EngineOptions
from hixl_aio.peer import Peer
from hixl_aio.testing._child import find_function
from hixl_aio.testing._errors import ProcessFailedError
from hixl_aio.testing._parent import Parent
from hixl_aio.testing._process import ChildProcess, Function, name_of, start_process

__all__ = ("PeerProcess", "running_peer", "start_peer")


class PeerProcess:
    """A second process that is a peer.

    Attributes:
        peer: its engine, as the test's engine sees it.
    """

    __slots__ = ("_process", "peer")

    def __init__(self, process: ChildProcess, peer: Peer) -> None:
        self._process = process
        self.peer = peer

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status; negative: the signal that killed it; None: it runs."""
        return self._process.returncode

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal. Its end is then no failure."""
        self._process.kill(number)

    def stop(self) -> None:
        """SIGSTOP; when this returns, none of its threads runs. At the end it is killed all the same."""
        self._process.stop()

    def go_on(self) -> None:
        """SIGCONT; when this returns, it runs."""
        self._process.go_on()

    async def result(self) -> Any:
        """What its function returns.

        Completion means: the function has returned, and its engine is closed.

        Cancellation: ends the wait.

        Raises:
            ProcessFailedError: it failed, or ended; with its traceback.
        """
        return await self._process.result()

    def failure(self) -> ProcessFailedError | None:
        """What it has failed with, as far as is known now; None if it has not, or was ended on purpose."""
        return self._process.failure()


async def be_peer(
    parent: Parent, options: Mapping[str, Any], target: Mapping[str, str], arguments: Mapping[str, Any]
) -> Any:
    """What that process runs: opens an engine, waits for the test's, and calls the function."""
    function = find_function(target["module"], target["file"], target["function"])
    async with Engine(
        name=target["function"], options=EngineOptions(**{**options, "links": tuple(options["links"])})
    ) as engine:
        await parent.say(engine.address)
        peer = await engine.accept()
        await parent.hear()  # it knows of the connection: only now may that end again
        try:
            return await function(engine, peer, **arguments)
        except BaseException as error:
            await parent._fail(error)  # before our engine goes: that would be noticed first
            raise


async def start_peer(
    processes: list[ChildProcess], engine: Engine, function: Function, /, **arguments: object
) -> PeerProcess:
    """Start such a process. It is in the list as soon as it exists; whoever calls this must `reap` it."""
    target = name_of(function)
    options = dataclasses.asdict(engine.options)
    process = start_process(be_peer, options=options, target=target, arguments=arguments)
    process.name = function.__qualname__
    processes.append(process)
    address = await process.hear()
    # We connect: so it is known which of our peers is that process, whoever else connects meanwhile.
    peer = await engine.connect(address)
    await process.say("go")
    return PeerProcess(process, peer)


@asynccontextmanager
async def running_peer(
    engine: Engine, function: Function, /, **arguments: object
) -> AsyncIterator[PeerProcess]:
    """Run `await function(its_engine, its_peer, **arguments)` in a new interpreter.

    `its_engine` is an engine of its own with the options of `engine`, `its_peer` is `engine` as that one sees
    it. Both are connected when this returns. What the process prints goes where the test's own output goes.

    Completion means: the process is gone and reaped, whatever happened; if its function still ran, it was
    killed.

    Cancellation: kills it.

    Args:
        engine: to connect with.
        function: a coroutine function at the top level of a module.
        arguments: what JSON can carry.

    Raises:
        ProcessFailedError: it failed; with its traceback.
        InvalidArgumentError: the function cannot be found by name, or JSON cannot carry the arguments.
    """
    processes: list[ChildProcess] = []
    failure: ProcessFailedError | None = None
    try:
        yield await start_peer(processes, engine, function, **arguments)
        failure = processes[0].failure() if processes[0].failed_unheard else None
    finally:
        for process in processes:
            process.reap()
    if failure is not None:
        raise failure
