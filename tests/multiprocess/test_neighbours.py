"""A stable pair beside a failing one: its operations complete, and take as long as they did before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

import pytest

from hixl_aio import (
    Engine,
    EngineOptions,
    MemoryRegion,
    Peer,
    PeerError,
    PeerRestartedError,
    TransferTimeoutError,
)
from hixl_aio.testing import ChildProcess, child_process
from tests.soak import rounds

from . import children
from .steady import Steady

pytestmark = pytest.mark.asyncio

KIB = 1 << 10
MIB = 1 << 20
ROUNDS = rounds(3, 100)
# Both windows run on a machine that does other things too. What this finds is a neighbour that waits: for a
# timeout, for what a dead process holds, for the reconnect of another.
RATIO = 10.0
SLACK = 0.02
LINKS = [
    pytest.param("shm", "allocate", id="shm"),
    pytest.param("cma", "register", id="cma"),
    pytest.param("cooperative", "register", id="cooperative"),
]


@dataclass(slots=True)
class Victim:
    """The failing pair."""

    engine: Engine
    source: MemoryRegion
    peer: Peer
    process: ChildProcess
    stack: AsyncExitStack
    arguments: dict[str, object]

    async def load(self) -> None:
        """Large puts, two at a time, until the peer is gone."""
        inbox = self.peer.region("inbox")
        with suppress(PeerError, TransferTimeoutError):
            while True:
                puts = [self.engine.put(self.source, inbox, timeout=0.1) for _ in range(2)]
                await asyncio.gather(*(put.wait() for put in puts))


async def goes_on(victim: Victim) -> None:
    """Nothing fails."""


async def is_killed(victim: Victim) -> None:
    """SIGKILL."""
    victim.process.kill()


async def is_stopped(victim: Victim) -> None:
    """SIGSTOP."""
    victim.process.stop()


async def leaves(victim: Victim) -> None:
    """It closes its engine."""
    await victim.stack.aclose()


async def restarts(victim: Victim) -> None:
    """Killed, started again at its address, noticed, connected again, used."""
    victim.process.kill()
    await victim.stack.aclose()
    again = await victim.stack.enter_async_context(child_process(children.serve, **victim.arguments))
    await again.hear()
    with pytest.raises((PeerRestartedError, PeerError)):
        await victim.engine.flush(victim.peer)
    peer = await victim.engine.connect(victim.peer.address)
    await victim.engine.put(victim.source, peer.region("inbox"))


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]


@pytest.mark.timeout(120 + 2 * ROUNDS)
@pytest.mark.parametrize("fails", [is_killed, is_stopped, leaves, restarts], ids=lambda fails: fails.__name__)
@pytest.mark.parametrize(("link", "memory"), LINKS)
async def test_a_stable_pair_notices_nothing(
    link: str, memory: str, fails: Callable[[Victim], Awaitable[None]]
) -> None:
    """All of its puts complete, with the p99 that they have beside a healthy peer, within noise."""
    arguments: dict[str, object] = {"links": [link], "memory": memory, "nbytes": 8 * MIB}
    calm: list[float] = []
    failing: list[float] = []
    async with (
        child_process(children.serve, **arguments) as stable,
        Engine(options=EngineOptions(links=(link,))) as engine,
    ):
        kept = await engine.connect((await stable.hear())["address"])
        source = await engine.register(bytearray(8 * MIB))
        inbox = kept.region("inbox")[: 256 * KIB]
        for _ in range(ROUNDS):
            async with AsyncExitStack() as stack:
                process = await stack.enter_async_context(child_process(children.serve, **arguments))
                address = (await process.hear())["address"]
                peer = await engine.connect(address)
                victim = Victim(engine, source, peer, process, stack, {**arguments, "address": address})
                load = asyncio.create_task(victim.load())
                for happens, seconds in ((goes_on, calm), (fails, failing)):
                    async with Steady(lambda: engine.put(source[: 256 * KIB], inbox).wait()) as steady:
                        await steady.goes_on(50)
                        await happens(victim)
                        await steady.goes_on(150)
                    seconds += steady.seconds
                process.kill()  # it may be stopped
                await load
    assert p99(failing) < RATIO * p99(calm) + SLACK, (p99(calm), p99(failing))
