"""The prefill process: runs prompts through the model, puts each layer's K and V as soon as they are final.

A request needs a credit, which is a free slot in decode's memory, and the same slot of our own memory, from
which earlier puts have settled. Puts of a request may arrive in any order, but its last one cannot pass
them: a fence holds it back until all of them are delivered, and the signal bound to it is not seen before
its own bytes are.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field

import numpy as np

from hixl_aio import Completion, Engine, EngineOptions, MemoryRegion, Peer, RemoteRegion, run
from hixl_aio.demo.child import Parent, run_child
from hixl_aio.demo.errors import HandoffError
from hixl_aio.demo.gguf import Array
from hixl_aio.demo.intervals import Interval, overlap, total
from hixl_aio.demo.llama import KVCache, advance, greedy
from hixl_aio.demo.messages import Connect, Connected, Sent, Setup
from hixl_aio.demo.models import Model
from hixl_aio.demo.plan import (
    CREDIT_SIGNAL,
    KV_LABEL,
    KV_SIGNAL,
    SLOTS,
    Handoff,
    Plan,
    Request,
    prepare,
    unpack_credit,
)

__all__ = ("Prefiller", "main", "serve")


@dataclass(slots=True)
class _Transfer:
    """A request under way: when it was computed and when its bytes travelled."""

    request: Request
    slot: int
    started: float
    computed: Interval = field(init=False)
    puts: list[tuple[float, Completion]] = field(default_factory=list)
    kv_nbytes: int = 0

    @property
    def sent(self) -> list[Interval]:
        """When each put was under way: from the call until its completion was known here."""
        return [Interval(called, called + put.elapsed) for called, put in self.puts]


class Prefiller:
    """Computes and sends the requests of a plan."""

    def __init__(
        self, engine: Engine, peer: Peer, source: MemoryRegion, target: RemoteRegion, model: Model, plan: Plan
    ) -> None:
        self._engine = engine
        self._peer = peer
        self._source = source
        self._memory = source.view()
        self._target = target
        self._model = model
        self._plan = plan
        self._transfers: list[_Transfer] = []
        self._in_slot: list[_Transfer | None] = [None] * SLOTS

    async def send_all(self) -> tuple[Sent, ...]:
        try:
            async with asyncio.TaskGroup() as puts:
                for request in self._plan.requests:
                    slot = await self._credit()
                    transfer = self._in_slot[slot] = _Transfer(request, slot, time.monotonic())
                    self._transfers.append(transfer)
                    transfer.computed = await self._prefill(transfer, puts)
        finally:
            for transfer in self._transfers:
                for _, put in transfer.puts:
                    put.exception()  # a task that is cancelled before it begins looks at nothing
        computed = [transfer.computed for transfer in self._transfers]
        return tuple(_summary(transfer, computed) for transfer in self._transfers)

    async def _credit(self) -> int:
        """Wait for a slot that is free at the target and whose source has settled here."""
        signal = await self._engine.wait_signal(CREDIT_SIGNAL, peer=self._peer)
        if signal.error is not None:
            raise signal.error
        slot = unpack_credit(signal.payload)
        if (before := self._in_slot[slot]) is not None:
            for _, put in before.puts:
                await put
        return slot

    async def _prefill(self, transfer: _Transfer, puts: asyncio.TaskGroup) -> Interval:
        """Compute a request in a thread. A layer leaves as soon as the thread has told that it is final."""
        cache = self._plan.layout.cache(transfer.slot, self._memory)
        steps = self._model.llama.prefill(transfer.request.tokens, cache)
        loop, told = asyncio.get_running_loop(), asyncio.Queue[int | Array]()

        def compute() -> Interval:
            started = time.monotonic()
            while isinstance(step := advance(steps), int):
                loop.call_soon_threadsafe(told.put_nowait, step)
            stopped = time.monotonic()
            loop.call_soon_threadsafe(told.put_nowait, step)
            return Interval(started, stopped)

        computing = puts.create_task(asyncio.to_thread(compute))
        while isinstance(step := await told.get(), int):
            self._put_layer(transfer, cache, step, puts)
        self._put_logits(transfer, step, puts)
        return await computing

    def _put_layer(self, transfer: _Transfer, cache: KVCache, layer: int, puts: asyncio.TaskGroup) -> None:
        for part in range(2):
            span = cache.span(layer, part, len(transfer.request.tokens))
            span = self._plan.layout.shift(transfer.slot, span)
            transfer.kv_nbytes += span.stop - span.start
            self._put(transfer, span, puts)

    def _put_logits(self, transfer: _Transfer, logits: Array, puts: asyncio.TaskGroup) -> None:
        """The request's last bytes, and with them the signal that all of them are there."""
        span = self._plan.layout.logits_span(transfer.slot)
        np.copyto(self._plan.layout.logits(transfer.slot, self._memory), logits)
        handoff = Handoff(
            transfer.request.index, transfer.slot, len(transfer.request.tokens), first_token=greedy(logits)
        )
        self._engine.fence(self._peer)
        self._put(transfer, span, puts, signal=KV_SIGNAL, payload=handoff.pack())

    def _put(
        self,
        transfer: _Transfer,
        span: slice,
        puts: asyncio.TaskGroup,
        *,
        signal: str | None = None,
        payload: bytes = b"",
    ) -> None:
        """Start a put to the same span at the target; its failure will end everything."""
        called = time.monotonic()
        put = self._engine.put(self._source[span], self._target[span], signal=signal, payload=payload)
        transfer.puts.append((called, put))
        puts.create_task(put.wait())


def _summary(transfer: _Transfer, computed: list[Interval]) -> Sent:
    return Sent(
        request=transfer.request.index,
        prompt_tokens=len(transfer.request.tokens),
        kv_nbytes=transfer.kv_nbytes,
        started=transfer.started,
        prefill=total([transfer.computed]),
        transfer=total(transfer.sent),
        hidden=overlap(transfer.sent, computed),
    )


def _describe(peer: Peer) -> str:
    return "; ".join(f"{link.name} ({link.reason})" for link in peer.route)


async def serve(parent: Parent) -> None:
    """Be the prefill process."""
    setup = await parent.receive(Setup)
    model, plan = await asyncio.to_thread(prepare, setup)
    options = EngineOptions(links=setup.links)
    async with (
        Engine(name="prefill", backend=setup.backend, options=options) as engine,
        await engine.allocate(plan.layout.region_nbytes, label="source") as source,
        parent.told_of_errors(),
    ):
        peer = await engine.connect((await parent.receive(Connect)).address)
        target = peer.region(KV_LABEL)
        if target.nbytes != source.nbytes:
            raise HandoffError(f"decode lends {target.nbytes} bytes, {source.nbytes} are needed")
        await parent.send(Connected(_describe(peer)))
        for sent in await Prefiller(engine, peer, source, target, model, plan).send_all():
            await parent.send(sent)
        await parent.finish()


def main() -> int:
    return run_child(serve, run)


if __name__ == "__main__":
    sys.exit(main())
