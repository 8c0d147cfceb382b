"""Two connected engines, and memory that every kind of link reaches."""

from __future__ import annotations

import mmap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from hixl_aio import Access, Engine, EngineOptions, MemoryRegion, Peer, RemoteRegion
from hixl_aio.testing import FaultPlan

LINKS: Final = ("inproc", "shm", "cma", "cooperative")


@dataclass(frozen=True, slots=True)
class Pair:
    """An initiator `near` and a target `far`, and how they see each other."""

    near: Engine
    far: Engine
    peer: Peer
    back: Peer
    link: str

    async def target(
        self, nbytes: int, *, label: str = "target", access: Access = Access.READ_WRITE
    ) -> tuple[MemoryRegion, RemoteRegion]:
        """A region of the target, from both sides."""
        region = await memory(self.far, self.link, nbytes, label=label, access=access)
        await self.peer.refresh()
        return region, self.peer.region(label)

    async def source(self, nbytes: int, fill: int | None = None) -> MemoryRegion:
        """A region of the initiator."""
        region = await memory(self.near, self.link, nbytes)
        if fill is not None:
            region.view()[:] = bytes([fill]) * nbytes
        return region


async def memory(
    engine: Engine, link: str, nbytes: int, *, label: str | None = None, access: Access = Access.LOCAL
) -> MemoryRegion:
    """Memory of the kind that the link is for: allocated for shm, anybody's for the others."""
    if link == "shm":
        return await engine.allocate(nbytes, label=label, access=access)
    return await engine.register(mmap.mmap(-1, nbytes), label=label, access=access)


@asynccontextmanager
async def faulty(
    link: str, *, near: FaultPlan | None = None, far: FaultPlan | None = None, **options: Any
) -> AsyncIterator[Pair]:
    """Two connected engines over one kind of link, whose transports follow fault plans."""
    settings = EngineOptions(links=(link,), **options)

    def make(plan: FaultPlan | None) -> Engine:
        return Engine(options=settings) if plan is None else plan.engine(options=settings)

    async with make(far) as target, make(near) as initiator:
        peer = await initiator.connect(target.address)
        yield Pair(initiator, target, peer, await target.accept(), link)


@asynccontextmanager
async def spoiled_by_nothing() -> AsyncIterator[Pair]:
    """Two engines whose operations all go through a fault transport, and come out of it unharmed."""
    plans = FaultPlan(), FaultPlan()
    for plan in plans:
        plan.delay(0.0, count=None)
    async with faulty("cma", near=plans[0], far=plans[1]) as pair:
        yield replace(pair, link="fault")


@asynccontextmanager
async def resent() -> AsyncIterator[Pair]:
    """Two engines whose signals get lost and come twice all the time, under the layer that hides it."""
    plans = FaultPlan(lossy_signals=True), FaultPlan(lossy_signals=True)
    for plan in plans:
        for number in range(1, 400, 3):
            plan.drop_signal(skip=number)
            plan.duplicate_signal(skip=number)
    async with faulty("cma", near=plans[0], far=plans[1]) as pair:
        yield replace(pair, link="resent")


@asynccontextmanager
async def connected(options: EngineOptions, link: str = "shm") -> AsyncIterator[Pair]:
    """Two engines that are connected to each other."""
    async with Engine(options=options) as far, Engine(options=options) as near:
        peer = await near.connect(far.address)
        back = await far.accept()
        yield Pair(near, far, peer, back, link)
