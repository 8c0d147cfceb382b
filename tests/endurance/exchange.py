"""Both directions of a connection at once, each put checked by the signal that is bound to it.

It runs on both sides alike, in one process or in two.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import mmap
import random

from hixl_aio import Access, Completion, Engine, Peer, SignalQueueFullError

__all__ = ("exchange", "talk")

SLOTS = 2


async def exchange(
    engine: Engine, peer: Peer, *, seed: int, rounds: int, smallest: int, largest: int, shared: bool
) -> int:
    """Put random bytes into the peer's slots, each with their hash in the bound signal, and check what comes.

    A slot is written again only when the receiver has said that it has looked. Returns the bytes that came.
    """
    nbytes = SLOTS * largest
    if shared:
        inbox = await engine.allocate(nbytes, label="inbox", access=Access.WRITE)
        source = await engine.allocate(nbytes)
    else:
        inbox = await engine.register(mmap.mmap(-1, nbytes), label="inbox", access=Access.WRITE)
        source = await engine.register(mmap.mmap(-1, nbytes))
    await engine.signal(peer, "ready")
    await engine.wait_signal("ready", peer=peer)
    await peer.refresh()
    target = peer.region("inbox")
    chance = random.Random(seed)

    async def send() -> None:
        for number in range(rounds):
            size, start = chance.randint(smallest, largest), number % SLOTS * largest
            if number >= SLOTS:
                await engine.wait_signal("free", peer=peer)
            data = chance.randbytes(size)
            source.view()[start : start + size] = data
            says = {"number": number, "size": size, "hash": hashlib.blake2b(data).hexdigest()}
            await engine.put(
                source[start : start + size],
                target[start : start + size],
                signal="data",
                payload=json.dumps(says).encode(),
            )

    async def receive() -> int:
        total = 0
        for number in range(rounds):
            signal = await engine.wait_signal("data", peer=peer)
            says, start = json.loads(signal.payload), number % SLOTS * largest
            found = hashlib.blake2b(inbox.view()[start : start + says["size"]]).hexdigest()
            assert signal.error is None
            assert says["number"] == number, "the order of the puts, which wait for each other's slot"
            assert found == says["hash"], f"round {number}: the signal came before its {says['size']} bytes"
            total += says["size"]
            await engine.signal(peer, "free")
        return total

    _, total = await asyncio.gather(send(), receive())
    for _ in range(min(SLOTS, rounds)):  # for the slots that nobody writes again
        await engine.wait_signal("free", peer=peer)
    return total


async def talk(engine: Engine, peer: Peer, *, tasks: int, each: int, seed: int) -> int:
    """Many tasks that send numbered signals, some bound to puts, each filled with a pattern of its own."""
    source = await engine.register(bytearray(4096))
    target = peer.region("inbox")
    chance = random.Random(seed)

    def begin(size: int | None, name: str, payload: bytes) -> Completion | None:
        try:
            if size is None:
                return engine.signal(peer, name, payload)
            return engine.put(source[:size], target[:size], signal=name, payload=payload)
        except SignalQueueFullError:
            return None

    async def one(task: int) -> None:
        for number in range(each):
            head = f"{engine.name}/{task}/{number}/".encode()
            payload = (head * 1024)[: chance.randint(len(head), 1024)]
            name = f"t{task}" + "n" * chance.randint(0, 900)
            size = chance.choice((0, 1, 4096)) if chance.random() < 0.3 else None
            while (sent := begin(size, name, payload)) is None:  # noqa: ASYNC110  (nothing tells us)
                await asyncio.sleep(0)
            if chance.random() < 0.5:
                await sent
            await asyncio.sleep(0)

    await asyncio.gather(*(one(task) for task in range(tasks)))
    await engine.flush()
    return tasks * each
