"""Models, caches and requests for property-based tests: small, but of every shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from hixl_aio.kv import BlockTable, heads_of_rank, layers_of_stage

from .caches import Cache, Form

__all__ = ("Model", "Request", "caches", "forms", "models", "requests", "shares")


@dataclass(frozen=True)
class Model:
    """What both sides agree on."""

    layers: int
    heads: int
    head_dim: int
    value_dim: int
    itemsize: int
    latent: bool


@dataclass(frozen=True)
class Request:
    """Tokens, and for each side the first token of its table and a seed for its blocks."""

    tokens: range
    firsts: tuple[int, int]


def models() -> st.SearchStrategy[Model]:
    """GQA with 1 to 4 heads, or latents."""
    heads = st.one_of(st.tuples(st.sampled_from([1, 2, 4]), st.just(False)), st.just((1, True)))
    return st.builds(
        lambda layers, heads, head_dim, narrower, itemsize: Model(
            layers,
            heads[0],
            head_dim,
            head_dim if heads[1] else max(1, head_dim - narrower),
            itemsize,
            heads[1],
        ),
        st.integers(1, 4),
        heads,
        st.sampled_from([1, 2, 3]),
        st.sampled_from([0, 0, 0, 1]),
        st.sampled_from([1, 2, 4]),
    )


@st.composite
def forms(draw: st.DrawFn, model: Model) -> Form:
    """All orders of axes, all splits into tensors, with and without padding."""
    separate = draw(st.sampled_from(["", "L", "C", "LC", "CL"]))
    axes = "LCNTH"
    if model.value_dim != model.head_dim and "C" not in separate:
        separate += "C"  # arrays have equal rows
    if model.latent:
        axes, separate = axes.replace("C", ""), separate.replace("C", "")
    inside = "".join(draw(st.permutations([axis for axis in axes if axis not in separate]))) + "D"
    padding = draw(st.dictionaries(st.sampled_from(list(inside)), st.integers(1, 2), max_size=2))
    return Form(separate, inside, draw(st.sampled_from([1, 2, 3, 4, 6, 8, 24])), padding)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Up to 24 tokens; tables that begin before, or with, the first of them."""
    start = draw(st.integers(0, 12))
    tokens = range(start, start + draw(st.integers(1, 24)))
    firsts = draw(st.integers(0, start)), draw(st.integers(0, start))
    return Request(tokens, firsts)


@st.composite
def shares(draw: st.DrawFn, model: Model) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The layers and heads of each engine of one side: any degrees of tensor and pipeline parallelism."""
    ranks = draw(st.sampled_from([1, 2, 4, 8]))
    stages = draw(st.integers(1, model.layers))
    return [
        (layers_of_stage(model.layers, stage, stages), heads_of_rank(model.heads, rank, ranks))
        for stage in range(stages)
        for rank in range(ranks)
    ]


def caches(
    model: Model,
    form: Form,
    held: list[tuple[tuple[int, ...], tuple[int, ...]]],
    first: int,
    request: Request,
    generator: np.random.Generator,
) -> list[tuple[Cache, BlockTable]]:
    """The caches of one side, each with shuffled blocks for the request, and some more blocks."""
    blocks = -(-(request.tokens.stop - first) // form.block_size)
    made = []
    for layers, heads in held:
        cache = Cache(
            form,
            layers=layers,
            heads=heads,
            head_dim=model.head_dim,
            value_dim=model.value_dim,
            itemsize=model.itemsize,
            num_blocks=blocks + 2,
            latent=model.latent,
            generator=generator,
        )
        made.append((cache, BlockTable(generator.permutation(blocks + 2)[:blocks], first)))
    return made
