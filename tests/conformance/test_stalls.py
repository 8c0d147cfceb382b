"""The loop goes on while very much ends at once."""

from __future__ import annotations

from itertools import pairwise

import anyio
import anyio.lowlevel

from hixl_aio import Completion
from hixl_aio.testing import FaultPlan

from .support import faulty


async def test_a_peer_that_goes_with_a_full_line_does_not_stall_the_loop(link: str) -> None:
    """What waits is ended over several turns; so is what waits when the engine closes."""
    for close_ours in (False, True):
        plan = FaultPlan()
        async with faulty(link, near=plan, drain_timeout=0.01, cancel_grace=1.0) as pair:
            _, remote = await pair.target(8)
            source = await pair.source(8)
            plan.hold(count=None)
            ops = [pair.near.put(source, remote, timeout=None) for _ in range(8000)]
            ended: list[int] = []

            async def watch(ops: list[Completion] = ops, ended: list[int] = ended) -> None:
                while sum(op.done() for op in ops) < len(ops):
                    ended.append(sum(op.done() for op in ops))
                    await anyio.lowlevel.checkpoint()

            async with anyio.create_task_group() as group:
                group.start_soon(watch)
                await (pair.near.aclose(drain_timeout=0) if close_ours else pair.peer.abort())
            steps = [later - earlier for earlier, later in pairwise([*ended, len(ops)])]
            assert max(steps) <= 2048  # of 8000: a few slices, and the records of those that were posted
            for op in ops:
                assert op.exception() is not None
