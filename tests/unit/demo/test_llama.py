"""The forward pass: against a slow reference, against itself, and against what a person would expect."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from hixl_aio._program.process import child_environment
from hixl_aio.demo.errors import CacheError, DamagedError, WeightsError
from hixl_aio.demo.gguf import Array
from hixl_aio.demo.llama import KVCache, LlamaWeights, advance, greedy
from hixl_aio.demo.models import TINY_CONFIG, Model, tiny_weights

from .support import new_cache, prefill, say

PROMPT = list(range(3, 40))


def reference(weights: LlamaWeights, tokens: list[int]) -> list[float]:
    """The last position's logits in double precision, head by head and position by position."""
    c, w = weights.config, weights
    double = np.float64

    def norm(x: np.ndarray, weight: Array) -> np.ndarray:
        return np.array(
            [v / math.sqrt(float(np.mean(v * v)) + c.norm_epsilon) * weight for v in x], dtype=double
        )

    def rotate(vector: np.ndarray, position: int) -> np.ndarray:
        out = vector.copy()
        for pair in range(c.head_dim // 2):
            angle = position * c.rope_theta ** (-2 * pair / c.head_dim)
            a, b = vector[2 * pair], vector[2 * pair + 1]
            out[2 * pair] = a * math.cos(angle) - b * math.sin(angle)
            out[2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
        return out

    x = w.embedding[tokens].astype(double)
    for layer in w.layers:
        h = norm(x, layer.attention_norm)
        q, k, v = np.split(
            h @ layer.qkv.T.astype(double), [c.heads * c.head_dim, c.heads * c.head_dim + c.kv_width], 1
        )
        mixed = np.zeros((len(tokens), c.heads * c.head_dim), dtype=double)
        for head in range(c.heads):
            kv = slice(
                head // (c.heads // c.kv_heads) * c.head_dim,
                (head // (c.heads // c.kv_heads) + 1) * c.head_dim,
            )
            own = slice(head * c.head_dim, (head + 1) * c.head_dim)
            keys = [rotate(k[t, kv], t) for t in range(len(tokens))]
            for t in range(len(tokens)):
                query = rotate(q[t, own], t)
                scores = np.array([query @ keys[s] for s in range(t + 1)]) / math.sqrt(c.head_dim)
                weight = np.exp(scores - scores.max())
                mixed[t, own] = (weight / weight.sum()) @ v[: t + 1, kv]
        x = x + mixed @ layer.output.T
        gate, up = np.split(norm(x, layer.ffn_norm) @ layer.gate_up.T.astype(double), 2, 1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ layer.down.T
    logits: list[float] = (w.head @ norm(x, w.norm)[-1]).tolist()
    return logits


def decode_all(model: Model, tokens: list[int], cache: KVCache) -> Array:
    logits: Array | None = None
    for position, token in enumerate(tokens):
        logits = model.llama.decode_step(token, position, cache)
    assert logits is not None
    return logits


def test_against_the_reference(tiny: Model) -> None:
    """Logits of a prompt equal a slow double-precision evaluation of the same weights."""
    logits = prefill(tiny, PROMPT, new_cache(tiny.config, len(PROMPT)))
    assert np.allclose(logits, reference(tiny_weights(), PROMPT), rtol=1e-4, atol=1e-4)


def test_long_prompts_against_single_tokens(tiny: Model) -> None:
    """A prompt longer than several query blocks gives what token-by-token decoding gives, cache included."""
    tokens = [3 + (7 * n) % 250 for n in range(300)]
    at_once, one_by_one = new_cache(tiny.config, 300), new_cache(tiny.config, 300)
    logits = prefill(tiny, tokens, at_once)
    assert np.allclose(logits, decode_all(tiny, tokens, one_by_one), rtol=1e-3, atol=1e-3)
    for layer in range(tiny.config.layers):
        assert np.allclose(at_once.keys(layer, 300), one_by_one.keys(layer, 300), rtol=1e-3, atol=1e-3)
        assert np.allclose(at_once.values(layer, 300), one_by_one.values(layer, 300), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["tiny", "smollm2"])
def test_decoding_continues_a_prefill(name: str, request: pytest.FixtureRequest) -> None:
    """A prefill of N tokens and one decoding step equal a prefill of N + 1 tokens."""
    model: Model = request.getfixturevalue(name)
    tokens = model.tokenizer.chat("The quick brown fox jumps over the lazy dog.")
    longer = prefill(model, tokens, new_cache(model.config, len(tokens)))
    cache = new_cache(model.config, len(tokens))
    prefill(model, tokens[:-1], cache)
    stepped = model.llama.decode_step(tokens[-1], len(tokens) - 1, cache)
    assert np.allclose(longer, stepped, rtol=1e-3, atol=2e-3)
    assert greedy(longer) == greedy(stepped)


def test_a_layer_is_final_when_it_is_announced(tiny: Model) -> None:
    """At layer l's announcement its K and V never change again, and no later layer has been touched."""
    cache = new_cache(tiny.config, len(PROMPT) + 5)
    announced: list[bytes] = []
    steps = tiny.llama.prefill(PROMPT, cache)
    while isinstance(layer := advance(steps), int):
        assert layer == len(announced)
        announced.append(
            cache.keys(layer, len(PROMPT)).tobytes() + cache.values(layer, len(PROMPT)).tobytes()
        )
        assert np.isfinite(cache.keys(layer, len(PROMPT))).all()
        for later in range(layer + 1, tiny.config.layers):
            assert np.isnan(cache.keys(later, cache.tokens)).all()
            assert np.isnan(cache.values(later, cache.tokens)).all()
    for layer, content in enumerate(announced):
        assert (
            cache.keys(layer, len(PROMPT)).tobytes() + cache.values(layer, len(PROMPT)).tobytes() == content
        )
        assert np.isnan(cache.keys(layer, cache.tokens)[len(PROMPT) :]).all()


def test_plain_iteration_announces_every_layer(tiny: Model) -> None:
    """A prefill is an ordinary generator of layer numbers."""
    cache = new_cache(tiny.config, len(PROMPT))
    assert list(tiny.llama.prefill(PROMPT, cache)) == list(range(tiny.config.layers))


def test_spans_are_where_the_values_are(tiny: Model) -> None:
    """The span of a layer's K or V names exactly the bytes that attention reads as such."""
    tokens, room = len(PROMPT), len(PROMPT) + 9
    buffer = bytearray(KVCache.nbytes_for(tiny.config, room))
    cache = KVCache(tiny.config, buffer, room)
    prefill(tiny, PROMPT, cache)
    spans = []
    for layer in range(tiny.config.layers):
        for part, values in enumerate((cache.keys(layer, tokens), cache.values(layer, tokens))):
            span = cache.span(layer, part, tokens)
            assert buffer[span] == values.tobytes()
            spans.append(span)
    assert sum(span.stop - span.start for span in spans) == tokens * tiny.config.kv_bytes_per_token
    assert all(one.stop <= next_.start for one, next_ in itertools.pairwise(spans))


def test_attention_reads_the_callers_memory(tiny: Model) -> None:
    """Bytes copied into another cache's buffer continue the text bit for bit; one changed byte changes it."""
    room = len(PROMPT) + 4
    source = bytearray(KVCache.nbytes_for(tiny.config, room))
    origin = KVCache(tiny.config, source, room)
    token = greedy(prefill(tiny, PROMPT, origin))
    landed = bytearray(b"\xff") * len(source)
    target = KVCache(tiny.config, landed, room)
    for layer in range(tiny.config.layers):
        for part in range(2):
            span = origin.span(layer, part, len(PROMPT))
            landed[span] = source[span]
    expected = tiny.llama.decode_step(token, len(PROMPT), origin)
    assert tiny.llama.decode_step(token, len(PROMPT), target).tobytes() == expected.tobytes()
    landed[target.span(2, 0, 1).start + 2] ^= 0x40
    assert tiny.llama.decode_step(token, len(PROMPT), target).tobytes() != expected.tobytes()


def test_missing_bytes_are_noticed(tiny: Model) -> None:
    """A run that never arrived is read as NaN and ends in an error instead of a plausible token."""
    cache = new_cache(tiny.config, len(PROMPT) + 1)
    token = greedy(prefill(tiny, PROMPT, cache))
    cache.keys(1, len(PROMPT)).view(np.uint32).fill(0xFFFFFFFF)
    with pytest.raises(DamagedError, match="never been written"):
        greedy(tiny.llama.decode_step(token, len(PROMPT), cache))


def test_the_cache_must_fit(tiny: Model) -> None:
    """Buffers that are short or read-only, and tokens or positions outside, are CacheErrors."""
    need = KVCache.nbytes_for(tiny.config, 8)
    with pytest.raises(CacheError, match="8 tokens need"):
        KVCache(tiny.config, bytearray(need - 1), 8)
    with pytest.raises(CacheError, match="read-only"):
        KVCache(tiny.config, memoryview(bytes(need)), 8)
    cache = new_cache(tiny.config, 8)
    for tokens in ([], list(range(9)), [tiny.config.vocabulary], [-1]):
        with pytest.raises(CacheError):
            prefill(tiny, tokens, cache)
    for position in (-1, 8):
        with pytest.raises(CacheError):
            tiny.llama.decode_step(5, position, cache)


def test_impossible_shapes_are_refused() -> None:
    """A configuration with a zero or with heads that do not divide is a WeightsError."""
    for wrong in (
        replace(TINY_CONFIG, layers=0),
        replace(TINY_CONFIG, kv_heads=3),
        replace(TINY_CONFIG, head_dim=5),
    ):
        with pytest.raises(WeightsError):
            wrong.check()


TWIN = """
import hashlib, sys
from hixl_aio.demo.llama import KVCache, advance, greedy
from hixl_aio.demo.models import load_model
model = load_model("tiny")
tokens = model.tokenizer.chat("same bits?")
offset = int(sys.argv[1])
buffer = memoryview(bytearray(offset + KVCache.nbytes_for(model.config, 300)))[offset:]
cache = KVCache(model.config, buffer, 300)
steps = model.llama.prefill(tokens, cache)
digest = hashlib.sha256()
while isinstance(logits := advance(steps), int):
    pass
for position in range(len(tokens), len(tokens) + 20):
    digest.update(logits.tobytes())
    logits = model.llama.decode_step(greedy(logits), position, cache)
print(digest.hexdigest())
"""


def test_processes_agree_bit_for_bit() -> None:
    """Two processes started with the child environment compute the same bits, wherever the cache lies."""
    results = {
        subprocess.run(
            [sys.executable, "-c", TWIN, offset],
            env=child_environment(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for offset in ("0", "16", "4")
    }
    assert len(results) == 1
    assert len(results.pop()) == 65


def test_smollm2_answers_sensibly(smollm2: Model) -> None:
    """The real model knows the capital of France and stops by itself."""
    assert say(smollm2, "What is the capital of France?", 30) == "The capital of France is Paris."


def test_smollm2_reads_chinese(smollm2: Model) -> None:
    """A Chinese prompt goes through mechanically: the answer is text."""
    assert say(smollm2, "请用一句话介绍北京。", 12).strip()
