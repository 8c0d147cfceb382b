"""Plans by example: what is joined, what is refused, and the defects of others that are not ours."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest

from hixl_aio.kv import (
    BlockTable,
    Conversion,
    KVError,
    KVGroups,
    KVLayout,
    KVMismatchError,
    KVMissingError,
    KVOverlapError,
    KVPlane,
    KVRangeError,
    Plan,
    dense,
    huggingface,
    plan,
    plan_groups,
    spans,
    tensorrt_llm,
    vllm,
)

MODEL: dict[str, Any] = {"layers": 4, "heads": 2, "head_dim": 4, "dtype": "float16"}


def cache(**changes: Any) -> KVLayout:
    """Four layers of keys and values, a tensor each, in blocks of four tokens."""
    return vllm(changes.pop("order", "NHD"), **{"block_size": 4, "num_blocks": 8, **MODEL, **changes})


def listed(made: Plan) -> list[tuple[int, int, int, int, int]]:
    """(source tensor, destination tensor, source offset, destination offset, bytes) of each descriptor."""
    return [
        (move.src_tensor, move.dst_tensor, *numbers)
        for move in made.moves
        for numbers in zip(
            move.src_offsets.tolist(), move.dst_offsets.tolist(), move.nbytes.tolist(), strict=True
        )
    ]


def place(layout: KVLayout, plane: KVPlane, blocks: list[int], token: int, head: int) -> int:
    """Where a row is."""
    block, inside = divmod(token, layout.block_size)
    return (
        plane.offset
        + blocks[block] * plane.block_stride
        + inside * plane.token_stride
        + head * plane.head_stride
    )


# ---- layers


@pytest.mark.parametrize(
    ("ours", "theirs"), [(range(2, 4), range(0, 2)), (range(1, 3), range(1, 3)), (range(0, 2), range(2, 4))]
)
def test_absolute_and_relative_layers_are_not_mixed_up(ours: range, theirs: range) -> None:
    """LLM-DataDist indexes the destination's range with the source's layer: a wrong one, or none, is written.

    The k-th layer of the one range goes to the k-th of the other, and all of them do.
    """
    made = plan(cache(), cache(), [0], [0], layers=(ours, theirs))
    found = sorted({(move.src_tensor, move.dst_tensor) for move in made.moves})
    assert found == list(zip(ours, theirs, strict=True))
    assert made.nbytes == 2 * cache().token_nbytes // 4 * 4


def test_layers_have_numbers_of_the_whole_model() -> None:
    """A stage that holds layers 2 and 3 has them in its tensors 0 and 1."""
    stage = cache(layers=(2, 3))
    assert {(m.src_tensor, m.dst_tensor) for m in plan(cache(), stage, [0], [0]).moves} == {(2, 0), (3, 1)}
    assert {(m.src_tensor, m.dst_tensor) for m in plan(stage, cache(), [0], [0]).moves} == {(0, 2), (1, 3)}
    one = plan(cache(), stage, [0], [0], layers=[3])
    assert [(m.src_tensor, m.dst_tensor) for m in one.moves] == [(3, 1)]


# ---- what is joined


def test_neighbours_are_joined_on_both_sides() -> None:
    """Blocks that follow one another at both sides are one descriptor, in whatever order they are given."""
    layout = cache(layers=1)
    block, half = 4 * 2 * 8, 8 * 4 * 2 * 8
    made = plan(layout, layout, [3, 5, 2, 4], [1, 3, 0, 6])
    assert listed(made) == [
        (0, 0, 2 * block, 0, 2 * block),
        (0, 0, 5 * block, 3 * block, block),
        (0, 0, 4 * block, 6 * block, block),
        (0, 0, half + 2 * block, half, 2 * block),
        (0, 0, half + 5 * block, half + 3 * block, block),
        (0, 0, half + 4 * block, half + 6 * block, block),
    ]
    assert (made.descriptors, made.unmerged, made.nbytes) == (6, 4 * 4 * 2 * 2, 8 * block)


def test_keys_values_and_layers_of_a_block_are_joined() -> None:
    """Where they lie one behind the other at both sides: a whole block is one descriptor."""
    layout = tensorrt_llm(tokens_per_block=4, num_blocks=8, **MODEL)
    made = plan(layout, layout, [1, 3, 5], [0, 4, 2])
    nbytes = 4 * layout.token_nbytes
    assert listed(made) == [(0, 0, a * nbytes, b * nbytes, nbytes) for a, b in ((1, 0), (5, 2), (3, 4))]


@pytest.mark.parametrize(
    ("source", "destination", "descriptors"),
    [
        ("NHD", "NHD", 16),  # blocks of 16 tokens, whole
        ("HND", "HND", 16 * 2),  # a head of 16 tokens
        ("NHD", "HND", 256 * 2),  # a row
    ],
)
def test_descriptors_of_16_to_64_tokens(source: str, destination: str, descriptors: int) -> None:
    """What cannot be joined is as long as both sides allow, for each layer, and for K and V."""
    ours = cache(order=source, block_size=16, num_blocks=20)
    theirs = cache(order=destination, block_size=64, num_blocks=20)
    blocks = np.random.default_rng(3).permutation(20)[:16]
    blocks = blocks[np.argsort(-blocks)]
    assert plan(ours, theirs, blocks, [3, 1, 9, 5]).descriptors == descriptors * 4 * 2
    assert plan(theirs, ours, [3, 1, 9, 5], blocks).descriptors == descriptors * 4 * 2


def test_a_head_of_each_token_is_a_descriptor_between_degrees_of_tensor_parallelism() -> None:
    """Token-major on both sides: 1 → 2; head-major, it is one for each block."""
    for order, descriptors in (("NHD", 4 * 3), ("HND", 3)):
        whole, half = cache(order=order, layers=1), cache(order=order, layers=1, heads=(1,))
        assert plan(whole, half, [0, 2, 4], [5, 3, 1]).descriptors == descriptors * 2
        assert plan(half, whole, [0, 2, 4], [5, 3, 1]).descriptors == descriptors * 2


def test_a_contiguous_cache_takes_a_request_in_one_piece() -> None:
    """Tokens of a head in slot 2 follow one another; from 16 to a slot and back."""
    slots = huggingface(max_batch_size=3, max_cache_len=100, **MODEL)
    paged = cache(order="HND", block_size=16)
    made = plan(paged, slots, [7, 1, 4], [2], tokens=range(40))
    assert made.descriptors == 3 * 2 * 2 * 4
    assert made.nbytes == 40 * slots.token_nbytes
    back = plan(slots, paged, [2], [7, 1, 4], tokens=range(40))
    assert back.descriptors == made.descriptors


def test_two_contiguous_caches_move_heads_whole() -> None:
    """One descriptor for each head, layer and kind, however long the request is."""
    slots = huggingface(max_batch_size=2, max_cache_len=1 << 20, **MODEL)
    made = plan(slots, slots, [0], [1], tokens=range(1 << 19))
    assert made.descriptors == 4 * 2 * 2


NARROW = ("LC|NTHD", "L|NTHCD", "L|NCTHD", "L|NTCHD", "L|CNHTD", "|NLCHTD", "|NHTLCD", "|CLNTHD")


@pytest.mark.parametrize("theirs", NARROW)
@pytest.mark.parametrize("ours", NARROW)
def test_values_narrower_than_keys_come_from_any_order_into_any_other(ours: str, theirs: str) -> None:
    """Keys and values then have strides of their own in one tensor; what is not asked for does not change."""
    options: dict[str, Any] = {**MODEL, "value_head_dim": 1, "num_blocks": 4}
    source, destination = dense(ours, block_size=2, **options), dense(theirs, block_size=4, **options)
    made = plan(source, destination, [3, 0, 1], [2, 0], tokens=range(1, 6))
    generator = np.random.default_rng(0)
    there = [generator.integers(0, 256, nbytes, dtype=np.uint8) for nbytes in source.tensor_nbytes]
    here = [generator.integers(0, 256, nbytes, dtype=np.uint8) for nbytes in destination.tensor_nbytes]
    expected = [tensor.copy() for tensor in here]
    for src_tensor, dst_tensor, start, to, nbytes in listed(made):
        here[dst_tensor][to : to + nbytes] = there[src_tensor][start : start + nbytes]
    for one, other in zip(source.planes, destination.planes, strict=True):
        for token, head in itertools.product(range(1, 6), range(2)):
            start, to = (
                place(source, one, [3, 0, 1], token, head),
                place(destination, other, [2, 0], token, head),
            )
            nbytes = source.row_nbytes(one.kind)
            expected[other.tensor][to : to + nbytes] = there[one.tensor][start : start + nbytes]
    for found, wanted in zip(here, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_values_narrower_than_keys_are_taken_apart() -> None:
    """Packed behind the keys of each head at one side, in tensors of their own at the other."""
    options: dict[str, Any] = {**MODEL, "layers": 1, "value_head_dim": 1, "num_blocks": 1}
    packed, apart = dense("L|NTHCD", block_size=2, **options), dense("LC|NTHD", block_size=2, **options)
    made = plan(packed, apart, [0], [0])
    assert listed(made) == [
        *((0, 0, row * 10, row * 8, 8) for row in range(4)),
        *((0, 1, row * 10 + 8, row * 2, 2) for row in range(4)),
    ]
    assert made.nbytes == 4 * 10


def test_pieces_of_a_million_tokens_and_more_are_cut_right() -> None:
    """Where lengths are too long to be counted by length."""
    slots = dense("LC|NTHD", **{**MODEL, "layers": 1}, block_size=3 << 20, num_blocks=1, paged=False)
    paged = dense("LC|NTHD", **{**MODEL, "layers": 1}, block_size=2 << 20, num_blocks=4)
    made = plan(slots, paged, [0], [3, 1], tokens=range(3 << 20))
    row = 2 * 8
    assert listed(made)[:2] == [
        (0, 0, row * 2 << 20, row * 2 << 20, row << 20),
        (0, 0, 0, row * 6 << 20, row * 2 << 20),
    ]


# ---- many times


def test_a_prepared_conversion_serves_many_requests() -> None:
    """The same as plans made one by one; their arrays cannot be changed by whoever posts them."""
    ours, theirs = cache(), cache(order="HND", block_size=8, heads=(1,))
    prepared = Conversion(ours, theirs, layers=(range(1, 3), range(0, 2)))
    assert (prepared.layers, prepared.heads) == (((1, 0), (2, 1)), (1,))
    for blocks in ([0, 1], [5, 2]):
        made = prepared.plan(blocks, [3], tokens=range(1, 7))
        again = plan(ours, theirs, blocks, [3], tokens=range(1, 7), layers=(range(1, 3), range(0, 2)))
        assert listed(made) == listed(again)
        for array in (made.moves[0].src_offsets, made.moves[0].dst_offsets, made.moves[0].nbytes):
            assert array.dtype == np.int64
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


def test_the_callers_blocks_are_left_alone() -> None:
    """They are neither changed nor kept; what changes them afterwards does not change the plan."""
    layout = cache(layers=1)
    blocks, others = np.arange(8), np.arange(8)[::-1].copy()
    made = plan(layout, layout, blocks, others)
    before = listed(made)
    assert blocks.tolist() == list(range(8))
    assert others.tolist() == list(range(8))[::-1]
    blocks[:] = others[:] = 0
    assert listed(made) == before


def test_blocks_cost_no_python_object() -> None:
    """A hundred times as many blocks take as many allocations of Python's."""
    layout = dense(
        "L|NTHD", latent=True, layers=1, heads=1, head_dim=8, dtype="int8", block_size=2, num_blocks=100_000
    )
    prepared = Conversion(layout, layout)
    counts = []
    for count in (1000, 100_000):
        blocks = np.random.default_rng(1).permutation(count), np.random.default_rng(2).permutation(count)
        prepared.plan(*blocks)
        tracemalloc.start()
        made = prepared.plan(*blocks)
        snapshot = tracemalloc.take_snapshot()
        tracemalloc.stop()
        counts.append(sum(each.count for each in snapshot.statistics("filename")))
        assert made.descriptors > count * 0.9
    assert counts[1] < counts[0] + 20


