"""The orders of engines, held against arrays of the shapes that their sources state."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hixl_aio.kv import (
    KVLayout,
    KVLayoutError,
    dense,
    flashinfer,
    huggingface,
    llm_datadist,
    lmcache,
    sglang,
    tensorrt_llm,
    vllm,
)

L, N, T, H, D = 3, 5, 4, 2, 8
SIZES = {"L": L, "C": 2, "N": N, "T": T, "H": H, "D": D}
OPTIONS: dict[str, Any] = {"layers": L, "heads": H, "head_dim": D, "dtype": "bfloat16"}
PAGED: dict[str, Any] = {"block_size": T, "num_blocks": N, **OPTIONS}
NONE: Any = "none"
LATENT: dict[str, Any] = {**PAGED, "heads": 1, "latent": True}


def places(
    separate: str, shape: str, *, kinds: int = 2, heads: int = H
) -> dict[tuple[int, ...], tuple[int, int]]:
    """(layer, kind, block, token, head) → (tensor, offset), by NumPy: from arrays of that shape."""
    sizes = {**SIZES, "C": kinds, "H": heads}
    numbered = np.arange(np.prod([sizes[axis] for axis in shape])).reshape([sizes[axis] for axis in shape])
    tensors = list(itertools.product(*(range(sizes[axis]) for axis in separate)))
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for at in itertools.product(*(range(sizes[axis]) for axis in "LCNTH")):
        place = dict(zip("LCNTH", at, strict=True))
        tensor = tensors.index(tuple(place[axis] for axis in separate))
        element = numbered[tuple(place[axis] for axis in shape[:-1])][0]
        found[at] = (tensor, int(element) * 2)
    return found


def of_layout(layout: KVLayout) -> dict[tuple[int, ...], tuple[int, int]]:
    """The same, as the layout says it."""
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for plane in layout.planes:
        kind = {"key": 0, "latent": 0, "value": 1}[plane.kind]
        for block, token, head in itertools.product(
            range(layout.num_blocks), range(layout.block_size), range(len(layout.heads))
        ):
            offset = plane.offset + block * plane.block_stride + token * plane.token_stride
            offset += head * plane.head_stride
            found[plane.layer, kind, block, token, head] = (plane.tensor, offset)
    return found


@pytest.mark.parametrize(
    ("make", "separate", "shape"),
    [
        (lambda: vllm("NHD", **PAGED), "L", "CNTHD"),
        (lambda: vllm("HND", **PAGED), "L", "CNHTD"),
        (lambda: vllm("NHD", blocks_first=True, **PAGED), "L", "NCTHD"),
        (lambda: vllm("HND", blocks_first=True, **PAGED), "L", "NCHTD"),
        (lambda: vllm("NHD", one_tensor=True, **PAGED), "", "NLCTHD"),
        (lambda: vllm("HND", one_tensor=True, **PAGED), "", "NCHLTD"),
        (lambda: sglang(size=(N - 1) * T, page_size=T, **OPTIONS), "LC", "NTHD"),
        (lambda: flashinfer(page_size=T, max_num_pages=N, **OPTIONS), "L", "NCTHD"),
        (lambda: flashinfer("HND", page_size=T, max_num_pages=N, separate=True, **OPTIONS), "LC", "NHTD"),
        (lambda: lmcache(chunk_size=T, num_chunks=N, **OPTIONS), "", "NCLTHD"),
        (lambda: lmcache("KV_T2D", chunk_size=T, num_chunks=N, **OPTIONS), "L", "NTCHD"),
        (lambda: lmcache("KV_2TD", chunk_size=T, num_chunks=N, **OPTIONS), "L", "NCTHD"),
        (lambda: huggingface(max_batch_size=N, max_cache_len=T, **OPTIONS), "LC", "NHTD"),
        (lambda: tensorrt_llm(tokens_per_block=T, num_blocks=N, **OPTIONS), "", "NLCHTD"),
        (lambda: llm_datadist(**PAGED), "LC", "NTHD"),
        (lambda: llm_datadist(paged=False, **PAGED), "LC", "NTHD"),
    ],
)
def test_keys_and_values_lie_as_the_engine_has_them(
    make: Callable[[], KVLayout], separate: str, shape: str
) -> None:
    """Each row is where it is in an array of the engine's shape, and nothing else is in the tensors."""
    layout = make()
    assert of_layout(layout) == places(separate, shape)
    assert sum(layout.tensor_nbytes) == L * 2 * N * T * H * D * 2


