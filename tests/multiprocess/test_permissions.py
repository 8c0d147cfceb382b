"""Who may connect, and what happens where the kernel forbids cross-process copies."""

from __future__ import annotations

import asyncio
import os
import platform

import pytest

from hixl_aio import Access, Engine, EngineOptions
from hixl_aio.testing import child_process

from . import children


@pytest.mark.asyncio
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter names x86-64 system calls")
async def test_a_refused_process_vm_falls_back_to_the_cooperative_link() -> None:
    """Behind a seccomp filter the route is cooperative, says why, and the bytes are exact."""
    target_bytes = bytearray(256 * 4096)
    async with Engine() as engine:
        region = await engine.register(target_bytes, label="inbox", access=Access.WRITE)
        async with child_process(children.forbid_process_vm, address=engine.address) as initiator:
            heard = await initiator.hear()
        names = dict(heard["route"])
        assert "cma" not in names
        assert "Operation not permitted" in names["cooperative"]
        assert bytes(target_bytes) == bytes(range(256)) * 4096
        await region.aclose()


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.mark.asyncio
@only_root
async def test_a_peer_that_is_not_dumpable_is_reached_by_its_own_thread_and_by_shared_memory() -> None:
    """Two processes without privileges: the route is cooperative and names the cause, the bytes are exact."""
    async with (
        child_process(children.serve_as_nobody, links=[], dumpable=False) as owner,
        child_process(children.put_as_nobody, address=(await owner.hear())["address"], links=[]) as initiator,
    ):
        heard = await initiator.hear()
        names = dict(heard["route"])
        assert set(names) == {"shm", "cooperative"}
        assert "Operation not permitted" in names["cooperative"]
        assert "not dumpable" in names["cooperative"]
        for region in ("inbox", "shared"):
            await initiator.say({"into": region})
            assert (await initiator.hear())["error"] is None
            await owner.say({"do": "digest"})
            assert (await owner.hear())[region] == heard["digest"]


@pytest.mark.asyncio
@only_root
@pytest.mark.parametrize("links", [["cma"], ["shm", "cma"]], ids="-".join)
async def test_without_a_link_that_reaches_it_the_refusal_names_the_cause(links: list[str]) -> None:
    """Only cma: connect fails and says why. With shm: what allocate() made is reached, no more."""
    async with (
        child_process(children.serve_as_nobody, links=links, dumpable=False) as owner,
        child_process(
            children.put_as_nobody, address=(await owner.hear())["address"], links=links
        ) as initiator,
    ):
        heard = await initiator.hear()
        if links == ["cma"]:
            assert heard["error"] == "UnsupportedError"
            assert "not dumpable" in heard["text"]
            return
        assert "not dumpable" in dict(heard["route"])["shm"]
        await initiator.say({"into": "inbox"})
        assert (await initiator.hear())["error"] == "UnsupportedError"
        await initiator.say({"into": "shared"})
        assert (await initiator.hear())["error"] is None
        await owner.say({"do": "digest"})
        assert (await owner.hear())["shared"] == heard["digest"]


@pytest.mark.asyncio
@only_root
async def test_a_peer_that_locks_itself_later_fails_the_put_and_gets_no_part_of_it() -> None:
    """What worked at the handshake is refused now: an error, never a success; shared memory goes on."""
    async with (
        child_process(children.serve_as_nobody, links=[], dumpable=True) as owner,
        child_process(children.put_as_nobody, address=(await owner.hear())["address"], links=[]) as initiator,
    ):
        heard = await initiator.hear()
        assert "cma" in dict(heard["route"])
        await owner.say({"do": "lock"})
        before = await owner.hear()
        await initiator.say({"into": "inbox"})
        failed = await initiator.hear()
        assert failed["error"] == "TransferFailedError"
        assert failed["busy"] is False
        await initiator.say({"into": "shared"})
        assert (await initiator.hear())["error"] is None
        await owner.say({"do": "digest"})
        after = await owner.hear()
        assert after["inbox"] == before["inbox"]
        assert after["shared"] == heard["digest"]


@pytest.mark.asyncio
@only_root
async def test_another_user_is_refused() -> None:
    """An engine of another user gets an error that names both uids, and the target lives on."""
    async with Engine() as engine:
        async with child_process(children.connect_as_nobody, address=engine.address) as stranger:
            heard = await stranger.hear()
        assert heard["error"] is not None
        assert "65534" in heard["text"]
        assert "uid 0" in heard["text"]
        async with Engine() as friend, asyncio.timeout(2):
            await friend.connect(engine.address)


@pytest.mark.asyncio
async def test_the_order_of_the_links_is_the_order_of_preference() -> None:
    """Naming cooperative before cma chooses it, and the route says that this was asked for."""
    options = EngineOptions(links=("cooperative", "cma"))
    async with Engine() as owner, Engine(options=options) as engine:
        peer = await engine.connect(owner.address)
        assert [(link.name, link.reason) for link in peer.route] == [
            ("cooperative", "the peer's native thread copies, as the order of the links says")
        ]
