"""Nothing grows: memory, descriptors, threads, mappings and pins are what they were, however much was done.

A run warms up first, because allocators, caches and thread stacks take their share once. HIXL_AIO_SOAK=1
runs the full totals.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from hixl_aio import (
    Access,
    BatchOp,
    Completion,
    Engine,
    EngineError,
    EngineOptions,
    Get,
    HixlAioError,
    Put,
    PutBlocks,
    TransferStoppedError,
    TransferTimeoutError,
)
from hixl_aio.testing import EnginePair, check_quiescent, connected_engines

from ..soak import rounds

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(rounds(60, 1800))]

KIB = 1024
MOST_KIB = 2 * KIB  # of resident memory, beyond what the warm-up has taken
MOST_MAPPINGS = 4  # an allocator may open or close an arena


@dataclass(frozen=True, slots=True)
class Footprint:
    """What this process takes of the machine."""

    resident: int  # KiB, without what is shared with files
    descriptors: int
    threads: int
    mappings: int

    @classmethod
    def now(cls) -> Footprint:
        """Look, once garbage is gone."""
        gc.collect()
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        resident = sum(int(status[key].split()[0]) for key in ("RssAnon", "RssShmem"))
        mappings = Path("/proc/self/maps").read_text().count("\n")
        return cls(resident, len(os.listdir("/proc/self/fd")), int(status["Threads"]), mappings)

    def check_against(self, before: Footprint, what: str) -> None:
        """Fail, with the numbers, if anything has grown."""
        line = f"{what}: {before} -> {self}"
        print(line)
        assert self.descriptors == before.descriptors, line
        assert self.threads == before.threads, line
        assert self.mappings <= before.mappings + MOST_MAPPINGS, line
        assert self.resident <= before.resident + MOST_KIB, line


class Mishap(Exception):
    """What an operation is made to fail with."""


# ---- operations

NBYTES = 96 * KIB
WAVE = 50
SIZES = (0, 1, 128, 4 * KIB, 30 * KIB, NBYTES)


class Operations:
    """Waves of operations of every kind and size; one in ten is stopped, cancelled, late, or fails."""

    def __init__(self, pair: EnginePair, seed: int) -> None:
        self.pair = pair
        self.random = random.Random(seed)
        self.signals = 0
        self.ended_badly = 0

    async def prepare(self, *, shared: bool) -> None:
        near, far = self.pair.near, self.pair.far
        if shared:
            self.source = await near.allocate(NBYTES)
            self.target = await far.allocate(NBYTES, label="target", access=Access.READ_WRITE)
        else:
            self.source = await near.register(bytearray(NBYTES))
            self.target = await far.register(bytearray(NBYTES), label="target", access=Access.READ_WRITE)
        await self.pair.peer.refresh()
        self.remote = self.pair.peer.region("target")

    def start(self) -> Completion:
        near, chance, nbytes = self.pair.near, self.random.random(), self.random.choice(SIZES)
        local, remote = self.source[:nbytes], self.remote[:nbytes]
        is_bad = chance < 0.9 and self.random.random() < 0.18
        timeout = 0.0 if is_bad and self.random.random() < 0.5 else 30.0
        ready = self.failing() if is_bad and timeout else None
        signal = "s" if self.random.random() < 0.3 else None
        payload = b"x" * 100 if signal else b""
        if chance < 0.4:
            operation = near.put(local, remote, timeout=timeout, signal=signal, payload=payload, ready=ready)
        elif chance < 0.7:
            signal = None
            operation = near.get(remote, local, timeout=timeout, ready=ready)
        elif chance < 0.9:
            half = nbytes // 2
            blocks = PutBlocks(local, remote, [0, half], [half, 0], half)
            parts: list[BatchOp] = [Put(local, remote), Get(remote, local), blocks]
            operation = near.batch(parts, timeout=timeout, signal=signal, ready=ready)
        else:
            signal = "s"
            operation = near.signal(self.pair.peer, signal)
        self.signals += signal is not None
        return operation

    async def failing(self) -> None:
        raise Mishap

    async def one(self) -> None:
        operation = self.start()
        chance = self.random.random()
        if chance < 0.02:
            operation.cancel()
        elif chance < 0.04:
            waiter = asyncio.ensure_future(operation.wait())
            await asyncio.sleep(0)
            waiter.cancel()
            await asyncio.wait([waiter])
            if waiter.cancelled():
                self.ended_badly += 1
                await operation.settled()
                operation.exception()
                return
        try:
            await operation
        except HixlAioError as error:
            assert isinstance(error, TransferStoppedError | TransferTimeoutError) or isinstance(  # noqa: PT017
                error.__cause__, Mishap
            ), error
            self.ended_badly += 1

    async def run(self, count: int) -> None:
        for _ in range(count // WAVE):
            await asyncio.gather(*(self.one() for _ in range(WAVE)))
            while self.signals:
                await self.pair.far.wait_signal("s")
                self.signals -= 1


LINKS = [pytest.param("inproc", False), pytest.param("shm", True), pytest.param("cma", False)]
LINKS.append(pytest.param("cooperative", False))


@pytest.mark.parametrize(("link", "shared"), LINKS)
async def test_operations_leave_nothing(link: str, shared: bool) -> None:
    """A quarter of a million over each kind of link; the regions then close at once, so no pin was left."""
    total = rounds(5000, 250_000)
    # Slots and the bytes of a ring are used in turn, and take their page at their first use: few of them, so
    # that the warm-up reaches them all.
    options = EngineOptions(
        links=(link,),
        inline_nbytes=4 * KIB,
        chunk_nbytes=16 * KIB,
        copy_threads=2,
        max_operations=512,
        signal_capacity=64,
    )
    async with connected_engines(options) as pair:
        operations = Operations(pair, seed=1)
        await operations.prepare(shared=shared)
        await operations.run(max(total // 10, 5000))
        before, done = Footprint.now(), operations.ended_badly
        await operations.run(total)
        await check_quiescent(pair.near)
        await check_quiescent(pair.far)
        bad = operations.ended_badly - done
        Footprint.now().check_against(before, f"{total} operations over {link}, {bad} of them ended badly")
        assert bad > total // 16
        assert pair.near.statistics().native["in_flight"] == 0
        async with asyncio.timeout(1):
            await operations.target.aclose()
            await operations.source.aclose()


# ---- connections


async def connect_once(near: Engine, far: Engine, number: int) -> None:
    """Connect and leave; one in ten is cancelled, or leads nowhere."""
    if number % 20 == 3:
        with pytest.raises(HixlAioError):
            await near.connect("unix:hixl-aio-nobody-listens-here")
        return
    if number % 20 == 7:
        task = asyncio.ensure_future(near.connect(far.address))
        for _ in range(number % 3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            return
    peer = await near.connect(far.address)
    await (peer.abort() if number % 4 == 0 else peer.aclose())


async def test_connections_leave_nothing() -> None:
    """Ten thousand, each closed or torn down by the side that began."""
    total = rounds(1000, 10_000)
    async with Engine() as far, Engine() as near:
        accepting = asyncio.ensure_future(_accept_for_ever(far))
        for number in range(max(total // 10, 100)):
            await connect_once(near, far, number)
        before = await _footprint_alone(near, far)
        for number in range(total):
            await connect_once(near, far, number)
        (await _footprint_alone(near, far, descriptors=before.descriptors)).check_against(
            before, f"{total} connections"
        )
        accepting.cancel()
        await asyncio.wait([accepting])


async def _accept_for_ever(engine: Engine) -> None:
    while True:
        await engine.accept()


async def _footprint_alone(*engines: Engine, descriptors: int | None = None) -> Footprint:
    """When no engine knows a peer any more; what is torn down from afar closes descriptors a moment later.

    With `descriptors`, that moment lasts until there are so many, or ten seconds.
    """
    now = Footprint.now()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while True:
                await asyncio.sleep(0.001)
                last, now = now, Footprint.now()
                if (
                    now == last
                    and descriptors in (None, now.descriptors)
                    and not any(e.peers for e in engines)
                ):
                    break
    return now


# ---- engines


async def live_once(number: int) -> None:
    """A pair that moves something and closes; one in ten is cancelled while closing, or cannot open."""
    if number % 20 == 3:
        async with Engine() as first:
            with pytest.raises(EngineError):
                await Engine(first.address).__aenter__()
        return
    async with connected_engines() as pair:
        await pair.far.allocate(NBYTES, label="target", access=Access.WRITE)
        source = await pair.near.register(bytearray(NBYTES))
        await pair.peer.refresh()
        put = pair.near.put(source, pair.peer.region("target"), signal="there")
        if number % 20 != 7:
            await put
            await pair.far.wait_signal("there")
            return
        closing = asyncio.ensure_future(pair.near.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert pair.near.closed


async def test_engines_leave_nothing() -> None:
    """A thousand, two at a time, with a region, a connection and a put each."""
    total = rounds(100, 1000)
    for number in range(max(total // 10, 20)):
        await live_once(number)
    before = Footprint.now()
    for number in range(total // 2):
        await live_once(number)
    Footprint.now().check_against(before, f"{total} engines")
