"""What prefill and decode must agree on, computed by both from the same prompts: requests, slots, hand-over.

A slot is one request's landing place: its KV cache and, behind it, the logits of the prompt's last position.
Both processes lay their slots out alike, so that a span of the one is the same span of the other.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from hixl_aio.demo.errors import CacheError, HandoffError
from hixl_aio.demo.gguf import Array
from hixl_aio.demo.llama import KVCache, LlamaConfig
from hixl_aio.demo.messages import Setup
from hixl_aio.demo.models import Model, load_model

__all__ = (
    "CREDIT_SIGNAL",
    "KV_LABEL",
    "KV_SIGNAL",
    "SLOTS",
    "Handoff",
    "Plan",
    "Request",
    "SlotLayout",
    "make_plan",
    "pack_credit",
    "prepare",
    "unpack_credit",
)

KV_LABEL: Final = "kv"  # the label of decode's region
KV_SIGNAL: Final = "kv"  # prefill to decode: a request's bytes are all there
CREDIT_SIGNAL: Final = "credit"  # decode to prefill: a slot is free
SLOTS: Final = 2
_PAGE: Final = 4096
_HANDOFF: Final = struct.Struct("<4sIIII")
_MAGIC: Final = b"kv/1"


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, tokenised."""

    index: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """Where things lie in a region of :data:`SLOTS` slots."""

    config: LlamaConfig
    tokens: int

    @property
    def kv_nbytes(self) -> int:
        return KVCache.nbytes_for(self.config, self.tokens)

    @property
    def logits_nbytes(self) -> int:
        return self.config.vocabulary * np.dtype(np.float32).itemsize

    @property
    def slot_nbytes(self) -> int:
        return -(-(self.kv_nbytes + self.logits_nbytes) // _PAGE) * _PAGE

    @property
    def region_nbytes(self) -> int:
        return SLOTS * self.slot_nbytes

    def logits_span(self, slot: int) -> slice:
        start = slot * self.slot_nbytes + self.kv_nbytes
        return slice(start, start + self.logits_nbytes)

    def shift(self, slot: int, span: slice) -> slice:
        """A span of a slot's cache, counted from the region's start."""
        return slice(slot * self.slot_nbytes + span.start, slot * self.slot_nbytes + span.stop)

    def cache(self, slot: int, memory: memoryview) -> KVCache:
        """The slot's cache: a view of the region's memory."""
        start = slot * self.slot_nbytes
        return KVCache(self.config, memory[start : start + self.kv_nbytes], self.tokens)

    def poison(self, slot: int, memory: memoryview) -> None:
        """Fill the slot with 0xFF, every value a NaN: whatever is read without having been written shows."""
        start = slot * self.slot_nbytes
        np.frombuffer(memory[start : start + self.slot_nbytes], dtype=np.uint8).fill(0xFF)

    def logits(self, slot: int, memory: memoryview) -> Array:
        """The slot's logits: a view of the region's memory."""
        return np.frombuffer(memory[self.logits_span(slot)], dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Plan:
    """All requests, in order, and the slots they go through."""

    requests: tuple[Request, ...]
    layout: SlotLayout
    max_tokens: int

    @property
    def first_credits(self) -> int:
        """How many slots are offered before anything was decoded."""
        return min(SLOTS, len(self.requests))


def make_plan(model: Model, prompts: Sequence[str], max_tokens: int) -> Plan:
    """Tokenise the prompts and size the slots for the longest of them."""
    requests = tuple(Request(i, tuple(model.tokenizer.chat(prompt))) for i, prompt in enumerate(prompts))
    longest = max(len(request.tokens) for request in requests)
    needed = longest + max_tokens
    if needed > model.config.context:
        parts = f"a prompt of {longest} tokens and {max_tokens} new ones"
        raise CacheError(f"{parts} exceed the model's context of {model.config.context}")
    return Plan(requests, SlotLayout(model.config, needed), max_tokens)


def prepare(setup: Setup) -> tuple[Model, Plan]:
    """Load the model and plan the run, as each process does for itself."""
    model = load_model(setup.model, None if setup.path is None else Path(setup.path))
    return model, make_plan(model, setup.prompts, setup.max_tokens)


@dataclass(frozen=True, slots=True)
class Handoff:
    """The payload of the signal that says a request has landed: 20 bytes, little-endian."""

    request: int
    slot: int
    prompt_tokens: int
    first_token: int

    def pack(self) -> bytes:
        return _HANDOFF.pack(_MAGIC, self.request, self.slot, self.prompt_tokens, self.first_token)

    @classmethod
    def unpack(cls, payload: bytes, plan: Plan) -> Handoff:
        """Read a payload and check it against what this process knows of the request."""
        if len(payload) != _HANDOFF.size or payload[:4] != _MAGIC:
            raise HandoffError(f"{len(payload)} bytes that begin with {payload[:4]!r} are no hand-over")
        _, request, slot, prompt_tokens, first_token = _HANDOFF.unpack(payload)
        if request >= len(plan.requests) or slot >= SLOTS or first_token >= plan.layout.config.vocabulary:
            raise HandoffError(f"request {request}, slot {slot} or token {first_token} does not exist")
        if prompt_tokens != len(plan.requests[request].tokens):
            wanted = len(plan.requests[request].tokens)
            raise HandoffError(f"request {request} has {wanted} tokens, not {prompt_tokens}")
        return cls(request, slot, prompt_tokens, first_token)


def pack_credit(slot: int) -> bytes:
    return bytes((slot,))


def unpack_credit(payload: bytes) -> int:
    if len(payload) != 1 or payload[0] >= SLOTS:
        raise HandoffError(f"{payload[:8]!r} is no credit")
    return payload[0]
