"""Signals: bound to a put, alone, after a batch, in the negative form, and those nobody asked for by name."""

import asyncio
from array import array

import hixl_aio
from hixl_aio import Access, Engine, Put


async def main() -> None:
    async with Engine() as consumer, Engine() as producer:
        inbox = await consumer.allocate(4096, label="inbox", access=Access.WRITE)
        peer = await producer.connect(consumer.address)
        source = await producer.register(array("q", range(512)))
        target = peer.region("inbox")

        # Bound to a put: visible only after the bytes are.
        put = producer.put(source, target, signal="block", payload=b"block 0")
        signal = await consumer.wait_signal("block")
        numbers = inbox.view().cast("q")
        print(signal.payload.decode(), "landed; its last number is", numbers[-1])
        await put

        # Alone: a credit back, the other way. The connection works in both directions.
        back = await consumer.accept()
        await consumer.signal(back, "credit", b"slot 0 is free")
        print((await producer.wait_signal("credit", peer=peer)).payload.decode())

        # One signal for many puts: after the whole batch.
        halves = [Put(source[:2048], target[:2048]), Put(source[2048:], target[2048:])]
        await producer.batch(halves, signal="batch", payload=b"both halves")
        print((await consumer.wait_signal("batch")).payload.decode(), "landed")

        # The negative form: work that failed tells the target so, instead of letting it wait for ever.
        async def prepare() -> None:
            raise ValueError("the layer was never computed")

        failed = producer.put(source, target, signal="block", payload=b"block 1", ready=prepare())
        signal = await consumer.wait_signal("block")
        print(signal.payload.decode(), "will not come:", type(signal.error).__name__)
        try:
            await failed
        except hixl_aio.TransferError as error:
            print("the producer sees", type(error).__name__)

        # Those that nobody waits for by name are kept, oldest first.
        for number in range(3):
            producer.signal(peer, f"news-{number}")
        async with asyncio.timeout(5):
            async for news in consumer.signals():
                print("heard", news.name)
                if news.name == "news-2":
                    break


if __name__ == "__main__":
    hixl_aio.run(main())
