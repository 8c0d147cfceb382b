"""Signals of their own that wait for something: the table says what the peer hears."""

from __future__ import annotations

import asyncio

import pytest

from hixl_aio import ClosedError, OperationState, SignalError
from hixl_aio.testing import FaultPlan
from tests.conformance.support import faulty

from .tables import SIGNALS, SignalAnswer, row_id
from .ways import WAYS, Way

pytestmark = pytest.mark.asyncio

CANCELLED = [answer for answer in SIGNALS if answer.end == "cancelled"]
CLOSED = [answer for answer in SIGNALS if answer.end == "engine closed"]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("answer", CANCELLED, ids=row_id)
async def test_cancelled(answer: SignalAnswer, way: type[Way]) -> None:
    """The negative form goes out at once, and what it waited for goes on."""
    plan = FaultPlan()
    async with faulty("shm", near=plan) as pair:
        held = plan.hold()
        _, remote = await pair.target(8)
        op = pair.near.put(await pair.source(8), remote)
        signal = pair.near.signal(pair.peer, "s", b"1", after=op)
        assert signal.state is OperationState.WAITING

        async def wait() -> None:
            await signal

        chosen = way()
        running = asyncio.create_task(chosen.run(wait))
        await chosen.begun.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        chosen.cancel()
        await running
        arrived = await pair.far.wait_signal("s")
        assert isinstance(arrived.error, SignalError) == (answer.signal == "negative")
        assert (arrived.payload, signal.state) == (b"1", OperationState.SETTLED)
        await held.wait_caught()
        held.release()
        await op
        assert pair.far.statistics().unread_signals == 0


@pytest.mark.parametrize("answer", CLOSED, ids=row_id)
async def test_engine_closed(answer: SignalAnswer) -> None:
    """Who waits for it hears of it before the connection ends."""
    plan = FaultPlan()
    async with faulty("shm", near=plan) as pair:
        plan.hold()
        _, remote = await pair.target(8)
        op = pair.near.put(await pair.source(8), remote)
        signal = pair.near.signal(pair.peer, "s", after=op)
        waiting = asyncio.create_task(signal.wait())
        await asyncio.sleep(0)
        await pair.near.aclose(drain_timeout=0)
        with pytest.raises(ClosedError):
            await waiting
        arrived = await pair.far.wait_signal("s")
        assert (arrived.error is not None) == (answer.signal == "negative")
        assert isinstance(op.exception(), ClosedError)
