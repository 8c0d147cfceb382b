"""Who sends what to whom: every destination gets all it holds, each part once, and sources share the work."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from hixl_aio.kv import (
    Holding,
    KVLayoutError,
    KVMissingError,
    Share,
    assign,
    heads_of_rank,
    layers_of_stage,
    vllm,
)

DEGREES = (1, 2, 4, 8)


@pytest.mark.parametrize("heads", [1, 2, 8])
@pytest.mark.parametrize(("ours", "theirs"), list(itertools.product(DEGREES, DEGREES)))
def test_all_degrees_of_tensor_parallelism(ours: int, theirs: int, heads: int) -> None:
    """1 head (also: latents), 2 or 8: each comes once, and no source does more than it must."""
    sources = [Holding((0, 1), heads_of_rank(heads, rank, ours)) for rank in range(ours)]
    destinations = [Holding((0, 1), heads_of_rank(heads, rank, theirs)) for rank in range(theirs)]
    shares = assign(sources, destinations)
    got = Counter(
        (share.destination, layer, head) for share in shares for layer in share.layers for head in share.heads
    )
    assert got == {
        (index, layer, head): 1
        for index, each in enumerate(destinations)
        for layer in each.layers
        for head in each.heads
    }
    for share in shares:
        assert set(share.heads) <= set(sources[share.source].heads)
    loads = Counter(share.source for share in shares for _ in share.layers for _ in share.heads)
    wanted = sum(len(each.layers) * len(each.heads) for each in destinations)
    fair = -(-wanted // (2 * ours)) * 2  # both layers of a head come from one source
    assert max(loads.values()) <= fair
    assert len(loads) == min(ours, wanted // 2)


def test_latents_come_from_one_rank_and_ranks_take_turns() -> None:
    """Four ranks hold all of it; two destinations ask two of them, eight ask each twice."""
    held = [Holding((0,), (0,))] * 8
    assert [share.source for share in assign(held[:4], held[:2])] == [0, 1]
    assert Counter(share.source for share in assign(held[:4], held)) == {0: 2, 1: 2, 2: 2, 3: 2}


def test_sources_share_bytes_and_not_requests() -> None:
    """Whoever sends four heads has sent as much as whoever sends one to each of four."""
    sources = [Holding((0,), (0, 1, 2, 3))] * 2
    shares = assign(sources, [sources[0], *(Holding((0,), (head,)) for head in range(4))])
    assert [share.source for share in shares] == [0, 1, 1, 1, 1]


def test_stages_are_matched_by_layer() -> None:
    """From two stages to three: the middle one gets its layers from both."""
    sources = [Holding(layers_of_stage(6, stage, 2), (0, 1)) for stage in range(2)]
    destinations = [Holding(layers_of_stage(6, stage, 3), (0, 1)) for stage in range(3)]
    assert assign(sources, destinations) == (
        Share(0, 0, (0, 1), (0, 1)),
        Share(0, 1, (2,), (0, 1)),
        Share(1, 1, (3,), (0, 1)),
        Share(1, 2, (4, 5), (0, 1)),
    )


def test_layouts_are_holdings() -> None:
    """Of ranks 1 of 2 and 0 of 4, say."""
    options: dict[str, Any] = {"block_size": 4, "num_blocks": 2}
    sources = [
        vllm(layers=2, heads=heads_of_rank(8, rank, 2), head_dim=4, dtype="int8", **options)
        for rank in (0, 1)
    ]
    destination = vllm(layers=2, heads=heads_of_rank(8, 2, 4), head_dim=4, dtype="int8", **options)
    assert assign(sources, [destination]) == (Share(1, 0, (0, 1), (4, 5)),)


def test_what_nobody_holds_is_refused() -> None:
    """A layer, a head, or anything where there are no sources."""
    sources = [Holding((0, 1), (0,)), Holding((2, 3), (1,))]
    with pytest.raises(KVMissingError, match="layers wanted: 3-4; held by the sources: 0-3"):
        assign(sources, [Holding((3, 4), (1,))])
    with pytest.raises(KVMissingError, match="heads wanted: 1; held by the sources: 0"):
        assign(sources, [Holding((0,), (1,))])
    with pytest.raises(KVMissingError, match="held by the sources: none"):
        assign([], [Holding((0,), (0,))])
    assert assign(sources, []) == ()


def test_ranks_and_stages_share_out_as_engines_do() -> None:
    """Heads in runs, repeated where ranks are more; layers in runs, the rest to the first stages."""
    assert [heads_of_rank(8, rank, 4) for rank in range(4)] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [heads_of_rank(2, rank, 8) for rank in range(8)] == [(0,)] * 4 + [(1,)] * 4
    assert [layers_of_stage(7, stage, 3) for stage in range(3)] == [(0, 1, 2), (3, 4), (5, 6)]
    with pytest.raises(KVLayoutError, match="total is 6, expected a multiple or a divisor of 4 ranks"):
        heads_of_rank(6, 0, 4)
    with pytest.raises(KVLayoutError, match="rank is 4, expected 0 to 3"):
        heads_of_rank(8, 4, 4)
    with pytest.raises(KVLayoutError, match="stage is -1"):
        layers_of_stage(8, -1, 4)
    with pytest.raises(KVLayoutError, match="at least one for each of 4 stages"):
        layers_of_stage(3, 0, 4)
