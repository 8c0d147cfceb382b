"""The single process that a run is compared with: the same prompts, prefilled and decoded in one place."""

from __future__ import annotations

import asyncio
import mmap
import sys

from hixl_aio.demo.child import Parent, run_child
from hixl_aio.demo.llama import KVCache, advance, greedy
from hixl_aio.demo.messages import Setup, Trace
from hixl_aio.demo.models import Model
from hixl_aio.demo.plan import Plan, Request, prepare
from hixl_aio.demo.verify import kv_hashes, logits_hash

__all__ = ("main", "serve", "trace_request")


def trace_request(model: Model, plan: Plan, request: Request, cache: KVCache) -> Trace:
    """Prefill and decode one request here, and hash what comes by."""
    cache.poison()
    steps = model.llama.prefill(request.tokens, cache)
    while isinstance(logits := advance(steps), int):
        pass
    kv = kv_hashes(cache, len(request.tokens))
    tokens, hashes = list[int](), [logits_hash(logits)]
    while (token := greedy(logits)) != model.tokenizer.end_token:
        tokens.append(token)
        if len(tokens) == plan.max_tokens:
            break
        logits = model.llama.decode_step(token, len(request.tokens) + len(tokens) - 1, cache)
        hashes.append(logits_hash(logits))
    return Trace(request.index, tuple(tokens), kv, tuple(hashes))


async def serve(parent: Parent) -> None:
    """Run every prompt in this one process and tell the traces."""
    setup = await parent.receive(Setup)
    model, plan = await asyncio.to_thread(prepare, setup)
    memory = memoryview(mmap.mmap(-1, plan.layout.slot_nbytes))  # aligned to a page, as registered memory is
    cache = plan.layout.cache(0, memory)
    for request in plan.requests:
        await parent.send(await asyncio.to_thread(trace_request, model, plan, request, cache))
    await parent.finish()


def main() -> int:
    return run_child(serve, asyncio.run)


if __name__ == "__main__":
    sys.exit(main())
