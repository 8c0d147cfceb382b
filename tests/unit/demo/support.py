"""Small things several tests of the demo share."""

from __future__ import annotations

from collections.abc import Sequence

from hixl_aio.demo.gguf import Array
from hixl_aio.demo.llama import KVCache, LlamaConfig, advance, greedy
from hixl_aio.demo.models import Model

__all__ = ("new_cache", "prefill", "say")


def new_cache(config: LlamaConfig, tokens: int) -> KVCache:
    cache = KVCache(config, bytearray(KVCache.nbytes_for(config, tokens)), tokens)
    cache.poison()
    return cache


def prefill(model: Model, tokens: Sequence[int], cache: KVCache) -> Array:
    steps = model.llama.prefill(tokens, cache)
    while isinstance(step := advance(steps), int):
        pass
    return step


def say(model: Model, prompt: str, most: int) -> str:
    """The model's answer, at most ``most`` tokens of it."""
    tokens = model.tokenizer.chat(prompt)
    cache = new_cache(model.config, len(tokens) + most)
    logits, answer = prefill(model, tokens, cache), list[int]()
    while len(answer) < most and (token := greedy(logits)) != model.tokenizer.end_token:
        logits = model.llama.decode_step(token, len(tokens) + len(answer), cache)
        answer.append(token)
    return model.tokenizer.decode(answer)
