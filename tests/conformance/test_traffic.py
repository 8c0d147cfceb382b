"""Random traffic from many tasks, with cancellations, deadlines, stops and fences."""

from __future__ import annotations

import random
from collections.abc import Awaitable

import anyio
import pytest

from hixl_aio import (
    Completion,
    EngineOptions,
    Get,
    HixlAioError,
    OperationState,
    Put,
    PutBlocks,
    SignalQueueFullError,
    TransferQueueFullError,
    TransferStoppedError,
    TransferTimeoutError,
)

from ..loops import CANCELLED, Promise, Tasks, turns
from .support import Pair, connected

TASKS = 12
ROUNDS = 25
SLOT = 300_000
EXPECTED = (TransferStoppedError, TransferTimeoutError)


class Traffic:
    """Everything that one run has sent and seen."""

    def __init__(self, pair: Pair, seed: int, tasks: Tasks) -> None:
        self.pair = pair
        self.tasks = tasks
        self.random = random.Random(seed)
        self.operations: list[Completion] = []
        self.signals_sent = 0

    def start(self, slot: int) -> Completion:
        """One random operation on a slot of its own."""
        near, chance = self.pair.near, self.random.random()
        nbytes = self.random.choice((0, 1, 128, 5000, 70_000, SLOT))
        local = self.source[slot * SLOT :][:nbytes]
        remote = self.remote[slot * SLOT :][:nbytes]
        timeout = self.random.choice((None, 30.0, 30.0, 0.002))
        signal = f"s{slot}" if self.random.random() < 0.5 else None
        ready = self.soon() if self.random.random() < 0.2 else None
        if chance < 0.4:
            operation = near.put(local, remote, timeout=timeout, signal=signal, ready=ready)
        elif chance < 0.6:
            signal = None
            operation = near.get(remote, local, timeout=timeout, ready=ready)
        elif chance < 0.8:
            blocks = PutBlocks(local, remote, [0, nbytes // 2], [nbytes // 2, 0], nbytes // 2)
            operation = near.batch(
                [Put(local, remote), Get(remote, local), blocks], signal=signal, ready=ready
            )
        else:
            signal = f"s{slot}"
            after = (
                self.random.choice(self.operations)
                if self.operations and self.random.random() < 0.5
                else None
            )
            operation = near.signal(self.pair.peer, signal, after=after)
        self.signals_sent += signal is not None
        self.operations.append(operation)
        return operation

    def soon(self) -> Awaitable[None]:
        """Something that resolves in a turn of its own."""
        promise = Promise()
        self.tasks.start(promise.keep())
        return promise.awaitable

    async def task(self, slot: int) -> None:
        for _ in range(ROUNDS):
            try:
                operation = self.start(slot)
            except TransferQueueFullError:
                await self.pair.near.wait_capacity(self.pair.peer)
                continue
            except SignalQueueFullError:
                await turns()
                continue
            chance = self.random.random()
            if chance < 0.1:
                self.pair.near.fence(self.pair.peer)
            if chance < 0.3:
                continue  # dropped
            waiter = self.tasks.start(operation.wait(join=chance < 0.9))
            for _ in range(self.random.randrange(4)):
                await turns()
            if chance < 0.5:
                waiter.cancel()
            elif chance < 0.6:
                operation.cancel()
            result = await waiter.outcome()
            assert result is None or isinstance(result, (*EXPECTED, *CANCELLED)), result

    async def take(self) -> int:
        """The receiver: every signal once, with sequence numbers that have no gap, up to the last."""
        sequence = self.first_sequence
        async for signal in self.pair.far.signals():
            assert signal.sequence == sequence
            if signal.name == "last":
                return sequence - self.first_sequence
            sequence += 1
        raise AssertionError("the stream has no end")

    async def say_last(self) -> None:
        """As soon as there is a place for it."""
        while True:
            try:
                await self.pair.near.signal(self.pair.peer, "last")
            except SignalQueueFullError:
                await turns()
            else:
                return

    async def run(self) -> None:
        pair = self.pair
        _, self.remote = await pair.target(SLOT * TASKS)
        self.source = await pair.source(SLOT * TASKS, 1)
        await pair.near.signal(pair.peer, "first")
        self.first_sequence = (await pair.far.wait_signal("first")).sequence + 1
        receiver = self.tasks.start(self.take())
        async with Tasks() as group:
            for slot in range(TASKS):
                group.start(self.task(slot))
        try:
            await pair.near.flush()
        except HixlAioError as error:
            assert isinstance(error, EXPECTED)  # noqa: PT017
        for operation in self.operations:
            await operation.settled()
            assert operation.done()
            assert operation.state is OperationState.SETTLED
            found = operation.exception()
            assert found is None or isinstance(found, EXPECTED), found
        with anyio.fail_after(10):
            await self.say_last()
            # One for each, in the positive or the negative form, up to the last.
            assert await receiver.result() == self.signals_sent
        assert not self.source.busy


@pytest.mark.parametrize("seed", range(2))
async def test_random_traffic_has_one_outcome_each(link: str, seed: int) -> None:
    """Few credits, a short line, few places for signals: and still nothing is lost, doubled or left busy."""
    options = EngineOptions(
        links=(link,), credits_per_peer=5, line_capacity=20, signal_capacity=16, chunk_nbytes=65_536
    )
    async with connected(options, link) as pair, Tasks() as tasks:
        traffic = Traffic(pair, seed, tasks)
        await traffic.run()
        statistics = pair.near.statistics()
        assert statistics.in_flight == statistics.busy_regions == 0
        assert statistics.native["in_flight"] == 0
