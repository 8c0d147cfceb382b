"""One-sided for real: the target's interpreter is stuck in a C call that keeps the GIL."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import mmap
import os
from pathlib import Path

import pytest

from hixl_aio import Access, Engine, EngineOptions
from hixl_aio.testing import child_process

from . import children

MIB = 1 << 20
LINKS = [
    pytest.param(("shm",), "allocate", id="shm"),
    pytest.param(("cma",), "register", id="cma"),
    pytest.param(("cooperative",), "register", id="cooperative"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("links", "memory"), LINKS)
async def test_a_stuck_target_is_written_read_signalled_and_connected(
    links: tuple[str, ...], memory: str, tmp_path: Path
) -> None:
    """64 MiB puts and gets, signals and a new connect complete while the target can run no Python at all."""
    nbytes = 64 * MIB
    fifo = tmp_path / "release"
    os.mkfifo(fifo)
    payload = os.urandom(1 * MIB) * 64
    async with child_process(children.serve, links=list(links), memory=memory, nbytes=nbytes) as target:
        address = (await target.hear())["address"]
        async with (
            Engine(options=EngineOptions(links=links)) as engine,
            Engine(options=EngineOptions(links=links)) as late,
        ):
            source = await engine.register(bytearray(payload))
            back = await engine.register(bytearray(nbytes))
            peer = await engine.connect(address)
            assert [link.name for link in peer.route] == list(links)

            await target.say({"do": "stick", "fd_path": str(fifo)})
            assert (await target.hear())["stuck"]

            await engine.put(source, peer.region("inbox"), signal="landed", payload=b"whole")
            await engine.get(peer.region("inbox"), back)
            assert hashlib.blake2b(back.view()).digest() == hashlib.blake2b(payload).digest()
            late_peer = await late.connect(address)
            assert late_peer.region("inbox").nbytes == nbytes
            await late.signal(late_peer, "later", b"from somebody new")

            # All of that happened while it was stuck: only now it is let go.
            with fifo.open("wb", buffering=0) as release:
                release.write(b"x")
            assert (await target.hear())["unstuck"]
            await target.say({"do": "signal", "name": "landed"})
            heard = await target.hear()
            assert heard == {
                "payload": "whole",
                "error": False,
                "digest": hashlib.blake2b(payload).hexdigest(),
            }
            await target.say({"do": "signal", "name": "later"})
            assert (await target.hear())["payload"] == "from somebody new"


@pytest.mark.asyncio
async def test_inproc_moves_bytes_while_the_interpreter_is_stuck() -> None:
    """Puts, gets and a connect that were submitted in one process end while its only interpreter is stuck."""
    nbytes = 64 * MIB
    payload = os.urandom(1 * MIB) * 64
    async with Engine() as initiator, Engine() as target:
        inbox = await target.register(mmap.mmap(-1, nbytes), label="inbox", access=Access.READ_WRITE)
        source = await initiator.register(bytearray(payload))
        back = await initiator.register(bytearray(nbytes))
        peer = await initiator.connect(target.address)
        put = initiator.put(source, peer.region("inbox"), signal="landed")
        initiator.fence(peer)
        connecting = asyncio.ensure_future(target.connect(initiator.address))
        await asyncio.sleep(0)  # the task takes its first step: the request is with the native thread
        ctypes.PyDLL(None).usleep(500_000)  # keeps the GIL; nothing of Python runs meanwhile
        assert initiator.statistics().native["completed"] == 1
        assert hashlib.blake2b(inbox.view()).digest() == hashlib.blake2b(payload).digest()
        await put
        get = initiator.get(peer.region("inbox"), back)
        ctypes.PyDLL(None).usleep(500_000)
        assert initiator.statistics().native["completed"] == 2
        await get
        assert hashlib.blake2b(back.view()).digest() == hashlib.blake2b(payload).digest()
        assert (await connecting).address == initiator.address
        assert (await target.wait_signal("landed")).error is None


@pytest.mark.asyncio
async def test_small_puts_between_processes_cost_no_hop_and_no_wakeup() -> None:
    """1000 awaited 128-byte puts and gets over shm hand nothing to a native thread and wake nobody."""
    async with child_process(children.serve, links=["shm"], memory="allocate", nbytes=4096) as target:
        address = (await target.hear())["address"]
        async with Engine(options=EngineOptions(links=("shm",))) as engine:
            peer = await engine.connect(address)
            source = await engine.register(bytearray(b"\x11" * 128))
            back = await engine.register(bytearray(128))
            inbox = peer.region("inbox")[1024:1152]
            before = engine.statistics().native
            for _ in range(1000):
                await engine.put(source, inbox)
                await engine.get(inbox, back)
            after = engine.statistics().native
            assert after["inline_done"] - before["inline_done"] == 2000
            assert after["submitted"] == before["submitted"]
            assert after["wakeups"] == before["wakeups"]
            assert bytes(back.view()) == b"\x11" * 128
