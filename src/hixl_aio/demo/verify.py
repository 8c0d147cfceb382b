"""The proof that the bytes arrived: a comparison with a single process of everything that must be equal.

Tokens alone are a weak test, because one flipped bit may leave them unchanged. Compared are a hash of K and
of V of every layer, a hash of every step's logits, and the tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hixl_aio.demo.messages import Trace

if TYPE_CHECKING:  # the parent compares and must not load NumPy
    from hixl_aio.demo.gguf import Array
    from hixl_aio.demo.llama import KVCache

__all__ = ("first_difference", "kv_hashes", "logits_hash")


def kv_hashes(cache: KVCache, tokens: int) -> tuple[str, ...]:
    """Hashes of the first ``tokens`` tokens' bytes: K and V of layer 0, K and V of layer 1, and so on."""
    runs = (
        part
        for layer in range(cache.layers)
        for part in (cache.keys(layer, tokens), cache.values(layer, tokens))
    )
    return tuple(hashlib.blake2b(run.data, digest_size=16).hexdigest() for run in runs)


def logits_hash(logits: Array) -> str:
    return hashlib.blake2b(logits.data, digest_size=16).hexdigest()


def first_difference(two: Sequence[Trace], one: Sequence[Trace]) -> str | None:
    """Where the run of two processes first departs from the run of one, in words; None where it does not."""
    for pair, single in zip(two, one, strict=True):
        name = f"prompt {single.request + 1}"
        for index, (found, wanted) in enumerate(zip(pair.kv, single.kv, strict=True)):
            if found != wanted:
                return f"{name}: the KV bytes differ first in {'KV'[index % 2]} of layer {index // 2}"
        for step in range(max(len(pair.logits), len(single.logits))):
            if pair.logits[step : step + 1] != single.logits[step : step + 1]:
                return f"{name}: the logits differ first at step {step}"
            if pair.tokens[step : step + 1] != single.tokens[step : step + 1]:
                return f"{name}: the tokens differ first at step {step}"
        if pair.tokens != single.tokens:
            return f"{name}: {len(pair.tokens)} tokens, the single process has {len(single.tokens)}"
    return None
