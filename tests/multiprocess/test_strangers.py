"""Whoever reaches the port: what is no engine is turned away, and the engine and its peers go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import random
import socket
import struct
from pathlib import Path

import pytest

from hixl_aio import Access, Engine, EngineOptions, LocalView, MemoryRegion, RemoteRegion, RemoteView
from hixl_aio.errors import HixlAioError
from hixl_aio.testing import child_process
from tests.soak import rounds

from . import children
from .steady import Steady

pytestmark = pytest.mark.asyncio

ROUNDS = rounds(30, 3000)


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.path),))


def dial(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=5)


def control_name(greeting: bytes) -> str:
    """The name of the control socket, which the greeting ends with."""
    return greeting[greeting.rindex(b"hixl") :].decode()


def dial_control(address: str) -> socket.socket:
    """A control socket, greeting read: from here on an engine would introduce itself."""
    with dial(address) as tcp:
        greeting = b""
        while data := tcp.recv(512):
            greeting += data
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.settimeout(5)
    control.connect("\0" + control_name(greeting))
    assert control.recv(512)
    return control


def frames(chance: random.Random, bomb: bytes) -> list[bytes]:
    """Short, long, of every type, with lengths that lie, and a pickle."""
    return [
        b"",
        b"\x01",
        bomb,
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<BQ", chance.randrange(256), (1 << 64) - 1),
        struct.pack("<BI", chance.randrange(12), (1 << 32) - 1) + chance.randbytes(20),
        bytes([chance.randrange(12)]) + chance.randbytes(chance.randrange(60_000)),
    ]


async def test_noise_and_silence_at_the_door_change_nothing(tmp_path: Path) -> None:
    """Garbage, lies, pickles, half-open and slow callers: no effect, and a good connect works meanwhile."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    async with (
        child_process(children.serve, links=["shm"], memory="allocate", nbytes=4096) as stable,
        Engine() as engine,
        Engine() as friend,
        contextlib.AsyncExitStack() as callers,
    ):
        kept = await engine.connect((await stable.hear())["address"])
        source = await engine.register(bytearray(4096))
        reaches = [dial] * 50 + [dial_control] * 50
        silent = [callers.enter_context(reach(engine.address)) for reach in reaches]
        async with Steady(lambda: engine.put(source, kept.region("inbox")).wait()) as steady:
            for number in range(ROUNDS):
                for reach in (dial, dial_control):
                    for data in frames(chance, bomb):
                        with reach(engine.address) as stranger, contextlib.suppress(OSError):
                            stranger.sendall(data)  # it may be turned away in the middle
                for slow in silent[number % 10 :: 10]:
                    with contextlib.suppress(OSError):
                        slow.send(b"\x01")
                await steady.goes_on(1)
            async with asyncio.timeout(3):
                assert (await friend.connect(engine.address)).address == engine.address
                await engine.accept()
            assert engine.statistics().peers == 2, f"seed {seed}"
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("link", ["inproc", "shm", "cma", "cooperative"])
async def test_a_forged_descriptor_reaches_nothing(link: str) -> None:
    """Other ids, generations, sizes and offsets than the owner gave are refused, and no byte moves."""
    options = EngineOptions(links=(link,))
    async with Engine(options=options) as owner, Engine(options=options) as thief:
        if link == "shm":
            inbox = await owner.allocate(4096, label="inbox", access=Access.WRITE)
            secret = await owner.allocate(4096, label="secret", access=Access.READ)
        else:
            inbox = await owner.register(bytearray(4096), label="inbox", access=Access.WRITE)
            secret = await owner.register(bytearray(4096), label="secret", access=Access.READ)
        private = await owner.allocate(4096)
        peer = await thief.connect(owner.address)
        source = await thief.register(bytearray(b"\xee" * 4096))
        large = await thief.register(bytearray(b"\xee" * 8192))
        honest = peer.region("inbox")

        def forged(**fields: int) -> RemoteRegion:
            values = {"id": honest.id, "generation": honest.generation, "nbytes": honest.nbytes} | fields
            return RemoteRegion(
                honest.incarnation, kind=honest.kind, access=Access.READ_WRITE, label="inbox", **values
            )

        other = peer.region("secret")
        puts: list[tuple[MemoryRegion | LocalView, RemoteRegion | RemoteView]] = [
            (source, forged(id=other.id, generation=other.generation)),
            (source, forged(id=honest.id + 1000)),
            (source, forged(id=(1 << 32) - 1)),
            (source, forged(generation=honest.generation + 1)),
            (large, forged(nbytes=8192)),
            (source, forged(nbytes=1 << 62)[(1 << 62) - 4096 :]),
            (source, forged(nbytes=8192)[1:4097]),
        ]
        for src, dst in puts:
            with pytest.raises(HixlAioError):
                await thief.put(src, dst)
        for region in (inbox, secret, private):
            assert region.view() == bytes(4096)
        await thief.put(source, honest)
        assert inbox.view() == b"\xee" * 4096
