"""Engines over a stand-in for native code."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from hixl_aio import Access, Engine, EngineOptions, MemoryRegion, Peer, RemoteRegion, _native

from .native_stand_in import StandIn


@dataclass(frozen=True, slots=True)
class Scene:
    """One engine, one peer, memory on both sides, and the strings behind it."""

    engine: Engine
    native: StandIn
    peer: Peer
    source: MemoryRegion
    remote: RemoteRegion

    def region_without(self, access: Access) -> RemoteRegion:
        """A region of the peer that grants this access only."""
        return dataclasses.replace(self.remote, access=access)

    def region_of(self, incarnation: str) -> RemoteRegion:
        """A region of another life."""
        return dataclasses.replace(self.remote, incarnation=incarnation)


SceneMaker = Callable[..., AbstractAsyncContextManager[Scene]]


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StandIn]]:
    """Engines made in this test run on stand-ins; here they are, in order."""
    made: list[StandIn] = []

    def make(name: str, **options: Any) -> StandIn:
        made.append(StandIn(name, options))
        return made[-1]

    monkeypatch.setattr(_native, "NativeEngine", make)
    yield made
    for native in made:
        native.close()


@pytest.fixture
def scene(stand_ins: list[StandIn]) -> SceneMaker:
    """Opens an engine with a peer: `async with scene(credits_per_peer=1) as s`."""

    @asynccontextmanager
    async def opened(can_stop: bool = True, **options: Any) -> AsyncIterator[Scene]:
        engine = Engine(options=EngineOptions(**options))
        async with engine:
            native = stand_ins[-1]
            peer = await engine.connect("127.0.0.1:2")
            source = await engine.register(bytearray(1 << 20))
            yield Scene(engine, native, peer, source, peer.region("remote"))
            native.hold_shutdown = False

    return opened