# ---- requests


@pytest.mark.parametrize("blocks", [[], np.array([], dtype=np.int64), np.array([])])
def test_no_tokens_are_no_moves(blocks: Any) -> None:
    """A full hit of a prefix cache is a plan of zero bytes."""
    made = plan(cache(), cache(), blocks, blocks)
    assert (made.moves, made.nbytes, made.descriptors, made.unmerged) == ((), 0, 0, 0)
    assert plan(cache(), cache(), [1], [2], tokens=range(3, 3)).moves == ()
    assert spans(cache(), blocks) == ()


@pytest.mark.parametrize("kind", [list, tuple, np.uint8, np.int32, np.uint64, ">i8"])
def test_blocks_of_any_integers_are_taken(kind: Any) -> None:
    """Lists, and arrays of any width."""
    blocks = kind([3, 1]) if kind in (list, tuple) else np.array([3, 1], dtype=kind)
    expected = plan(cache(), cache(), [3, 1], [3, 1])
    assert listed(plan(cache(), cache(), blocks, blocks)) == listed(expected)


def test_blocks_that_no_token_touches_are_not_looked_at() -> None:
    """Engines fill tables up with whatever they like."""
    made = plan(cache(), cache(), [-1, 2, 99], BlockTable([5, -7], 4), tokens=range(4, 8))
    assert made.nbytes == 4 * cache().token_nbytes


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (
            {"tokens": range(0, 9)},
            KVRangeError,
            "tokens is 'range(0, 9)', expected within range(0, 8), which",
        ),
        ({"tokens": range(0, 8, 2)}, KVRangeError, "a range without steps"),
        ({"tokens": (0, 8)}, KVRangeError, "a range without steps"),
        ({"tokens": range(-1, 3)}, KVRangeError, "which the blocks of the source hold"),
        ({"ours": [0, 8]}, KVRangeError, "blocks of the source is 8, expected below 8"),
        ({"theirs": [0, -1]}, KVRangeError, "blocks of the destination is -1, expected below 8"),
        ({"ours": [0.5, 1]}, KVRangeError, "blocks is 'float64 of 1 dimensions'"),
        ({"ours": [[0, 1]]}, KVRangeError, "blocks is 'int64 of 2 dimensions'"),
        ({"ours": BlockTable([0, 1], -1)}, KVRangeError, "first_token is -1"),
        ({"ours": BlockTable([0, 1], 2), "tokens": range(1, 8)}, KVRangeError, "within range(2, 10), which"),
        ({"theirs": [0]}, KVMismatchError, "range(0, 8) at the source and range(0, 4) at the destination"),
        (
            {"theirs": [3, 3]},
            KVOverlapError,
            "block is 3, expected once at the destination, not at places 0 and 1",
        ),
        ({"layers": [4]}, KVMissingError, "layers wanted: 4; held by the source: 0-3"),
        (
            {"layers": (range(2), range(3, 5))},
            KVMissingError,
            "layers wanted: 3-4; held by the destination: 0-3",
        ),
        ({"layers": (range(2), range(3))}, KVMismatchError, "range(0, 2) at the source and range(0, 3)"),
        ({"layers": []}, KVRangeError, "layers is 'none', expected some of 0-3"),
        ({"layers": [1, 1]}, KVOverlapError, "layers is 1, expected once at the destination"),
        ({"heads": [1, 2]}, KVMissingError, "heads wanted: 1-2; held by the source: 0-1"),
        ({"heads": []}, KVRangeError, "heads is 'none'"),
        ({"heads": [0, 0]}, KVOverlapError, "heads is 0"),
        ({"to": {"layers": (7, 8)}}, KVMissingError, "layers wanted: 7-8; held by the source: 0-3"),
        ({"to": {"heads": (4, 5)}}, KVMissingError, "heads wanted: 4-5; held by the source: 0-1"),
        (
            {"to": {"heads": (0,)}, "heads": [0, 1]},
            KVMissingError,
            "heads wanted: 0-1; held by the destination: 0",
        ),
        ({"to": {"dtype": "bfloat16"}}, KVMismatchError, "dtype is float16 at the source and bfloat16"),
        ({"to": {"head_dim": 8}}, KVMismatchError, "head_dim is 4 at the source and 8 at the destination"),
        (
            {"to": {"quantization": "int8-scales"}},
            KVMismatchError,
            "quantization is none at the source and int8",
        ),
        (
            {"to": {"heads": 1, "latent": True}},
            KVMismatchError,
            "kinds is key and value at the source and latent",
        ),
        (
            {"to": {"window": 6}},
            KVRangeError,
            "8 of them', expected at most 6 of them, the window of the destination",
        ),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], error: type[KVError], said: str) -> None:
    """With the field and both values, before anything has moved."""
    ours, theirs = options.pop("ours", [0, 1]), options.pop("theirs", [2, 3])
    other = cache(**options.pop("to", {}))
    with pytest.raises(error) as caught:
        plan(cache(), other, ours, theirs, **options)
    assert said in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_block_that_is_there_twice_is_found_in_sparse_tables_too() -> None:
    """Where numbers are far apart they are sorted instead of counted."""
    layout = cache(num_blocks=1 << 30)
    with pytest.raises(
        KVOverlapError, match="block is 900000000, expected once at the destination, not at places 0 and 2"
    ):
        plan(layout, layout, [0, 1, 2], [900_000_000, 5, 900_000_000])
    made = plan(layout, layout, [0, 1, 2], [900_000_000, 5, 899_999_999], layers=[0])
    assert (np.diff(made.moves[0].dst_offsets) > 0).all()
    assert made.nbytes == 12 * layout.token_nbytes // 4


