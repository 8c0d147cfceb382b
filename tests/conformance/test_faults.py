"""What the engine makes of a transport that misbehaves: each fault over the real links."""

from __future__ import annotations

import asyncio

import pytest

from hixl_aio import PeerLostError, PeerState
from hixl_aio.testing import FaultPlan

from .support import faulty

pytestmark = pytest.mark.asyncio


async def test_a_lost_signal_fails_the_link(link: str) -> None:
    """What came before the gap is delivered, what comes after is not, and whoever waits hears why."""
    plan = FaultPlan()
    async with faulty(link, far=plan) as pair:
        plan.drop_signal("b")
        waiting = asyncio.create_task(pair.far.wait_signal("c", peer=pair.back))
        for name in ("a", "b", "c"):
            await pair.near.signal(pair.peer, name)
        assert (await pair.far.wait_signal("a")).sequence == 1
        with pytest.raises(PeerLostError, match="signal 3 came after signal 1: 1 of its signals were lost"):
            await waiting
        assert pair.back.state is PeerState.LOST
        with pytest.raises(PeerLostError):
            await pair.far.wait_signal("b", peer=pair.back)


async def test_a_signal_that_comes_twice_is_delivered_once(link: str) -> None:
    """The second one is dropped, and the link goes on."""
    plan = FaultPlan()
    async with faulty(link, far=plan) as pair:
        twice = plan.duplicate_signal("a", count=2)
        for name in ("a", "a", "b"):
            await pair.near.signal(pair.peer, name)
        assert [(await pair.far.wait_signal(name)).sequence for name in ("a", "a", "b")] == [1, 2, 3]
        assert twice.hits == 2
        assert pair.far.statistics().unread_signals == 0
