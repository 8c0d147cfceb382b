"""Plans against an oracle that moves one row after the other by what it means; every byte is compared."""

from __future__ import annotations

import itertools
import json

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hixl_aio.kv import Conversion, KVLayout, assign, plan, spans

from ...soak import rounds
from .caches import Cache, carry_out, check_form, move_rows
from .strategies import Model, caches, forms, models, requests, shares

SETTINGS = settings(
    max_examples=rounds(250, 20_000),
    deadline=None,
    derandomize=rounds(1, 0) == 1,  # a soak looks for new examples each time
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _fill(model: Model, sources: list[Cache]) -> None:
    """Replicas hold the same: those of the first that has them."""
    first: dict[tuple[int, int, int], Cache] = {}
    for cache in sources:
        for layer, kind, head in itertools.product(cache.layers, range(cache.kinds), cache.heads):
            other = first.setdefault((layer, kind, head), cache)
            if other is not cache:
                for block, token in itertools.product(range(cache.counts["N"]), range(cache.counts["T"])):
                    cache.row(layer, kind, block, token, head)[:] = other.row(layer, kind, block, token, head)
    assert model.layers == len({layer for layer, _, _ in first})


@SETTINGS
@given(data=st.data())
def test_two_engines(data: st.DataObject) -> None:
    """Any order to any order, with subsets of layers and heads, partial blocks, and padding left alone."""
    model = data.draw(models())
    request = data.draw(requests())
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    sides = []
    for first in request.firsts:
        whole = [(tuple(range(model.layers)), tuple(data.draw(st.permutations(range(model.heads)))))]
        sides += caches(model, data.draw(forms(model)), whole, first, request, generator)
    (source, ours), (destination, theirs) = sides
    count = data.draw(st.integers(1, model.layers))
    starts = (
        data.draw(st.integers(0, model.layers - count)),
        data.draw(st.integers(0, model.layers - count)),
    )
    ranges = range(starts[0], starts[0] + count), range(starts[1], starts[1] + count)
    heads = data.draw(st.sets(st.integers(0, model.heads - 1), min_size=1))

    prepared = Conversion(source.layout, destination.layout, layers=ranges, heads=heads)
    made = prepared.plan(ours, theirs, tokens=request.tokens)
    check_form(made)
    assert made.unmerged == len(request.tokens) * count * len(heads) * source.kinds
    before = destination.snapshot()
    carry_out(made, source, destination)
    found = destination.snapshot()
    for whole_array, old in zip(destination.whole, before, strict=True):
        whole_array[...] = old
    move_rows(
        source, destination, (ours, theirs), request.tokens, list(zip(*ranges, strict=True)), sorted(heads)
    )
    for array, expected in zip(found, destination.snapshot(), strict=True):
        np.testing.assert_array_equal(array, expected)


@SETTINGS
@given(data=st.data())
def test_any_ranks_and_stages_to_any_others(data: st.DataObject) -> None:
    """All destinations are whole afterwards, and each row came from one source, replicas or not."""
    model = data.draw(models())
    request = data.draw(requests())
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    held = data.draw(shares(model)), data.draw(shares(model))
    assume(len(held[0]) * len(held[1]) <= 64)
    ours, theirs = (
        caches(model, data.draw(forms(model)), each, first, request, generator)
        for each, first in zip(held, request.firsts, strict=True)
    )
    table = ours[0][1]  # replicas hold the same in the same blocks
    _fill(model, [cache for cache, _ in ours])
    before = [cache.snapshot() for cache, _ in theirs]
    moved = 0
    for share in assign([cache.layout for cache, _ in ours], [cache.layout for cache, _ in theirs]):
        source, (destination, blocks) = ours[share.source][0], theirs[share.destination]
        made = plan(
            source.layout,
            destination.layout,
            table,
            blocks,
            layers=share.layers,
            heads=share.heads,
            tokens=request.tokens,
        )
        check_form(made)
        carry_out(made, source, destination)
        moved += made.nbytes
    assert moved == len(request.tokens) * sum(cache.layout.token_nbytes for cache, _ in theirs)
    for (destination, blocks), old in zip(theirs, before, strict=True):
        found = destination.snapshot()
        for whole_array, each in zip(destination.whole, old, strict=True):
            whole_array[...] = each
        for layer, head in itertools.product(destination.layers, destination.heads):
            source = next(cache for cache, _ in ours if layer in cache.layers and head in cache.heads)
            move_rows(source, destination, (table, blocks), request.tokens, [(layer, layer)], [head])
        for array, expected in zip(found, destination.snapshot(), strict=True):
            np.testing.assert_array_equal(array, expected)


@SETTINGS
@given(data=st.data())
def test_spans_are_where_the_rows_are(data: st.DataObject) -> None:
    """Exactly the bytes of the rows that are asked for, joined where they are adjacent."""
    model = data.draw(models())
    request = data.draw(requests())
    generator = np.random.default_rng(0)
    whole = [(tuple(range(model.layers)), tuple(range(model.heads)))]
    form = data.draw(forms(model))
    ((cache, table),) = caches(model, form, whole, request.firsts[0], request, generator)
    layers = data.draw(st.sets(st.integers(0, model.layers - 1), min_size=1))
    heads = data.draw(st.sets(st.integers(0, model.heads - 1), min_size=1))
    for array in cache.whole:
        array[...] = 0
    for span in spans(cache.layout, table, layers=layers, heads=heads, tokens=request.tokens):
        memory = cache.memory(span.tensor)
        assert (span.offsets[:-1] + span.nbytes[:-1] < span.offsets[1:]).all()
        for offset, nbytes in zip(span.offsets.tolist(), span.nbytes.tolist(), strict=True):
            assert not memory[offset : offset + nbytes].any()
            memory[offset : offset + nbytes] = 255
    found = cache.snapshot()
    for array in cache.whole:
        array[...] = 0
    for layer, kind, head, token in itertools.product(layers, range(cache.kinds), heads, request.tokens):
        row = cache.row(layer, kind, *cache.at(table, token), head)
        row[:] = np.iinfo(row.dtype).max
    for array, expected in zip(found, cache.snapshot(), strict=True):
        np.testing.assert_array_equal(array, expected)


@SETTINGS
@given(data=st.data())
def test_a_description_travels(data: st.DataObject) -> None:
    """Through JSON, and means the same layout."""
    model = data.draw(models())
    form = data.draw(forms(model))
    request = data.draw(requests())
    whole = [(tuple(range(model.layers)), tuple(range(model.heads)))]
    ((cache, _),) = caches(model, form, whole, 0, request, np.random.default_rng(0))
    layout = cache.layout
    again = KVLayout.from_description(json.loads(json.dumps(layout.describe())))
    assert again == layout
    assert hash(again) == hash(layout)
