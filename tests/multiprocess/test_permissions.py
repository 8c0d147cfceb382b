"""Who may connect, and what happens where the kernel forbids cross-process copies."""

from __future__ import annotations

import asyncio
import os
import platform

import pytest

from hixl_aio import Access, Engine, EngineOptions

from .harness import child


@pytest.mark.asyncio
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter names x86-64 system calls")
async def test_a_refused_process_vm_falls_back_to_the_cooperative_link() -> None:
    """Behind a seccomp filter the route is cooperative, says why, and the bytes are exact."""
    target_bytes = bytearray(256 * 4096)
    async with Engine() as engine:
        region = await engine.register(target_bytes, label="inbox", access=Access.WRITE)
        async with child("forbid_process_vm", address=engine.address) as initiator:
            heard = await initiator.hear()
        names = dict(heard["route"])
        assert "cma" not in names
        assert "Operation not permitted" in names["cooperative"]
        assert bytes(target_bytes) == bytes(range(256)) * 4096
        await region.aclose()


@pytest.mark.asyncio
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_is_refused() -> None:
    """An engine of another user gets an error that names both uids, and the target lives on."""
    async with Engine() as engine:
        async with child("connect_as_nobody", address=engine.address) as stranger:
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
