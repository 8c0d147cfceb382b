"""Prefill and decode on two real engines: nothing is copied on arrival, and the two overlap."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import hixl_aio.demo
from hixl_aio import Access, Engine, MemoryRegion, Peer
from hixl_aio.demo.child import Parent
from hixl_aio.demo.decode import Decoder
from hixl_aio.demo.gguf import Array
from hixl_aio.demo.llama import KVCache, Llama
from hixl_aio.demo.messages import Generated, Landed, Message
from hixl_aio.demo.models import Model, load_model
from hixl_aio.demo.plan import KV_LABEL, Plan, make_plan
from hixl_aio.demo.prefill import Prefiller

PATIENCE = 20.0
PROMPTS = ("short", "a longer prompt than the first one", "中文")


class Watched(Llama):
    """A model that reports which keys and values its attention reads, and each layer and step beforehand."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.llama._weights)
        self.read: list[tuple[Array, Array]] = []
        self.before_layer: Callable[[int], None] = lambda _: None
        self.before_step: Callable[[], None] = lambda: None

    def _attend(self, queries: Array, keys: Array, values: Array) -> Array:
        self.read.append((keys, values))
        return super()._attend(queries, keys, values)

    def prefill(self, tokens: Sequence[int], cache: KVCache) -> Generator[int, None, Array]:
        steps = super().prefill(tokens, cache)
        for layer in range(self.config.layers):
            self.before_layer(layer)
            yield next(steps)
        return (yield from steps)

    def decode_step(self, token: int, position: int, cache: KVCache) -> Array:
        self.before_step()
        return super().decode_step(token, position, cache)


class Listener:
    """A parent that remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.on: dict[str, Callable[[], None]] = {}

    async def send(self, message: Message) -> None:
        if isinstance(message, Landed | Generated):
            name = f"{type(message).__name__} {message.request}"
            self.said.append(name)
            self.on.get(name, lambda: None)()


@dataclass
class Stage:
    """Both sides, connected; :meth:`play` runs them."""

    plan: Plan
    prefilling: Watched
    decoding: Watched
    source: MemoryRegion
    region: MemoryRegion
    listener: Listener
    prefiller: Prefiller
    decoder: Decoder
    prefill_peer: Peer

    async def play(self) -> None:
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            group.create_task(self.prefiller.send_all())
            group.create_task(self.decoder.answer_all(self.prefill_peer))


@contextlib.asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    model = load_model("tiny")
    plan = make_plan(model, PROMPTS, 6)
    prefilling, decoding, listener = Watched(model), Watched(model), Listener()
    nbytes = plan.layout.region_nbytes
    async with (
        Engine(name="decode") as decode,
        Engine(name="prefill") as prefill,
        await decode.allocate(nbytes, label=KV_LABEL, access=Access.WRITE) as region,
        await prefill.allocate(nbytes) as source,
    ):
        peer = await prefill.connect(decode.address)
        target = peer.region(KV_LABEL)
        prefiller = Prefiller(prefill, peer, source, target, replace(model, llama=prefilling), plan)
        parent = cast("Parent", listener)
        decoder = Decoder(decode, region, replace(model, llama=decoding), plan, parent, verify=False)
        accepted = await decode.accept()
        yield Stage(plan, prefilling, decoding, source, region, listener, prefiller, decoder, accepted)


def lies_in(array: Array, region: MemoryRegion, plan: Plan) -> list[int]:
    """In which slots of the region the array lies, as a view and not as a copy."""
    whole = np.frombuffer(region.view(), dtype=np.uint8)
    assert np.shares_memory(array, whole)
    size = plan.layout.slot_nbytes
    return [slot for slot in range(2) if np.shares_memory(array, whole[slot * size : (slot + 1) * size])]


@pytest.mark.asyncio
async def test_attention_reads_the_registered_memory_itself() -> None:
    """Every key and value that either process reads lies in its registered region; both slots are used."""
    async with stage() as it:
        await it.play()
        layers = it.plan.layout.config.layers
        assert len(it.prefilling.read) == layers * len(PROMPTS)
        assert len(it.decoding.read) == layers * len(PROMPTS) * 5
        for model, region in ((it.prefilling, it.source), (it.decoding, it.region)):
            slots = [lies_in(array, region, it.plan) for pair in model.read for array in pair]
            assert sorted({tuple(found) for found in slots}) == [(0,), (1,)]


@pytest.mark.asyncio
async def test_the_next_prompt_is_prefilled_while_this_one_is_decoded() -> None:
    """Decode of prompt 1 cannot go on before prompt 2 has landed, and it does; prompt 3 needs a slot back."""
    async with stage() as it:
        landed = threading.Event()
        it.listener.on["Landed 1"] = landed.set

        def wait() -> None:
            assert landed.wait(PATIENCE), "prefill waited for decode"

        it.decoding.before_step = wait
        await it.play()
        said = it.listener.said
        assert said.index("Landed 1") < said.index("Generated 0") < said.index("Landed 2")


@pytest.mark.asyncio
async def test_a_layer_is_sent_before_the_last_one_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """When prefill comes to its last layer, the bytes of the first one have landed already."""
    async with stage() as it:
        tokens = len(it.plan.requests[0].tokens)
        theirs = it.plan.layout.cache(0, it.region.view())
        ours = it.plan.layout.cache(0, it.source.view())
        put_layer, first_is_sent, seen = it.prefiller._put_layer, threading.Event(), list[bool]()

        def send(*arguments: Any) -> None:
            put_layer(*arguments)
            first_is_sent.set()

        def look(layer: int) -> None:
            if layer == it.plan.layout.config.layers - 1 and not seen:
                assert first_is_sent.wait(PATIENCE), "sending waited for computing"
                seen.append(bool(np.array_equal(theirs.keys(0, tokens), ours.keys(0, tokens))))

        it.prefilling.before_layer = look
        monkeypatch.setattr(it.prefiller, "_put_layer", send)
        await it.play()
        assert seen == [True]


@pytest.mark.parametrize("name", ["decode", "prefill", "child", "channel", "supervise", "run", "screen"])
def test_nothing_sleeps(name: str) -> None:
    """What waits is woken: no module of the run sleeps."""
    assert "sleep" not in (Path(hixl_aio.demo.__file__).parent / f"{name}.py").read_text()
