"""A double-buffered pipeline from a task group: one slot is sent and consumed while the next is filled.

The producer never waits for a transfer before it computes again; it waits for a *credit*, which the consumer
gives back when it has taken a slot. No sleep, no polling, and an exception in either half ends both.
"""

import asyncio
import hashlib

import hixl_aio
from hixl_aio import Access, Engine, MemoryRegion

SLOTS = 2
SLOT_NBYTES = 4 << 20
ROUNDS = 8


def compute(buffer: memoryview, round_number: int) -> str:
    """Stand in for a layer's work: fill the slot, return what the consumer should see."""
    buffer[:] = round_number.to_bytes(8, "little") * (len(buffer) // 8)
    return digest(buffer)


def digest(buffer: memoryview) -> str:
    return hashlib.sha256(buffer).hexdigest()


async def produce(engine: Engine, address: str, results: dict[int, str]) -> None:
    peer = await engine.connect(address)
    target = peer.region("ring")
    # The task group inside the region: every put has ended before its source is closed.
    async with await engine.allocate(SLOTS * SLOT_NBYTES) as ring, asyncio.TaskGroup() as sends:
        for round_number in range(ROUNDS):
            await engine.wait_signal("credit", peer=peer)  # the consumer has taken this slot
            start = round_number % SLOTS * SLOT_NBYTES
            slot = slice(start, start + SLOT_NBYTES)
            results[round_number] = await asyncio.to_thread(compute, ring.view()[slot], round_number)
            put = engine.put(ring[slot], target[slot], signal="full", payload=bytes([round_number]))
            sends.create_task(put.wait())


async def consume(engine: Engine, ring: MemoryRegion, results: dict[int, str]) -> None:
    peer = await engine.accept()
    for _ in range(SLOTS):
        await engine.signal(peer, "credit")
    for _ in range(ROUNDS):
        signal = await engine.wait_signal("full", peer=peer)
        if signal.error is not None:
            raise signal.error
        round_number = signal.payload[0]
        start = round_number % SLOTS * SLOT_NBYTES
        seen = await asyncio.to_thread(digest, ring.view()[start : start + SLOT_NBYTES])
        assert seen == results[round_number], f"round {round_number} arrived damaged"
        print(f"round {round_number} arrived in slot {round_number % SLOTS}")
        await engine.signal(peer, "credit")


async def main() -> None:
    results: dict[int, str] = {}
    async with Engine() as consumer, Engine() as producer:
        ring = await consumer.allocate(SLOTS * SLOT_NBYTES, label="ring", access=Access.WRITE)
        async with asyncio.TaskGroup() as group:
            group.create_task(consume(consumer, ring, results))
            group.create_task(produce(producer, consumer.address, results))
    print(f"{ROUNDS} rounds of {SLOT_NBYTES >> 20} MiB through {SLOTS} slots")


if __name__ == "__main__":
    hixl_aio.run(main())
