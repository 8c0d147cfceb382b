"""Llama's forward pass in NumPy, over a KV cache that lives in memory of the caller's choosing.

Prefill is a generator: it announces a layer as soon as that layer's K and V are final in the cache and
before the layer's attention and MLP run, so that the bytes can travel while the arithmetic goes on.
Decoding is the same code with one token, so that a prompt prefilled here and one prefilled elsewhere give
the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hixl_aio.demo.errors import CacheError, DamagedError, WeightsError
from hixl_aio.demo.gguf import Array, GgufFile

Rotations = npt.NDArray[np.complex64]

__all__ = (
    "KVCache",
    "LayerWeights",
    "Llama",
    "LlamaConfig",
    "LlamaWeights",
    "advance",
    "greedy",
    "likeliest",
    "load_weights",
)

# Queries scored at once: causal attention then skips most of what the mask would hide.
_QUERY_BLOCK: Final = 128


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The shape of a model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    context: int
    rope_theta: float
    norm_epsilon: float

    @classmethod
    def from_gguf(cls, file: GgufFile) -> LlamaConfig:
        architecture = file.get("general.architecture", str)
        if architecture != "llama":
            raise WeightsError("general.architecture", f"{architecture!r} is not llama")

        def integer(key: str) -> int:
            return file.get(f"llama.{key}", int)

        config = cls(
            layers=integer("block_count"),
            hidden=integer("embedding_length"),
            heads=integer("attention.head_count"),
            kv_heads=integer("attention.head_count_kv"),
            head_dim=integer("rope.dimension_count"),
            ffn=integer("feed_forward_length"),
            vocabulary=integer("vocab_size"),
            context=integer("context_length"),
            rope_theta=file.get("llama.rope.freq_base", float),
            norm_epsilon=file.get("llama.attention.layer_norm_rms_epsilon", float),
        )
        config.check()
        return config

    def check(self) -> None:
        sizes = (self.layers, self.hidden, self.heads, self.kv_heads, self.head_dim, self.ffn)
        if min(*sizes, self.vocabulary, self.context) < 1:
            raise WeightsError("configuration", f"a size is not positive in {self}")
        if self.heads % self.kv_heads or self.head_dim % 2:
            shape = f"{self.heads} heads, {self.kv_heads} KV heads, {self.head_dim} values each"
            raise WeightsError("configuration", shape)

    @property
    def kv_width(self) -> int:
        """Values of one token's K (or V) in one layer."""
        return self.kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's K and V over all layers."""
        return self.layers * 2 * self.kv_width * np.dtype(np.float32).itemsize


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, float32, rows are outputs. ``qkv`` is Q over K over V; ``gate_up`` is gate over up."""

    attention_norm: Array
    qkv: Array
    output: Array
    ffn_norm: Array
    gate_up: Array
    down: Array


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    config: LlamaConfig
    embedding: Array
    layers: tuple[LayerWeights, ...]
    norm: Array
    head: Array  # the embedding itself where the two are tied


def load_weights(file: GgufFile) -> LlamaWeights:
    """Dequantise every tensor once. The file may be closed afterwards."""
    config = LlamaConfig.from_gguf(file)
    heads, kv, ffn = config.heads * config.head_dim, config.kv_width, config.ffn

    def stacked(layer: int, parts: tuple[tuple[str, int], ...]) -> Array:
        out = np.empty((sum(rows for _, rows in parts), config.hidden), dtype=np.float32)
        start = 0
        for name, rows in parts:
            file.tensor(f"blk.{layer}.{name}.weight", out[start : start + rows])
            start += rows
        return out

    def plain(name: str, *shape: int) -> Array:
        return file.tensor(f"{name}.weight", np.empty(shape, dtype=np.float32))

    layers = tuple(
        LayerWeights(
            attention_norm=plain(f"blk.{layer}.attn_norm", config.hidden),
            qkv=stacked(layer, (("attn_q", heads), ("attn_k", kv), ("attn_v", kv))),
            output=plain(f"blk.{layer}.attn_output", config.hidden, heads),
            ffn_norm=plain(f"blk.{layer}.ffn_norm", config.hidden),
            gate_up=stacked(layer, (("ffn_gate", ffn), ("ffn_up", ffn))),
            down=plain(f"blk.{layer}.ffn_down", config.hidden, ffn),
        )
        for layer in range(config.layers)
    )
    embedding = plain("token_embd", config.vocabulary, config.hidden)
    tied = "output.weight" not in file.tensors
    head = embedding if tied else plain("output", config.vocabulary, config.hidden)
    return LlamaWeights(config, embedding, layers, plain("output_norm", config.hidden), head)


class KVCache:
    """K and V, token-major ``[layers, 2, tokens, kv_heads, head_dim]``: a view of the caller's buffer,
    never a copy.

    One layer's K (or V) of the first T tokens is one run of bytes; :meth:`span` says which.
    """

    __slots__ = ("_array", "_config", "tokens")

    def __init__(self, config: LlamaConfig, buffer: memoryview | bytearray, tokens: int) -> None:
        shape = (config.layers, 2, tokens, config.kv_heads, config.head_dim)
        view = memoryview(buffer)
        needed = self.nbytes_for(config, tokens)
        if tokens < 1 or view.nbytes < needed:
            raise CacheError(f"{tokens} tokens need {needed} bytes, the buffer has {view.nbytes}")
        if view.readonly:
            raise CacheError("the buffer is read-only")
        self._config = config
        self.tokens = tokens
        self._array: Array = np.frombuffer(view, dtype=np.float32, count=needed // 4).reshape(shape)

    @staticmethod
    def nbytes_for(config: LlamaConfig, tokens: int) -> int:
        return tokens * config.kv_bytes_per_token

    @property
    def layers(self) -> int:
        return self._config.layers

    def keys(self, layer: int, tokens: int) -> Array:
        return self._array[layer, 0, :tokens]

    def values(self, layer: int, tokens: int) -> Array:
        return self._array[layer, 1, :tokens]

    def span(self, layer: int, part: int, tokens: int) -> slice:
        """Which bytes of the buffer are K (part 0) or V (part 1) of the layer's first ``tokens`` tokens."""
        width = self._config.kv_width * self._array.itemsize
        start = (layer * 2 + part) * self.tokens * width
        return slice(start, start + tokens * width)

    def poison(self) -> None:
        """Fill with 0xFF, every value a NaN: whatever is read without having been written shows."""
        self._array.view(np.uint32).fill(0xFFFFFFFF)


