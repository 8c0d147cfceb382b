"""Brings an operation into one state of the table, and looks at what became of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal

import anyio.lowlevel

from hixl_aio import Completion, Engine, MemoryRegion, Put, RemoteRegion
from hixl_aio.testing import FaultPlan, Hold, HoldPoint
from tests.conformance.support import Pair, faulty

from .tables import Answer

__all__ = ("KINDS", "STATES", "Stage", "staged")

KINDS: Final = ("put", "get", "batch")
STATES: Final[dict[str, HoldPoint]] = {
    "waiting in line": "posted",  # another one is held, and this one has no credit
    "with the transport, nothing moved": "posted",
    "being moved": "half",
    "landed, signal not sent yet": "landed",
    "landed, signal sent": "signalled",
    "done in the same turn of the loop": "signalled",
}
_SIZE: Final = 4096
_OLD, _NEW = b"o" * _SIZE, b"n" * _SIZE


@dataclass(slots=True)
class Stage:
    """One operation in one state."""

    pair: Pair
    plan: FaultPlan
    hold: Hold
    answer: Answer
    kind: str
    source: MemoryRegion
    target: MemoryRegion
    remote: RemoteRegion
    op: Completion
    blocker: Completion | None

    @property
    def in_same_turn(self) -> bool:
        """The state in which the record is on its way."""
        return self.answer.state.startswith("done")

    @property
    def local(self) -> MemoryRegion:
        """The buffer on this side: of which the table says when it may be used."""
        return self.source

    def content(self) -> bytes:
        """The destination's bytes."""
        region = self.source if self.kind == "get" else self.target
        return bytes(region.view())

    async def reach(self) -> None:
        """Wait until the operation is where it shall be when it is ended."""
        if self.answer.state == "waiting in line":
            assert self.op.state.name == "WAITING"
        else:
            await self.hold.wait_caught()

    def let_go(self) -> None:
        """Its record comes, without a turn of the loop."""
        before = self.pair.near.statistics().native["completed"]
        assert self.hold.release() == 1
        limit = time.monotonic() + 10.0
        while self.pair.near.statistics().native["completed"] == before:
            assert time.monotonic() < limit, "the record did not come"

    async def joined(self) -> None:
        """Wait until a task awaits it."""
        operation = self.op._operation
        for _ in range(20):
            if operation is None or operation.joined:
                return
            await anyio.lowlevel.checkpoint()
        raise AssertionError("nobody awaits it")

    def check_bytes(self) -> None:
        """The destination is as the table says."""
        found = self.content()
        match self.answer.bytes:
            case "unchanged":
                assert found == _OLD
            case "complete":
                assert found == _NEW
            case "undefined":
                assert all(byte in (_OLD[0], _NEW[0]) for byte in found)
            case other:
                raise AssertionError(other)

    async def check_signal(self) -> None:
        """The peer has got the signal that the table says."""
        if self.kind == "get":
            return
        if self.answer.signal == "none":
            assert self.pair.far.statistics().unread_signals == 0
            return
        signal = await self.pair.far.wait_signal("done")
        assert (signal.error is None) == (self.answer.signal == "positive")

    async def finish(self) -> None:
        """Let everything end that is still held."""
        for _ in range(2):
            self.hold.release()
        if self.blocker is not None:
            await self.blocker.settled()
        await self.op.settled()


def _start(
    engine: Engine, kind: str, source: MemoryRegion, remote: RemoteRegion, timeout: float | None
) -> Completion:
    match kind:
        case "put":
            return engine.put(source, remote, signal="done", timeout=timeout)
        case "get":
            return engine.get(remote, source, timeout=timeout)
        case _:
            half = _SIZE // 2
            parts = [Put(source[:half], remote[:half]), Put(source[half:], remote[half:])]
            return engine.batch(parts, signal="done", timeout=timeout)


@asynccontextmanager
async def staged(
    answer: Answer,
    kind: str,
    *,
    link: str = "shm",
    timeout: float | None = None,  # noqa: ASYNC109  (the operation's own)
    can_stop: bool = True,
    clock: Literal["real", "manual"] = "real",
    grace: float = 5.0,
) -> AsyncIterator[Stage]:
    """An operation on its way to the state that the answer is about."""
    plan = FaultPlan(can_stop=can_stop, clock=clock)
    in_line = answer.state == "waiting in line"
    async with faulty(
        link, near=plan, credits_per_peer=1 if in_line else 8, cancel_grace=grace, drain_timeout=2.0
    ) as pair:
        target, remote = await pair.target(_SIZE)
        source = await pair.source(_SIZE)
        spare = await pair.source(1)
        here, there = (_OLD, _NEW) if kind == "get" else (_NEW, _OLD)
        source.view()[:], target.view()[:] = here, there
        hold = plan.hold(at=STATES[answer.state])
        blocker = None
        if in_line:
            aside = await pair.far.allocate(1, label="aside", access=target.access)
            await pair.peer.refresh()
            blocker = pair.near.put(spare, pair.peer.region(aside.label))
            await hold.wait_caught()
        op = _start(pair.near, kind, source, remote, timeout)
        stage = Stage(pair, plan, hold, answer, kind, source, target, remote, op, blocker)
        await stage.reach()
        yield stage
        await stage.finish()


Waiting = Callable[[], Awaitable[None]]
