"""The parent's side of its children: starting them, talking to them, and leaving none behind."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final

from hixl_aio.demo.errors import ChildError
from hixl_aio.demo.messages import MAX_LINE, Done, Failed, Message, decode_message, encode_message
from hixl_aio.demo.process import child_command, child_environment

__all__ = ("Child", "Children")

_GRACE: Final = 1.0  # seconds a child has to end by itself once its standard input is closed
_FINISH: Final = 10.0  # seconds a child has to end after its work was done


class Child:
    """One child process."""

    def __init__(self, role: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.role = role
        self.process = process
        self._stdin = process.stdin
        self._stdout = process.stdout

    @classmethod
    async def start(cls, role: str, module: str) -> Child:
        """Start ``module`` in a session of its own: Ctrl-C at the terminal then reaches the parent alone."""
        process = await asyncio.create_subprocess_exec(
            *child_command(module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,
            limit=MAX_LINE,
        )
        return cls(role, process)

    async def send(self, message: Message) -> None:
        try:
            self._stdin.write(encode_message(message))
            await self._stdin.drain()
        except ConnectionError:
            raise await self.failure() from None

    async def messages(self) -> AsyncIterator[Message]:
        """What the child says, up to Done. Anything else that ends it is :class:`ChildError`."""
        while line := await self._stdout.readline():
            message = decode_message(line)
            if isinstance(message, Done):
                return
            if isinstance(message, Failed):
                raise ChildError(self.role, f"failed: {message.error}: {message.message}")
            yield message
        raise await self.failure()

    async def failure(self) -> ChildError:
        """Why the child is gone, after its pipes have closed."""
        try:
            async with asyncio.timeout(_GRACE):
                return ChildError(self.role, _how_it_ended(await self.process.wait()))
        except TimeoutError:
            return ChildError(self.role, "closed its pipes and lives on")

    @property
    def was_killed(self) -> bool:
        return self.process.returncode is not None and self.process.returncode < 0

    def close_input(self) -> None:
        """Ask the child to end."""
        self._stdin.close()

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()


def _how_it_ended(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended early with status {status}"


class Children:
    """The children of one run; leaving the block ends them all, within two seconds, however it is left."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    async def __aenter__(self) -> Children:
        return self

    async def start(self, role: str, module: str) -> Child:
        child = await Child.start(role, module)
        self._children.append(child)
        return child

    async def finish(self) -> None:
        """End children whose work is done; one that ends badly all the same is an error."""
        for child in self._children:
            child.close_input()
        for child in self._children:
            try:
                async with asyncio.timeout(_FINISH):
                    status = await child.process.wait()
            except TimeoutError:
                raise ChildError(child.role, f"did not end within {_FINISH:g} s of its last word") from None
            if status != 0:
                raise ChildError(child.role, _how_it_ended(status))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        killed: list[Child] = []
        try:
            for child in self._children:
                child.close_input()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE):
                    await self._wait()
            killed = [child for child in self._children if child.was_killed]  # by somebody else
        finally:
            for child in self._children:
                child.kill()
            await self._wait()
        if isinstance(error, Exception) and killed:
            raise await killed[0].failure() from error  # the cause, of which the error may be a consequence

    async def _wait(self) -> None:
        for child in self._children:
            await child.process.wait()