def test_a_source_block_may_go_to_several() -> None:
    """Nothing is written twice by it."""
    assert plan(cache(), cache(), [2, 2], [0, 1]).nbytes == 8 * cache().token_nbytes


# ---- groups


def test_one_request_spans_groups_and_windows_get_their_tokens() -> None:
    """Full attention moves all tokens, a window the last ones, each in blocks of its own."""
    full, window = cache(layers=(0, 2)), cache(layers=(1, 3), block_size=2, window=5)
    theirs = KVGroups.of({"window": cache(layers=(1, 3), block_size=8), "full": cache(layers=(0, 2))})
    ours = KVGroups.of({"full": full, "window": window})
    tables = {"full": ([0, 1, 2], [5, 6, 7]), "window": (BlockTable([3, 1, 0], 6), BlockTable([4, 2], 0))}
    made = plan_groups(ours, theirs, tables, range(2, 12))
    assert {name: each.nbytes for name, each in made.items()} == {
        "full": 10 * full.token_nbytes,
        "window": 5 * window.token_nbytes,
    }
    again = plan(window, theirs["window"], *tables["window"], tokens=range(7, 12))
    assert listed(made["window"]) == listed(again)


def test_groups_that_do_not_correspond_are_refused() -> None:
    """By name, also where a table of blocks is missing."""
    ours = KVGroups.of({"full": cache()})
    with pytest.raises(KVMismatchError, match="groups is full at the source and other at the destination"):
        plan_groups(ours, KVGroups.of({"other": cache()}), {}, range(1))
    with pytest.raises(KVMismatchError, match="dtype of group full is float16 at the source and int8"):
        plan_groups(ours, KVGroups.of({"full": cache(dtype="int8")}), {}, range(1))
    with pytest.raises(KVRangeError, match="expected of full"):
        plan_groups(ours, ours, {}, range(1))
