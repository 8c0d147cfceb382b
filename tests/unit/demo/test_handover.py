"""Prefill and decode together, over a network that is as lazy and unordered as the contract allows."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, replace
from typing import Any

import pytest

from hixl_aio.demo.decode import Decoder
from hixl_aio.demo.errors import DamagedError
from hixl_aio.demo.llama import KVCache, Llama
from hixl_aio.demo.messages import Generated, Landed, Message, Sent, Text, Trace
from hixl_aio.demo.models import Model
from hixl_aio.demo.plan import KV_SIGNAL, Handoff, Plan, make_plan
from hixl_aio.demo.prefill import Prefiller
from hixl_aio.demo.reference import trace_request
from hixl_aio.demo.verify import first_difference

from .lazy_engine import LazyEngine, LazyRegion, LazyView, Network, Recorder
from .support import new_cache

PROMPTS = ("short", "a longer prompt than the first one", "中文", "the fourth", "and a fifth")


@dataclass
class Outcome:
    said: list[Message]
    sent: tuple[Sent, ...]
    network: Network

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.said if isinstance(message, kind)]


async def hand_over(
    model: Model, plan: Plan, network: Network, recorder: Recorder | None = None, verify: bool = True
) -> Outcome:
    ours, theirs = LazyEngine.pair(network)
    source, target = LazyRegion(plan.layout.region_nbytes), LazyRegion(plan.layout.region_nbytes)
    recorder, peer = recorder or Recorder(), as_any(object())
    prefiller = Prefiller(as_any(ours), peer, as_any(source), as_any(target), model, plan)
    decoder = Decoder(as_any(theirs), as_any(target), model, plan, as_any(recorder), verify)
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(prefiller.send_all())
        group.create_task(decoder.answer_all(peer))
    return Outcome(recorder.said, sending.result(), network)


def as_any(value: Any) -> Any:
    return value


def run(model: Model, plan: Plan, network: Network | None = None, verify: bool = True) -> Outcome:
    return asyncio.run(hand_over(model, plan, network or Network(), verify=verify))


def single(model: Model, plan: Plan) -> list[Trace]:
    cache = new_cache(model.config, plan.layout.tokens)
    return [trace_request(model, plan, request, cache) for request in plan.requests]


def test_equal_to_a_single_process(tiny: Model) -> None:
    """Tokens, KV bytes and every step's logits equal those of one process, over five prompts."""
    plan = make_plan(tiny, PROMPTS, 12)
    outcome = run(tiny, plan)
    assert first_difference(outcome.of(Trace), single(tiny, plan)) is None
    assert len(outcome.of(Trace)) == len(PROMPTS)


def test_every_layer_is_two_puts_and_the_logits_one(tiny: Model) -> None:
    """A request is a put for K and one for V of each layer, plus its last bytes with the signal."""
    plan = make_plan(tiny, PROMPTS[:2], 3)
    outcome = run(tiny, plan)
    assert outcome.network.puts == 2 * (2 * tiny.config.layers + 1)
    for sent, request in zip(outcome.sent, plan.requests, strict=True):
        assert sent.kv_nbytes == len(request.tokens) * tiny.config.kv_bytes_per_token
        assert sent.prompt_tokens == len(request.tokens)
        assert 0 <= sent.hidden <= sent.transfer


def test_the_fence_is_needed(tiny: Model) -> None:
    """Without the fence this network lets the signal overtake the bytes, and decode notices."""
    with pytest.raises(ExceptionGroup) as caught:
        run(tiny, make_plan(tiny, PROMPTS, 4), Network(honour_fences=False), verify=False)
    assert caught.group_contains(DamagedError, match="--verify")


def test_one_flipped_bit_is_found(tiny: Model) -> None:
    """A single bit that changes on the way is named by layer."""
    plan = make_plan(tiny, PROMPTS[:1], 4)
    tokens = len(plan.requests[0].tokens)
    span = new_cache(tiny.config, plan.layout.tokens).span(2, 1, tokens)

    def flip(view: LazyView) -> None:
        if view.span.start == span.start:
            view.region.memory[view.span.start] ^= 1

    outcome = run(tiny, plan, Network(touch=flip))
    difference = first_difference(outcome.of(Trace), single(tiny, plan))
    assert difference == "prompt 1: the KV bytes differ first in V of layer 2"


