"""The target process: what it answers, and that its end is noticed wherever one waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from hixl_aio import HixlAioError
from hixl_aio.bench.errors import TargetLostError, WorkloadError
from hixl_aio.bench.pair import Pair, pair
from hixl_aio.bench.stage import INPROC, LINKS, Stage

Wait = Callable[[Pair], Awaitable[object]]


@pytest.mark.asyncio
async def test_commands_are_answered() -> None:
    """What a command gives comes back; what it raises comes back as an error that names it."""
    async with pair("asyncio") as found:
        assert (await found.ask("usage"))["cpu"] > 0
        with pytest.raises(WorkloadError, match="command drop"):
            await found.ask("drop", label="none")
        assert found.loss is None


@pytest.mark.asyncio
async def test_what_was_asked_and_not_waited_for_is_not_the_answer_to_the_next_command() -> None:
    """Also where it was cancelled while it waited for its turn."""
    async with pair("asyncio") as found:
        asking = [asyncio.create_task(found.ask("usage")) for _ in range(2)]
        await asyncio.sleep(0)  # the first one has asked
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)
        assert await found.ask("disperse") is None
        with pytest.raises(WorkloadError, match="command drop"):
            await found.ask("drop", label="none")


@pytest.mark.asyncio
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_pings_come_back(loop: str) -> None:
    """From the thread that blocks, and from the loop, whichever it is."""
    async with pair(loop) as found:
        await found.bare_ping().run(10)
        await found.looped_ping().run(10)


async def block(found: Pair) -> None:
    """A thread waits in the kernel, and so does the loop."""
    await found.bare_ping().run(1 << 30)


async def loop(found: Pair) -> None:
    await found.looped_ping().run(1 << 30)


async def ask(found: Pair) -> None:
    while True:
        await found.ask("usage")


@pytest.mark.asyncio
@pytest.mark.parametrize("wait", [block, loop, ask])
async def test_a_target_that_dies_is_noticed(wait: Wait) -> None:
    """Whoever waits for it goes on with an error that says how it ended."""

    async def use() -> None:
        async with pair("asyncio") as found:
            await found.looped_ping().run(1)  # it lives
            os.kill(found.pid, signal.SIGKILL)
            await wait(found)

    with pytest.raises(TargetLostError, match="was ended by SIGKILL"):
        await use()


@pytest.mark.asyncio
async def test_a_stopped_target_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot end by itself is killed."""
    monkeypatch.setattr("hixl_aio.bench.pair._GRACE", 0.01)
    async with pair("asyncio") as found:
        await found.ask("usage")
        os.kill(found.pid, signal.SIGSTOP)
    assert found.loss is not None


@contextlib.asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """A stage for a block."""
    async with pair("asyncio") as found:
        stage = Stage(found, "asyncio", quick=True)
        try:
            yield stage
        finally:
            await stage.clear()


@pytest.mark.asyncio
@pytest.mark.parametrize("link", [*LINKS, INPROC])
async def test_a_span_is_the_same_memory_on_both_sides(link: str) -> None:
    """What is put is there, through the mapping that floors copy into too, where there is one."""
    async with staged() as stage:
        span = await stage.span(link, 4096)
        assert (await stage.side(link)).peer.route[0].name == link
        assert (span.mapped_address is not None) == (link in ("shm", INPROC))
        larger = await stage.span(link, 8192)
        assert larger.local.nbytes == larger.remote.nbytes == 8192


@pytest.mark.asyncio
@pytest.mark.parametrize("link", [*LINKS, INPROC])
async def test_a_span_that_cannot_be_had_leaves_room_for_smaller_ones(link: str) -> None:
    """More than the machine has breaks one workload, not those that come after it."""
    async with staged() as stage:
        await stage.span(link, 4096)
        with pytest.raises((WorkloadError, HixlAioError, OSError)):
            await stage.span(link, 1 << 46)
        for nbytes in (64, 8192):
            assert (await stage.span(link, nbytes)).local.nbytes == nbytes


@pytest.mark.asyncio
async def test_cancelling_leaves_nothing() -> None:
    """In the middle of a floor."""

    async def use() -> None:
        async with pair("asyncio") as found:
            begun.set()
            await found.looped_ping().run(1 << 30)

    begun = asyncio.Event()
    task = asyncio.create_task(use())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
