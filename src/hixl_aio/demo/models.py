"""The two models of the demo behind one interface: SmolLM2 from its file, a tiny one out of thin air."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from hixl_aio.demo.errors import DownloadError
from hixl_aio.demo.gguf import Array, GgufFile
from hixl_aio.demo.llama import LayerWeights, Llama, LlamaConfig, LlamaWeights, load_weights
from hixl_aio.demo.options import ModelName
from hixl_aio.demo.tokenizer import Tokenizer, byte_alphabet
from hixl_aio.demo.weights import SMOLLM2

__all__ = ("TINY_CONFIG", "Model", "load_model", "tiny_tokenizer", "tiny_weights")

_CONTROL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TINY_SEED: Final = 20250207
TINY_CONFIG: Final = LlamaConfig(
    layers=4,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    ffn=128,
    vocabulary=len(_CONTROL_TOKENS) + 256,
    context=8192,
    rope_theta=10_000.0,
    norm_epsilon=1e-5,
)


@dataclass(frozen=True, slots=True)
class Model:
    """Everything needed to turn a prompt into text."""

    name: ModelName
    llama: Llama
    tokenizer: Tokenizer

    @property
    def config(self) -> LlamaConfig:
        return self.llama.config


def load_model(name: ModelName, path: Path | None = None) -> Model:
    """Load a model. ``path`` is what :func:`hixl_aio.demo.weights.ensure` answered; ``tiny`` needs none."""
    if name == "tiny":
        return Model("tiny", Llama(tiny_weights()), tiny_tokenizer())
    if path is None:
        raise DownloadError(SMOLLM2.requirement, "no file was given", SMOLLM2.file_name)
    with GgufFile(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
        return Model("smollm2", Llama(load_weights(file)), tokenizer)


def tiny_tokenizer() -> Tokenizer:
    """One token per byte and the three control tokens of the chat format; no merges."""
    tokens = (*_CONTROL_TOKENS, *(character for _, character in sorted(byte_alphabet().items())))
    return Tokenizer(tokens, (), range(len(_CONTROL_TOKENS)))


def tiny_weights(config: LlamaConfig = TINY_CONFIG, seed: int = _TINY_SEED) -> LlamaWeights:
    """Random weights, the same in every process. They speak noise, but printable noise without an end."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Array:
        values = random.standard_normal((rows, columns), dtype=np.float32)
        return values * np.float32(columns**-0.5)

    attention, norm = config.heads * config.head_dim, np.ones(config.hidden, dtype=np.float32)
    layers = tuple(
        LayerWeights(
            attention_norm=norm,
            qkv=matrix(attention + 2 * config.kv_width, config.hidden) * np.float32(2.0),
            output=matrix(config.hidden, attention) * np.float32(2.0),
            ffn_norm=norm,
            gate_up=matrix(2 * config.ffn, config.hidden) * np.float32(2.0),
            down=matrix(config.hidden, config.ffn) * np.float32(2.0),
        )
        for _ in range(config.layers)
    )
    embedding, head = matrix(config.vocabulary, config.hidden), matrix(config.vocabulary, config.hidden)
    printable = slice(len(_CONTROL_TOKENS) + 0x20, len(_CONTROL_TOKENS) + 0x7F)
    muted = np.zeros_like(head)  # logit 0, below the best of 95 random ones
    muted[printable] = head[printable]
    return LlamaWeights(config, embedding, layers, norm, muted)
