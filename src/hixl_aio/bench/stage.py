"""What a workload works with: an engine here, one in the target process, memory on both sides."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hixl_aio import Engine, EngineOptions, LocalView, MemoryRegion, Peer, RemoteView
from hixl_aio.bench.floors import send_blocking, send_streams
from hixl_aio.bench.measure import Timed
from hixl_aio.bench.pair import Pair
from hixl_aio.bench.places import Place, address_of, anonymous, mapping_of

__all__ = ("LINKS", "Span", "Stage")

LINKS: Final = ("shm", "cma", "cooperative")
_LABEL: Final = "arena"


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
class _Side:
    """A pair of engines that are joined by one kind of link, and the memory between them."""

    link: str
    engine: Engine
    peer: Peer
    ends: contextlib.AsyncExitStack
    nbytes: int = 0
    region: MemoryRegion | None = None
    place: Place | None = None


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
    _side: _Side | None = None

    @property
    def cores(self) -> int:
        """Those that this process may use."""
        return len(os.sched_getaffinity(0))

    async def side(self, link: str, options: Mapping[str, Any] | None = None) -> _Side:
        """Engines that are joined by this link alone; those of another link are closed.

        Args:
            link: its kind.
            options: other than the run's; then the engines are new in any case.
        """
        if self._side is not None and self._side.link == link and options is None:
            return self._side
        await self.clear()
        chosen = {**self.options, **(options or {}), "links": [link]}
        async with contextlib.AsyncExitStack() as ends:
            address = (await self.pair.ask("open", options=chosen))["address"]
            ends.push_async_callback(self.pair.ask, "close")
            engine = await ends.enter_async_context(
                Engine(options=EngineOptions(**{**chosen, "links": (link,)}))
            )
            peer = await engine.connect(address)
            self._side = _Side(link if options is None else "", engine, peer, ends.pop_all())
        return self._side

    async def span(self, link: str, nbytes: int) -> Span:
        """Memory for transfers over this link, touched on both sides."""
        side = await self.side(link)
        if side.nbytes < nbytes:
            await self._grow(side, nbytes)
        assert side.region is not None
        assert side.place is not None
        remote = side.peer.region(_LABEL)[0:nbytes]
        await side.engine.put(side.region[0:nbytes], remote)
        return Span(
            local=side.region[0:nbytes],
            remote=remote,
            local_address=address_of(side.region),
            mapped_address=mapping_of(side.place),
            remote_address=side.place.address,
        )

    async def _grow(self, side: _Side, nbytes: int) -> None:
        shared = side.link == "shm"
        if side.region is not None:
            await side.region.aclose()
            await self.pair.ask("drop", label=_LABEL)
        side.place = Place(**await self.pair.ask("region", label=_LABEL, nbytes=nbytes, shared=shared))
        engine = side.engine
        side.region = await (engine.allocate(nbytes) if shared else engine.register(anonymous(nbytes)))
        ctypes.memset(address_of(side.region), 1, nbytes)
        side.nbytes = nbytes
        await side.peer.refresh()

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
