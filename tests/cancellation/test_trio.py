"""The lines of the tables on trio, for each of its ways to cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from hixl_aio import AbandonedTransferWarning, ClosedError, OperationState, TransferTimeoutError

from .stage import KINDS, Stage, staged
from .tables import CANNOT_STOP, OPERATIONS, Answer, row_id

pytestmark = pytest.mark.trio_only

CANCELLED = [answer for answer in OPERATIONS if answer.end == "cancelled"]
TIMED_OUT = [answer for answer in OPERATIONS if answer.end == "its own timeout"]
CLOSED = [answer for answer in OPERATIONS if answer.end == "engine closed"]
TURN = "done in the same turn of the loop"


class Sibling(Exception):
    """What the failing task of a nursery raises."""


class Scope:
    """`CancelScope.cancel()`."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()

    async def run(self, wait: Callable[[], Awaitable[None]]) -> bool:
        """Await it; has the cancellation come out of it?"""
        with self.scope:
            await wait()
        return self.scope.cancelled_caught

    def cancel(self) -> None:
        """Now."""
        self.scope.cancel()


class Deadline(Scope):
    """The deadline of a scope."""

    def cancel(self) -> None:
        self.scope.deadline = trio.current_time() - 1.0


class ScopeInScope(Scope):
    """An outer and an inner scope at once."""

    async def run(self, wait: Callable[[], Awaitable[None]]) -> bool:
        self.inner = trio.CancelScope()
        with self.scope, self.inner:
            await wait()
        return self.scope.cancelled_caught or self.inner.cancelled_caught

    def cancel(self) -> None:
        self.inner.cancel()
        self.scope.cancel()


class SiblingFails(Scope):
    """A nursery one of whose tasks fails."""

    async def run(self, wait: Callable[[], Awaitable[None]]) -> bool:
        self.fail = trio.Event()
        ended = False

        async def failing() -> None:
            await self.fail.wait()
            raise Sibling

        with pytest.RaisesGroup(Sibling):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(failing)
                await wait()
                ended = True
        return not ended

    def cancel(self) -> None:
        self.fail.set()


WAYS: tuple[type[Scope], ...] = (Scope, Deadline, ScopeInScope, SiblingFails)


def check_usable(stage: Stage) -> None:
    """The buffer is free, or the region says that it is not."""
    busy = stage.answer.usable == "when settled"
    assert stage.local.busy == busy
    assert (stage.op.state is OperationState.SETTLED) == (not busy)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("answer", CANCELLED, ids=row_id)
async def test_cancelled(answer: Answer, way: type[Scope], kind: str) -> None:
    """Whatever cancels, in whatever state: the await ends as the table says, and so do bytes and signal."""
    async with staged(answer, kind) as stage, trio.open_nursery() as nursery:
        chosen = way()
        ended = trio.Event()

        async def wait() -> None:
            try:
                await stage.op
            finally:
                check_usable(stage)

        async def awaiting() -> None:
            cancelled = await chosen.run(wait)
            # On trio a result that came first wins.
            assert cancelled or answer.state == TURN
            ended.set()

        nursery.start_soon(awaiting)
        await stage.joined()
        if stage.in_same_turn:
            stage.let_go()
        chosen.cancel()
        if answer.state.startswith("landed"):
            for _ in range(5):
                await trio.lowlevel.checkpoint()
            assert not ended.is_set()
            assert stage.op.state is OperationState.POSTED
            stage.hold.release()
        await ended.wait()
        assert (stage.op.exception() is None) == (answer.bytes == "complete")
        await stage.check_signal()
        stage.check_bytes()


@pytest.mark.parametrize("answer", TIMED_OUT, ids=row_id)
async def test_its_own_timeout(answer: Answer) -> None:
    """The deadline of the operation, with a task that awaits it."""
    async with staged(answer, "put", timeout=0.05) as stage:
        if answer.raises == "nothing":
            stage.let_go()
            await stage.op
        else:
            with pytest.raises(TransferTimeoutError):
                await stage.op
        check_usable(stage)
        stage.hold.release()
        await stage.op.settled()
        await stage.check_signal()
        stage.check_bytes()


@pytest.mark.parametrize("answer", CLOSED, ids=row_id)
@pytest.mark.filterwarnings("ignore::hixl_aio.AbandonedTransferWarning")
async def test_engine_closed(answer: Answer) -> None:
    """Closing does not wait for what can be stopped, and tears down what cannot."""
    async with staged(answer, "put", grace=0.1) as stage, trio.open_nursery() as nursery:

        async def awaiting() -> None:
            if answer.raises == "nothing":
                await stage.op
            else:
                with pytest.raises(ClosedError):
                    await stage.op

        nursery.start_soon(awaiting)
        await stage.joined()
        if stage.in_same_turn:
            stage.let_go()
        await stage.pair.near.aclose(drain_timeout=0)
        assert stage.op.state is OperationState.SETTLED
        await stage.check_signal()
        stage.check_bytes()


@pytest.mark.parametrize("answer", [row for row in CANNOT_STOP if row.end == "cancelled"], ids=row_id)
async def test_a_transport_that_cannot_stop(answer: Answer) -> None:
    """The await ends when its grace is over; the region is busy until the record comes."""
    async with staged(answer, "put", can_stop=False, grace=0.05) as stage:
        with pytest.warns(AbandonedTransferWarning, match="has not settled within"):
            with trio.move_on_after(0.01) as scope:
                await stage.op
        assert scope.cancelled_caught
        check_usable(stage)
        stage.hold.release()
        await stage.op.settled()
        assert not stage.local.busy
        await stage.check_signal()
