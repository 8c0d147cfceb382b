"""What both processes compute alike, and the payloads they exchange."""

from __future__ import annotations

import pytest

from hixl_aio.demo.errors import CacheError, HandoffError
from hixl_aio.demo.models import Model
from hixl_aio.demo.plan import SLOTS, Handoff, make_plan, pack_credit, unpack_credit


def test_slots_fit_the_longest_prompt(tiny: Model) -> None:
    """Slots have room for the longest prompt and its answer, lie on pages, and do not overlap."""
    plan = make_plan(tiny, ("a", "bcd"), 10)
    layout = plan.layout
    assert layout.tokens == max(len(request.tokens) for request in plan.requests) + 10
    assert layout.slot_nbytes % 4096 == 0
    assert layout.region_nbytes == SLOTS * layout.slot_nbytes
    for slot in range(SLOTS):
        last = layout.logits_span(slot)
        assert last.stop <= (slot + 1) * layout.slot_nbytes
        assert last.start == slot * layout.slot_nbytes + layout.kv_nbytes


def test_views_share_the_memory(tiny: Model) -> None:
    """A slot's cache and logits are views of the region, each where its span says."""
    layout = make_plan(tiny, ("a",), 2).layout
    memory = memoryview(bytearray(layout.region_nbytes))
    cache, logits = layout.cache(1, memory), layout.logits(1, memory)
    cache.values(3, 2)[1] = 1.5
    logits[:] = 2.5
    span = layout.shift(1, cache.span(3, 1, 2))
    assert memory[span] == cache.values(3, 2).tobytes()
    assert memory[layout.logits_span(1)] == logits.tobytes()
    layout.poison(1, memory)
    assert not any(memory[: layout.slot_nbytes])
    assert set(memory[layout.slot_nbytes :]) == {0xFF}


def test_a_prompt_longer_than_the_context_is_refused(tiny: Model) -> None:
    """A prompt that with its answer exceeds the model's context is a CacheError with the numbers."""
    with pytest.raises(CacheError, match="exceed the model's context of 8192"):
        make_plan(tiny, ("x" * 8100,), 64)


def test_handoff_round_trip(tiny: Model) -> None:
    """A hand-over survives packing; it has 20 bytes."""
    plan = make_plan(tiny, ("a", "b"), 2)
    handoff = Handoff(1, 1, len(plan.requests[1].tokens), 42)
    assert len(handoff.pack()) == 20
    assert Handoff.unpack(handoff.pack(), plan) == handoff


@pytest.mark.parametrize(
    "wrong",
    [
        Handoff(2, 0, 1, 1).pack(),
        Handoff(0, SLOTS, 1, 1).pack(),
        Handoff(0, 0, 1, 1 << 20).pack(),
        Handoff(0, 0, 1, 1).pack(),
        b"",
        b"xx/1" + bytes(16),
        Handoff(0, 0, 1, 1).pack() + b"x",
    ],
)
def test_foreign_handoffs_are_refused(tiny: Model, wrong: bytes) -> None:
    """A payload of another form, or about what does not exist, is a HandoffError."""
    with pytest.raises(HandoffError):
        Handoff.unpack(wrong, make_plan(tiny, ("a", "b"), 2))


def test_credits() -> None:
    """A credit names a slot; anything else is refused."""
    assert [unpack_credit(pack_credit(slot)) for slot in range(SLOTS)] == list(range(SLOTS))
    for wrong in (b"", b"\x02", b"\x00\x00"):
        with pytest.raises(HandoffError):
            unpack_credit(wrong)
