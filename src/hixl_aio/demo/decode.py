"""The decode process: owns the KV cache, lends it to prefill slot by slot, generates text straight from it.

Two tasks work side by side. One receives: it turns each landing into a job, and its first token into text
at once. The other generates, one request after the other, and gives each slot back when its answer is
finished. So request n + 1 lands while request n is being answered.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field

from hixl_aio import Access, Engine, EngineOptions, MemoryRegion, Peer, run
from hixl_aio.demo.child import Parent, run_child
from hixl_aio.demo.errors import DamagedError
from hixl_aio.demo.llama import KVCache, greedy, likeliest
from hixl_aio.demo.messages import Generated, Landed, Listening, Setup, Text, Trace
from hixl_aio.demo.models import Model
from hixl_aio.demo.plan import CREDIT_SIGNAL, KV_LABEL, KV_SIGNAL, Handoff, Plan, pack_credit, prepare
from hixl_aio.demo.tokenizer import Detokenizer
from hixl_aio.demo.verify import kv_hashes, logits_hash

__all__ = ("Decoder", "main", "serve")


@dataclass(slots=True)
class _Job:
    """A request that has landed."""

    handoff: Handoff
    cache: KVCache
    text: Detokenizer
    logits: list[str]
    kv: tuple[str, ...] = ()
    tokens: list[int] = field(default_factory=list)
    steps: int = 0


class Decoder:
    """Receives and answers the requests of a plan."""

    def __init__(
        self, engine: Engine, region: MemoryRegion, model: Model, plan: Plan, parent: Parent, verify: bool
    ) -> None:
        self._engine = engine
        self._memory = region.view()
        self._model = model
        self._plan = plan
        self._parent = parent
        self._verify = verify
        # What has not arrived must not end a run that is to find out what it is.
        self._choose = likeliest if verify else greedy
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self._credits_left = len(plan.requests)

    async def answer_all(self, peer: Peer) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._receive_all(peer))
            group.create_task(self._generate_all(peer))

    async def _receive_all(self, peer: Peer) -> None:
        for slot in range(self._plan.first_credits):
            await self._lend(slot, peer)
        for _ in self._plan.requests:
            signal = await self._engine.wait_signal(KV_SIGNAL, peer=peer)
            if signal.error is not None:
                raise signal.error
            self._jobs.put_nowait(await self._land(signal.payload))

    async def _lend(self, slot: int, peer: Peer) -> None:
        """Offer a slot to prefill, filled with NaN: a byte that does not arrive will show."""
        if self._credits_left:
            self._credits_left -= 1
            await asyncio.to_thread(self._plan.layout.poison, slot, self._memory)
            await self._engine.signal(peer, CREDIT_SIGNAL, pack_credit(slot))

    async def _land(self, payload: bytes) -> _Job:
        handoff = Handoff.unpack(payload, self._plan)
        logits = self._plan.layout.logits(handoff.slot, self._memory)
        if not self._verify and greedy(logits) != handoff.first_token:
            raise DamagedError(
                f"prompt {handoff.request + 1}: the logits choose another token than prefill did"
            )
        at = time.monotonic()
        hashes = [logits_hash(logits)] if self._verify else []
        cache = self._plan.layout.cache(handoff.slot, self._memory)
        job = _Job(handoff, cache, self._model.tokenizer.detokenizer(), hashes)
        await self._parent.send(Landed(handoff.request, at, job.text.feed(handoff.first_token)))
        return job

    async def _generate_all(self, peer: Peer) -> None:
        for _ in self._plan.requests:
            job = await self._jobs.get()
            if self._verify:
                job.kv = await asyncio.to_thread(kv_hashes, job.cache, job.handoff.prompt_tokens)
            await self._generate(job)
            await self._lend(job.handoff.slot, peer)

    async def _generate(self, job: _Job) -> None:
        started, token, end = time.monotonic(), job.handoff.first_token, self._model.tokenizer.end_token
        while token != end:
            job.tokens.append(token)
            if len(job.tokens) == self._plan.max_tokens:
                break
            token = await asyncio.to_thread(self._step, job, token)
            if text := job.text.feed(token):
                await self._parent.send(Text(job.handoff.request, text))
        seconds = time.monotonic() - started
        if text := job.text.finish():
            await self._parent.send(Text(job.handoff.request, text))
        tokens = tuple(job.tokens)
        await self._parent.send(Generated(job.handoff.request, tokens, token == end, job.steps, seconds))
        if self._verify:
            await self._parent.send(Trace(job.handoff.request, tokens, job.kv, tuple(job.logits)))

    def _step(self, job: _Job, token: int) -> int:
        """One decoding step, reading the very memory that prefill wrote."""
        position = job.handoff.prompt_tokens + job.steps
        logits = self._model.llama.decode_step(token, position, job.cache)
        job.steps += 1
        if self._verify:
            job.logits.append(logits_hash(logits))
        return self._choose(logits)


async def serve(parent: Parent) -> None:
    """Be the decode process."""
    setup = await parent.receive(Setup)
    model, plan = await asyncio.to_thread(prepare, setup)
    options = EngineOptions(links=setup.links)
    async with (
        Engine(name="decode", backend=setup.backend, options=options) as engine,
        await engine.allocate(plan.layout.region_nbytes, label=KV_LABEL, access=Access.WRITE) as region,
        parent.told_of_errors(),
    ):
        await parent.send(Listening(engine.address))
        peer = await engine.accept()
        await Decoder(engine, region, model, plan, parent, setup.verify).answer_all(peer)
        await parent.finish()


def main() -> int:
    return run_child(serve, run)


if __name__ == "__main__":
    sys.exit(main())