@pytest.mark.parametrize(
    ("make", "separate", "shape"),
    [
        (lambda: vllm(**LATENT), "L", "CNTHD"),
        (lambda: vllm(one_tensor=True, **LATENT), "", "NLCTHD"),
        (lambda: sglang(size=(N - 1) * T, page_size=T, **{**OPTIONS, "heads": 1}, latent=True), "L", "CNTHD"),
        (lambda: lmcache(chunk_size=T, num_chunks=N, **{**OPTIONS, "heads": 1}, latent=True), "", "NCLTHD"),
        (
            lambda: tensorrt_llm(tokens_per_block=T, num_blocks=N, **{**OPTIONS, "heads": 1}, latent=True),
            "",
            "NLCHTD",
        ),
        (lambda: dense("L|NTHD", **LATENT), "L", "CNTHD"),
    ],
)
def test_latents_lie_as_the_engine_has_them(make: Callable[[], KVLayout], separate: str, shape: str) -> None:
    """One for each token, no pair of K and V."""
    layout = make()
    assert layout.kinds == ("latent",)
    assert of_layout(layout) == places(separate, shape, kinds=1, heads=1)


def test_values_may_be_narrower_than_keys() -> None:
    """Behind the keys of a token in one tensor, or in tensors of their own size."""
    packed = dense("L|NTHCD", value_head_dim=2, **PAGED)
    key, value = packed.planes[:2]
    assert (key.offset, value.offset) == (0, 16)
    assert key.head_stride == value.head_stride == 16 + 4
    assert key.token_stride == 20 * H
    apart = dense("LC|NTHD", value_head_dim=2, **PAGED)
    assert apart.tensor_nbytes == (N * T * H * 16, N * T * H * 4) * L
    halves = dense("L|NCTHD", value_head_dim=2, **PAGED)
    key, value = halves.planes[:2]
    assert (value.offset, key.token_stride, value.token_stride) == (T * H * 16, H * 16, H * 4)
    assert key.block_stride == value.block_stride == T * H * 20


def test_strides_are_rounded_up_where_asked() -> None:
    """To pages for the blocks, to a line for the tokens: what lies between is left alone."""
    layout = dense("L|NCTHD", align={"N": 4096, "T": 64}, **PAGED)
    plane = layout.planes[0]
    assert (plane.block_stride, plane.token_stride, plane.head_stride) == (4096, 64, 16)
    assert layout.tensor_nbytes == (N * 4096,) * L


def test_a_contiguous_cache_has_slots_for_blocks() -> None:
    """As long as a sequence may be."""
    layout = huggingface(max_batch_size=2, max_cache_len=100, **OPTIONS)
    assert (layout.num_blocks, layout.block_size, layout.paged) == (2, 100, False)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: dense("L|CNTH", **PAGED), "order is 'L|CNTH'"),
        (lambda: dense("L|CNTDH", **PAGED), "D the last"),
        (lambda: dense("N|LCTHD", **PAGED), "a bar behind L or C"),
        (lambda: dense("L|NTHD", **PAGED), "once each"),
        (lambda: dense("L|CNTHD", **{**PAGED, "layers": None}), "layers is None"),
        (lambda: dense("L|CNTHD", **{**PAGED, "layers": 0}), "layers is 0, expected how many"),
        (lambda: dense("L|CNTHD", **{**PAGED, "heads": ()}), "heads is '()'"),
        (lambda: dense("L|CNTHD", **{**PAGED, "layers": 2.0}), "layers is 2.0"),
        (lambda: dense("L|CNTHD", **{**PAGED, "heads": (0, 1.5)}), "heads is '(0, 1.5)'"),
        (lambda: dense("L|CNTHD", **{**PAGED, "heads": "01"}), "heads is '01'"),
        (lambda: dense("L|CNTHD", **{**PAGED, "dtype": "half"}), "dtype is 'half'"),
        (lambda: dense("L|CNTHD", **{**PAGED, "head_dim": 0}), "head_dim is 0"),
        (lambda: dense("L|CNTHD", align={"L": 4096}, **PAGED), "align is 'L: 4096'"),
        (lambda: dense("L|CNTHD", align={"N": 0}, **PAGED), "align is 'N: 0'"),
        (lambda: vllm(NONE, **PAGED), "order is 'none', expected NHD or HND"),
        (lambda: vllm(NONE, one_tensor=True, **PAGED), "order is 'none'"),
        (lambda: lmcache(NONE, chunk_size=1, num_chunks=1, **OPTIONS), "form is 'none'"),
        (lambda: sglang(size=7, page_size=4, **OPTIONS), "a multiple of page_size, 4"),
    ],
)
def test_orders_that_are_none_are_refused(make: Callable[[], KVLayout], said: str) -> None:
    """By name, with what was given."""
    with pytest.raises(KVLayoutError) as caught:
        make()
    assert said in str(caught.value)
