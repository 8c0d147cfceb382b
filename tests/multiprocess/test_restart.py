"""A peer that was killed and started again at its address: one connect cures it, nobody else notices."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from hixl_aio import (
    Engine,
    EngineOptions,
    MemoryRegion,
    Peer,
    PeerLostError,
    PeerNotConnectedError,
    PeerRestartedError,
    PeerState,
    RemoteRegion,
    StaleRegionError,
)
from hixl_aio.testing import child_process
from tests.soak import rounds

from . import children
from .steady import Steady

pytestmark = pytest.mark.asyncio

NBYTES = 1 << 20
LINKS = [
    pytest.param("shm", "allocate", id="shm"),
    pytest.param("cma", "register", id="cma"),
    pytest.param("cooperative", "register", id="cooperative"),
]


async def lost(engine: Engine, peer: Peer) -> None:
    """The death has been noticed."""
    async with asyncio.timeout(2):
        with pytest.raises(PeerLostError):
            await engine.wait_signal("never", peer=peer)
    assert peer.address not in engine.peers


@pytest.mark.parametrize("name", ["tcp", "unix"])
@pytest.mark.parametrize(("link", "memory"), LINKS)
async def test_the_first_use_after_a_restart_says_so_and_one_connect_cures_it(
    link: str, memory: str, name: str
) -> None:
    """Whatever call comes first; old views stay dead; a steady pair completes all of its puts meanwhile."""
    arguments = {"links": [link], "memory": memory, "nbytes": NBYTES}
    own_address = f"unix:hixl-restart-{os.getpid()}" if name == "unix" else "127.0.0.1:0"
    async with (
        child_process(children.serve, **arguments) as stable,
        Engine(options=EngineOptions(links=(link,))) as engine,
    ):
        source = await engine.register(bytearray(os.urandom(NBYTES)))
        kept = await engine.connect((await stable.hear())["address"])
        async with Steady(lambda: engine.put(source, kept.region("inbox")).wait()) as steady:
            async with child_process(children.serve, address=own_address, **arguments) as first:
                address = (await first.hear())["address"]
                old = await engine.connect(address)
                inbox = old.region("inbox")
                await engine.put(source, inbox)
                first.kill()
            await lost(engine, old)
            with pytest.raises(PeerLostError):
                await engine.put(source, inbox)
            async with child_process(children.serve, address=address, **arguments) as second:
                await second.hear()
                uses: list[Callable[[], Awaitable[object]]] = [
                    lambda: engine.put(source, inbox).wait(),
                    lambda: engine.get(inbox, source).wait(),
                    lambda: engine.flush(old),
                    lambda: engine.wait_capacity(old),
                    old.refresh,
                    lambda: engine.signal(old, "s").wait(),
                ]
                async with asyncio.timeout(1):
                    for use in uses:
                        with pytest.raises(PeerRestartedError, match=old.incarnation):
                            await use()
                await second.say({"do": "peers"})
                assert await second.hear() == {"peers": []}
                again = await engine.connect(address)
                assert again is not old
                assert (old.state, again.state) == (PeerState.LOST, PeerState.CONNECTED)
                await engine.put(source, again.region("inbox"), signal="cured")
                await second.say({"do": "signal", "name": "cured"})
                assert not (await second.hear())["error"]
                with pytest.raises(StaleRegionError):
                    engine.put(source, inbox)
                with pytest.raises(StaleRegionError):
                    engine.get(inbox, source)
                await steady.goes_on(1)
                assert kept.state is PeerState.CONNECTED


async def test_restarts_in_a_row_are_each_told_and_cured() -> None:
    """Port and name are free again at once (no TIME_WAIT), and the engine keeps nothing of earlier lives."""
    address = "127.0.0.1:0"
    async with Engine() as engine:
        source = await engine.register(bytearray(NBYTES))
        inbox = None
        for _ in range(rounds(4, 200)):
            async with child_process(
                children.serve, links=["shm"], memory="allocate", nbytes=NBYTES, address=address
            ) as target:
                address = (await target.hear())["address"]
                if inbox is not None:
                    with pytest.raises(PeerRestartedError):
                        await engine.put(source, inbox)
                peer = await engine.connect(address)
                inbox = peer.region("inbox")
                await engine.put(source, inbox)
                target.kill()
            await lost(engine, peer)
        assert engine.statistics().peers == engine.statistics().native["peers"] == 0


async def _put_until_it_fails(engine: Engine, source: MemoryRegion, inbox: RemoteRegion) -> None:
    while True:
        await engine.put(source, inbox)


@pytest.mark.parametrize(("link", "memory"), LINKS)
async def test_a_dead_peer_is_not_handed_out_again(link: str, memory: str) -> None:
    """Its operation fails before the news of its death is here; connecting then finds that nobody listens."""
    async with Engine(options=EngineOptions(links=(link,))) as engine:
        source = await engine.register(bytearray(NBYTES))
        for _ in range(rounds(3, 100)):
            async with child_process(children.serve, links=[link], memory=memory, nbytes=NBYTES) as serving:
                address = (await serving.hear())["address"]
                peer = await engine.connect(address)
                inbox = peer.region("inbox")
                serving.kill()
                with pytest.raises(PeerLostError):
                    await _put_until_it_fails(engine, source, inbox)
                with pytest.raises(PeerNotConnectedError):
                    await engine.connect(address)
                assert peer.state is PeerState.LOST