class Llama:
    """The model. One instance may serve several caches, one call at a time."""

    def __init__(self, weights: LlamaWeights) -> None:
        self.config = weights.config
        self._weights = weights
        self._heads = self.config.heads * self.config.head_dim
        self._scale = np.float32(1.0 / math.sqrt(self.config.head_dim))
        half = np.arange(self.config.head_dim // 2, dtype=np.float64)
        frequency = self.config.rope_theta ** (-2.0 * half / self.config.head_dim)
        angles = np.arange(self.config.context, dtype=np.float64)[:, None] * frequency
        self._rotations: Rotations = np.exp(1j * angles).astype(np.complex64)

    def prefill(self, tokens: Sequence[int], cache: KVCache) -> Generator[int, None, Array]:
        """Yields each layer once its K and V are final in ``cache``; returns the last position's logits."""
        return self._forward(tokens, cache, 0)

    def decode_step(self, token: int, position: int, cache: KVCache) -> Array:
        """The logits after ``token`` at ``position``, whose K and V join the cache."""
        steps = self._forward((token,), cache, position)
        while not isinstance(step := advance(steps), np.ndarray):
            pass
        return step

    def _forward(self, tokens: Sequence[int], cache: KVCache, start: int) -> Generator[int, None, Array]:
        self._check(tokens, cache, start)
        count = len(tokens)
        rotations = self._rotations[start : start + count, None, :]
        x = self._weights.embedding[np.asarray(tokens, dtype=np.intp)]
        for index, layer in enumerate(self._weights.layers):
            target = cache.keys(index, start + count), cache.values(index, start + count)
            queries = self._project(self._norm(x, layer.attention_norm), layer, rotations, target, start)
            yield index
            if index == self.config.layers - 1:  # only the last position is asked for
                x, queries = x[-1:], queries[-1:]
            x = x + self._attend(queries, *target) @ layer.output.T
            x = x + self._mlp(self._norm(x, layer.ffn_norm), layer)
        last: Array = self._weights.head @ self._norm(x, self._weights.norm)[0]
        return last

    def _check(self, tokens: Sequence[int], cache: KVCache, start: int) -> None:
        if not tokens:
            raise CacheError("there are no tokens to run")
        if start < 0 or start + len(tokens) > min(cache.tokens, self.config.context):
            room = min(cache.tokens, self.config.context)
            raise CacheError(f"positions {start} to {start + len(tokens)} do not fit into {room} token slots")
        if min(tokens) < 0 or max(tokens) >= self.config.vocabulary:
            raise CacheError(f"a token id lies outside the vocabulary of {self.config.vocabulary}")

    def _norm(self, x: Array, weight: Array) -> Array:
        mean = np.mean(np.square(x), axis=-1, keepdims=True)
        normed: Array = x / np.sqrt(mean + np.float32(self.config.norm_epsilon)) * weight
        return normed

    def _project(
        self, x: Array, layer: LayerWeights, rotations: Rotations, target: tuple[Array, Array], start: int
    ) -> Array:
        """Q, rotated; K, rotated, and V go to the cache from position ``start`` on.

        Neighbouring values are one rotated pair: the file has its rows in that order.
        """
        heads, rotated = self.config.heads, self.config.heads + self.config.kv_heads
        parts = (x @ layer.qkv.T).reshape(len(x), -1, self.config.head_dim)
        pairs = parts[:, :rotated].view(np.complex64)
        pairs *= rotations
        keys, values = target
        keys[start:] = parts[:, heads:rotated]
        values[start:] = parts[:, rotated:]
        return parts[:, :heads]

    def _attend(self, queries: Array, keys: Array, values: Array) -> Array:
        """Causal attention of the last ``len(queries)`` positions over all keys, read where they lie."""
        count, total = len(queries), len(keys)
        out = np.empty((count, self._heads), dtype=np.float32)
        for begin in range(0, count, _QUERY_BLOCK):
            end = min(begin + _QUERY_BLOCK, count)
            seen = total - count + end
            out[begin:end] = self._attend_block(queries[begin:end], keys[:seen], values[:seen])
        return out

    def _attend_block(self, queries: Array, keys: Array, values: Array) -> Array:
        config, count, seen = self.config, len(queries), len(keys)
        group = config.heads // config.kv_heads
        q = queries.reshape(count, config.kv_heads, group, config.head_dim).transpose(1, 2, 0, 3)
        scaled: Array = (q * self._scale).reshape(config.kv_heads, group * count, config.head_dim)
        scores: Array = scaled @ keys.transpose(1, 2, 0)
        if count > 1:
            future = np.triu(np.full((count, count), -np.inf, dtype=np.float32), 1)
            scores.reshape(config.kv_heads, group, count, seen)[..., seen - count :] += future
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed: Array = scores @ values.transpose(1, 0, 2)
        by_head = mixed.reshape(config.kv_heads, group, count, config.head_dim)
        return by_head.transpose(2, 0, 1, 3).reshape(count, self._heads)

    def _mlp(self, x: Array, layer: LayerWeights) -> Array:
        projected = x @ layer.gate_up.T
        half = projected[:, : self.config.ffn] * np.float32(0.5)
        # silu(g) = g/2 · (1 + tanh(g/2)): unlike 1/(1+exp(-g)) it cannot overflow
        activated = half * (np.tanh(half) + np.float32(1.0)) * projected[:, self.config.ffn :]
        mixed: Array = activated @ layer.down.T
        return mixed


def advance(steps: Generator[int, None, Array]) -> int | Array:
    """One step of a prefill: the layer that became final, or the logits at the end.

    For ``asyncio.to_thread``, in whose future the ``StopIteration`` of plain ``next`` could not travel.
    """
    try:
        return next(steps)
    except StopIteration as stop:
        logits: Array = stop.value
        return logits


def greedy(logits: Array) -> int:
    """The likeliest token. Raises :class:`DamagedError` where it is not a number."""
    token = likeliest(logits)
    if np.isnan(logits[token]):
        raise DamagedError("the logits are not numbers: a key or value was read that had never been written")
    return token


def likeliest(logits: Array) -> int:
    """The likeliest token; NaN wins over every number."""
    return int(np.argmax(logits))
