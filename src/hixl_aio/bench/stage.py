"""What a workload works with: an engine here, one in the target process, memory on both sides."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hixl_aio import Access, Engine, EngineOptions, LocalView, MemoryRegion, Peer, RemoteView
from hixl_aio.bench.floors import send_blocking, send_streams
from hixl_aio.bench.measure import Timed
from hixl_aio.bench.pair import Pair
from hixl_aio.bench.places import Place, address_of, anonymous, find_place, mapping_of

__all__ = ("INPROC", "LINKS", "NO_OPTIONS", "Side", "Span", "Stage")

LINKS: Final = ("shm", "cma", "cooperative")
INPROC: Final = "inproc"  # an engine that is its own peer
NO_OPTIONS: Final[Mapping[str, Any]] = {}
_ARENA: Final = "arena"


@dataclass(frozen=True, slots=True)
class Span:
    """A run of memory on both sides.

    Attributes:
        local, remote: as the library names them.
        local_address: here.
        mapped_address: where this process has mapped the remote bytes; None: it has not.
        remote_address: in the target process.
    """

    local: LocalView
    remote: RemoteView
    local_address: int
    mapped_address: int | None
    remote_address: int


@dataclass(slots=True)
class Side:
    """A pair of engines that are joined by one kind of link, and the memory between them.

    Attributes:
        link: its kind.
        options: the engines' own, beside those of the run.
        engine: ours.
        peer: the target's, as ours sees it.
        ends: what closing means.
        nbytes, region, place: the memory of `Stage.span`.
        arena: its remote part, if that is in this process too.
    """

    link: str
    options: Mapping[str, Any]
    engine: Engine
    peer: Peer
    ends: contextlib.AsyncExitStack
    nbytes: int = 0
    region: MemoryRegion | None = None
    place: Place | None = None
    arena: MemoryRegion | None = None


@dataclass(slots=True)
class Stage:
    """The second process and, on demand, engines on both sides.

    Attributes:
        pair: the target process.
        loop: the name of the loop.
        quick: small sizes only.
        options: for the engines.
    """

    pair: Pair
    loop: str
    quick: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    _side: Side | None = None

    @property
    def cores(self) -> int:
        """Those that this process may use."""
        return len(os.sched_getaffinity(0))

    async def side(self, link: str, options: Mapping[str, Any] = NO_OPTIONS) -> Side:
        """Engines that are joined by this link alone. One pair is open at a time: others are closed.

        Args:
            link: its kind.
            options: other than the run's.
        """
        if self._side is not None and (self._side.link, self._side.options) == (link, options):
            return self._side
        await self.clear()
        chosen = {**self.options, **options, "links": (link,)}
        async with contextlib.AsyncExitStack() as ends:
            address = ""
            if link != INPROC:
                # Ours says good-bye first: it closes before the target's.
                address = (await self.pair.ask("open", options=chosen))["address"]
                ends.push_async_callback(self.pair.ask, "close")
            engine = await ends.enter_async_context(Engine(options=EngineOptions(**chosen)))
            peer = await engine.connect(address or engine.address)
            self._side = Side(link, options, engine, peer, ends.pop_all())
        return self._side

    async def span(self, link: str, nbytes: int, options: Mapping[str, Any] = NO_OPTIONS) -> Span:
        """Memory for transfers over this link, touched on both sides."""
        side = await self.side(link, options)
        if side.nbytes < nbytes:
            await self._grow(side, nbytes)
        assert side.region is not None
        assert side.place is not None
        remote = side.peer.region(_ARENA)[0:nbytes]
        await side.engine.put(side.region[0:nbytes], remote)
        return Span(
            local=side.region[0:nbytes],
            remote=remote,
            local_address=address_of(side.region),
            mapped_address=side.place.address if side.link == INPROC else mapping_of(side.place),
            remote_address=side.place.address,
        )

    async def _grow(self, side: Side, nbytes: int) -> None:
        await self._drop(side)
        if side.link == INPROC:
            side.arena = await self.memory(side, nbytes, label=_ARENA, access=Access.READ_WRITE)
            side.place = find_place(address_of(side.arena))
        else:
            shared = side.link == "shm"
            side.place = Place(**await self.pair.ask("region", label=_ARENA, nbytes=nbytes, shared=shared))
        side.region = await self.memory(side, nbytes)
        side.nbytes = nbytes
        await side.peer.refresh()

    async def _drop(self, side: Side) -> None:
        """Close the memory of `span`, or as much of it as there is."""
        region, place, arena = side.region, side.place, side.arena
        side.region = side.place = side.arena = None
        side.nbytes = 0
        if region is not None:
            await region.aclose()
        if arena is not None:
            await arena.aclose()
        elif place is not None:
            await self.pair.ask("drop", label=_ARENA)

    async def memory(
        self, side: Side, nbytes: int, *, label: str | None = None, access: Access = Access.LOCAL
    ) -> MemoryRegion:
        """Memory here, of the kind that a link moves, touched."""
        if side.link in ("shm", INPROC):
            region = await side.engine.allocate(nbytes, label=label, access=access)
        else:
            region = await side.engine.register(anonymous(nbytes), label=label, access=access)
        ctypes.memset(address_of(region), 1, nbytes)
        return region

    @contextlib.asynccontextmanager
    async def crowd(self, count: int, nbytes: int) -> AsyncIterator[list[str]]:
        """More engines in the target for a block, each with a region "inbox". Their addresses."""
        try:
            yield await self.pair.ask("crowd", count=count, nbytes=nbytes)
        finally:
            await self.pair.ask("disperse")

    async def clear(self) -> None:
        """Close what is open."""
        side, self._side = self._side, None
        if side is not None:
            await side.ends.aclose()

    def socket_floors(self, nbytes: int) -> dict[str, Timed]:
        """What one would write without the library, for so many bytes."""
        data = memoryview(bytes(nbytes))
        reader, writer = self.pair.streams
        return {
            "blocking unix socket": send_blocking(self.pair.blocking, data),
            "asyncio streams": send_streams(reader, writer, data),
        }