def test_prefill_runs_ahead_by_one(tiny: Model) -> None:
    """Request 2 lands while request 1 is being answered, and request 3 only after its slot was given back."""
    plan = make_plan(tiny, PROMPTS[:3], 4)
    landed = threading.Event()
    recorder = Recorder()
    recorder.listeners.append(lambda m: landed.set() if isinstance(m, Landed) and m.request == 1 else None)

    class Waiting(Llama):
        def decode_step(self, token: int, position: int, cache: KVCache) -> Any:
            assert landed.wait(20), "prefill waited for decode"
            return super().decode_step(token, position, cache)

    model = replace(tiny, llama=Waiting(tiny.llama._weights))
    outcome = asyncio.run(hand_over(model, plan, Network(), recorder))
    order = [type(m).__name__ + str(m.request) for m in outcome.said if isinstance(m, Landed | Generated)]
    assert order.index("Landed1") < order.index("Generated0") < order.index("Landed2")


def test_text_comes_in_pieces(tiny: Model) -> None:
    """The first token's text comes with the landing and the rest step by step; joined, it is the answer."""
    plan = make_plan(tiny, PROMPTS[:2], 6)
    outcome = run(tiny, plan)
    for index, generated in enumerate(outcome.of(Generated)):
        first = [m.text for m in outcome.of(Landed) if m.request == index]
        rest = [m.text for m in outcome.of(Text) if m.request == index]
        assert "".join(first + rest) == tiny.tokenizer.decode(generated.tokens)
        assert len(first + rest) == 6
        assert generated.steps == 5
        assert not generated.stopped


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_short_answers(tiny: Model, max_tokens: int) -> None:
    """One new token needs no decoding step; the slot goes back all the same."""
    plan = make_plan(tiny, PROMPTS, max_tokens)
    outcome = run(tiny, plan)
    assert [len(generated.tokens) for generated in outcome.of(Generated)] == [max_tokens] * 5
    assert first_difference(outcome.of(Trace), single(tiny, plan)) is None


def test_an_answer_that_ends_at_once(tiny: Model) -> None:
    """A prompt whose first token is the end gives an empty answer and no step."""
    plan = make_plan(tiny, PROMPTS[:3], 5)
    first = single(tiny, plan)[0].tokens[0]
    tokenizer = tiny.tokenizer
    model = replace(tiny, tokenizer=type(tokenizer)(tokenizer._tokens, (), range(3)))
    model.tokenizer.end_token = first
    outcome = run(model, plan)
    generated = outcome.of(Generated)[0]
    assert (generated.tokens, generated.stopped, generated.steps) == ((), True, 0)
    assert first_difference(outcome.of(Trace), single(model, plan)) is None


def test_nothing_is_hashed_without_verification(tiny: Model) -> None:
    """Traces are made only when they are asked for."""
    plan = make_plan(tiny, PROMPTS[:1], 3)
    outcome = asyncio.run(hand_over(tiny, plan, Network(), verify=False))
    assert outcome.of(Trace) == []


@pytest.mark.parametrize("number", [1, 5, 9])
def test_a_failed_put_ends_both(tiny: Model, number: int) -> None:
    """The failure of any put, also of the first while prefill computes, ends prefill with that error."""
    with pytest.raises(ExceptionGroup) as caught:
        run(tiny, make_plan(tiny, PROMPTS, 4), Network(fail_put=number))
    assert caught.group_contains(RuntimeError, match="this put fails")


def test_the_negative_form_ends_decode(tiny: Model) -> None:
    """A signal in the negative form raises its error instead of decoding what is not there."""
    with pytest.raises(ExceptionGroup) as caught:
        run(tiny, make_plan(tiny, PROMPTS, 4), Network(negative=True))
    assert caught.group_contains(RuntimeError, match="the negative form")


def test_a_first_token_that_does_not_fit_is_refused(tiny: Model) -> None:
    """Decode checks the announced first token against the logits that landed."""
    plan = make_plan(tiny, PROMPTS[:1], 4)

    async def forge() -> None:
        ours, theirs = LazyEngine.pair(Network())
        target = LazyRegion(plan.layout.region_nbytes)
        target.memory[:] = bytes(len(target.memory))
        payload = Handoff(0, 0, len(plan.requests[0].tokens), 7).pack()
        decoder = Decoder(as_any(theirs), as_any(target), tiny, plan, as_any(Recorder()), False)
        plan.layout.logits(0, target.view())[3] = 1.0
        await decoder._land(payload)
        ours.signal(None, KV_SIGNAL, payload)

    with pytest.raises(DamagedError, match="choose another token"):
        asyncio.run(forge())
