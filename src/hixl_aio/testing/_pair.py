"""Two connected engines in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hixl_aio.engine import Engine
from hixl_aio.options import EngineOptions
from hixl_aio.peer import Peer
from hixl_aio.testing._faults import FaultPlan

__all__ = ("EnginePair", "connected_engines")


@dataclass(frozen=True, slots=True)
class EnginePair:
    """An engine that connected to another one, and how they see each other.

    Attributes:
        near: the one that connected.
        far: the one it connected to.
        peer: `far`, as `near` sees it.
        back: `near`, as `far` sees it.
    """

    near: Engine
    far: Engine
    peer: Peer
    back: Peer


@asynccontextmanager
async def connected_engines(
    options: EngineOptions = EngineOptions(),  # noqa: B008
    *,
    plan: FaultPlan | None = None,
) -> AsyncIterator[EnginePair]:
    """Open two engines, connect them, and close them at the end.

    Args:
        options: of both.
        plan: what goes wrong with the transport of `near`.
    """
    make = Engine if plan is None else plan.engine
    async with Engine(name="far", options=options) as far, make(name="near", options=options) as near:
        peer = await near.connect(far.address)
        yield EnginePair(near, far, peer, await far.accept())
