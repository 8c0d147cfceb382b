"""Layouts read off tensors: whatever strides they have, or a refusal that says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hixl_aio.kv import KVLayoutError, KVOverlapError, dense, from_pointer, from_tensors, sglang, vllm

OPTIONS: dict[str, Any] = {"layers": 2, "heads": 2, "head_dim": 8, "dtype": "float16"}


def test_plain_arrays_are_as_dense_says() -> None:
    """One for each layer, [2, blocks, tokens, heads, values]."""
    tensors = [np.zeros((2, 3, 4, 2, 8), np.float16) for _ in range(2)]
    held = from_tensors(tensors, "CNTHD", heads=2)
    assert held.layout == vllm(block_size=4, num_blocks=3, **OPTIONS)
    assert held.addresses == tuple(tensor.ctypes.data for tensor in tensors)
    assert held.owners == tuple(tensors)


def test_slots_of_tokens_become_blocks() -> None:
    """As SGLang has them: [size + page, heads, values], keys and values apart."""
    keys = [np.zeros((12, 2, 8), np.float16) for _ in range(2)]
    values = [np.zeros((12, 2, 8), np.float16) for _ in range(2)]
    held = from_tensors(keys, "THD", values=values, heads=2, block_size=4)
    reference = sglang(size=8, page_size=4, **OPTIONS)
    assert held.addresses == tuple(tensor.ctypes.data for tensor in (*keys, *values))
    strides = [(p.offset, p.block_stride, p.token_stride, p.head_stride) for p in held.layout.planes]
    assert strides == [(p.offset, p.block_stride, p.token_stride, p.head_stride) for p in reference.planes]
    assert [plane.tensor for plane in held.layout.planes] == [0, 2, 1, 3]


def test_heads_may_lie_along_the_values() -> None:
    """[2, layers, tokens, hidden], hidden being all heads."""
    tensor = np.zeros((2, 2, 12, 16), np.float16)
    held = from_tensors([tensor], "CLTD", heads=(4, 5), block_size=12)
    assert held.layout == dense("|CLNTHD", block_size=12, num_blocks=1, **{**OPTIONS, "heads": (4, 5)})


def test_strides_are_taken_as_they_are() -> None:
    """Of transposed and of sliced arrays; the memory starts where the array does."""
    whole = np.zeros((5, 4, 6, 3, 10), np.float16)
    view = whole[1:4, 1:3, ::2, :2, :8].transpose(1, 0, 2, 3, 4)
    held = from_tensors([view], "CNTHD", heads=2)
    key, value = held.layout.planes
    assert held.addresses == (whole[1:, 1:].ctypes.data,)
    assert (key.block_stride, key.token_stride, key.head_stride) == (4 * 360, 120, 20)
    assert (key.offset, value.offset) == (0, 360)
    last = view[1, 2, 2, 1, 7:]
    assert held.layout.tensor_nbytes[0] == last.ctypes.data - view.ctypes.data + 2


def test_values_may_be_narrower_than_keys() -> None:
    """With tensors of their own."""
    held = from_tensors([np.zeros((3, 4, 2, 6))], "NTHD", values=[np.zeros((3, 4, 2, 4))], heads=2)
    assert (held.layout.head_dim, held.layout.value_head_dim, held.layout.dtype) == (6, 4, "float64")


def test_a_dtype_may_be_said_that_numpy_does_not_know() -> None:
    """Bytes of the same size."""
    tensor = np.zeros((3, 4, 1, 6), np.uint16)
    assert from_tensors([tensor], "NTHD", latent=True, heads=1).layout.dtype == "uint16"
    held = from_tensors([tensor], "NTHD", latent=True, heads=1, dtype="bfloat16", window=3, total_layers=7)
    assert (held.layout.dtype, held.layout.window, held.layout.total_layers) == ("bfloat16", 3, 7)
    with pytest.raises(KVLayoutError, match="dtype is 'int8', expected of 2 bytes: bfloat16"):
        from_tensors([tensor], "NTHD", latent=True, heads=1, dtype="int8")


class Foreign:
    """Something that has the array interface, without a dtype or strides."""

    def __init__(self, array: Any) -> None:
        self.array = array  # keeps the memory
        self.__array_interface__ = {**array.__array_interface__, "strides": None}


def test_the_array_interface_is_enough() -> None:
    """No NumPy array is needed."""
    tensor = np.zeros((2, 3, 4, 2, 8), np.int8)
    assert (
        from_tensors([Foreign(tensor)], "CNTHD", heads=2).layout
        == from_tensors([tensor], "CNTHD", heads=2).layout
    )


GOOD = np.zeros((2, 3, 4, 2, 8), np.float16)


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda: from_tensors([], "CNTHD", heads=2), "tensors is '0 tensors"),
        (lambda: from_tensors([b"bytes"], "CNTHD", heads=2), "tensors is 'bytes'"),
        (lambda: from_tensors([GOOD], "CNTHD"), "heads is None"),
        (lambda: from_tensors([GOOD], "CNTHD", heads=3), "3 heads"),
        (lambda: from_tensors([GOOD[..., 0, :]], "CNTD", heads=0), "heads is 0"),
        (lambda: from_tensors([GOOD], "NCTHD", heads=2), "3 along C"),
        (lambda: from_tensors([GOOD], "CNTD", heads=2), "a letter of LCNTHD for each of the 5 axes"),
        (lambda: from_tensors([GOOD], "CNTXD", heads=2), "a letter of LCNTHD"),
        (lambda: from_tensors([GOOD], "CCTHD", heads=2), "a letter of LCNTHD"),
        (lambda: from_tensors([GOOD], "CNTDH", heads=2), "D as the last"),
        (lambda: from_tensors([GOOD], "CNTHD", heads=2, latent=True), "one of them"),
        (lambda: from_tensors([GOOD[0]], "NTHD", heads=2), "one of them"),
        (lambda: from_tensors([GOOD[0]], "NTHD", values=[], heads=2), "1 tensors and 0 values"),
        (
            lambda: from_tensors([GOOD, GOOD[:, :2]], "CNTHD", heads=2),
            "N=2 T=4 H=2 D=8 float16', expected L=1 C=2 N=3",
        ),
        (lambda: from_tensors([GOOD, GOOD.view(np.int16)], "CNTHD", heads=2), "D=8 int16'"),
        (lambda: from_tensors([GOOD, GOOD[..., :4]], "CNTHD", heads=2), "D=4"),
        (lambda: from_tensors([GOOD], "CNTHD", heads=2, layers=(0, 1)), "layers is 2, expected the 1"),
        (lambda: from_tensors([GOOD, GOOD], "CNTHD", heads=2, layers=1), "layers is 1, expected more than 1"),
        (lambda: from_tensors([GOOD[..., ::2]], "CNTHD", heads=2), "rows without gaps"),
        (lambda: from_tensors([GOOD[:, ::-1]], "CNTHD", heads=2), "no stride below zero"),
        (lambda: from_tensors([GOOD[:, :0]], "CNTHD", heads=2), "no empty axis"),
        (lambda: from_tensors([GOOD.astype(">f2")], "CNTHD", heads=2), "dtype is '>f2'"),
        (lambda: from_tensors([GOOD.astype(np.complex64)], "CNTHD", heads=2), "dtype is 'complex64'"),
        (lambda: from_tensors([GOOD.astype(bool)], "CNTHD", heads=2), "dtype is 'bool'"),
        (lambda: from_tensors([GOOD.reshape(2, 12, 16)], "CTD", heads=2), "block_size is None"),
        (lambda: from_tensors([GOOD.reshape(2, 12, 16)], "CTD", heads=2, block_size=5), "a divisor of 12"),
        (lambda: from_tensors([GOOD.reshape(2, 12, 16)], "CTD", heads=3, block_size=4), "a divisor of 16"),
    ],
)
def test_what_is_no_cache_is_refused(read: Callable[[], object], said: str) -> None:
    """By name, with what was found."""
    with pytest.raises(KVLayoutError) as caught:
        read()
    assert said in str(caught.value)


def test_an_expanded_tensor_is_refused() -> None:
    """Its rows are one and the same."""
    with pytest.raises(KVOverlapError):
        from_tensors([np.broadcast_to(GOOD[:, :1], GOOD.shape)], "CNTHD", heads=2)


def test_a_pointer_and_a_shape() -> None:
    """One contiguous cache for all layers; its address is whoever's memory it is."""
    held = from_pointer(4096, layer_count=32, num_heads=8, head_dim=128, max_seq_len=4096)
    layout = held.layout
    assert held.addresses == (4096,)
    assert layout.tensor_nbytes == (32 * 2 * 8 * 4096 * 128 * 2,)
    assert (layout.num_blocks, layout.block_size, layout.paged) == (1, 4096, False)
    key, value = layout.planes[:2]
    assert (value.offset - key.offset, key.head_stride, key.token_stride) == (8 << 20, 1 << 20, 256)
    part = from_pointer(
        1, 2, 2, 4, 16, layers=range(4, 6), heads=(2, 3), slots=3, order="|NLCTHD", dtype="int8"
    )
    assert (part.layout.layers, part.layout.heads, part.layout.num_blocks) == ((4, 5), (2, 3), 3)
    for pointer in (0, -8, None):
        with pytest.raises(KVLayoutError, match="pointer is"):
            from_pointer(pointer, 1, 1, 1, 1)  # type: ignore[arg-type]
    with pytest.raises(KVLayoutError, match="one tensor"):
        from_pointer(1, 1, 1, 1, 1, order="L|CNTHD")
    with pytest.raises(KVLayoutError, match="3 layers and 1 heads"):
        from_pointer(1, 2, 1, 1, 1, layers=3)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_torch_tensors_are_read_like_arrays(dtype: str) -> None:
    """Of types that NumPy does not know too, with strides and storage offsets."""
    torch: Any = pytest.importorskip("torch")
    whole = torch.zeros((4, 2, 6, 2, 8), dtype=getattr(torch, dtype))
    view = whole[1:].transpose(0, 1)
    held = from_tensors([view], "CNTHD", heads=2)
    size = view.element_size()
    assert held.layout.dtype == dtype.removesuffix("fn")
    assert held.addresses == (view.data_ptr(),)
    key, value = held.layout.planes
    assert (key.block_stride, key.token_stride, value.offset) == (192 * size, 16 * size, 96 * size)
    with pytest.raises(KVLayoutError, match="sparse"):
        from_tensors([whole.float().to_sparse()], "CNTHD", heads=2)
    with pytest.raises(KVOverlapError):
        from_tensors([view[:, :1].expand(2, 3, 6, 2, 8)], "CNTHD", heads=2)
