"""Layouts from the order of their axes, and the orders that engines use."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

from hixl_aio.kv.errors import KVLayoutError
from hixl_aio.kv.layout import DTYPES, Kind, KVLayout, KVPlane

__all__ = (
    "CacheOptions",
    "ModelOptions",
    "TokenOrder",
    "dense",
    "flashinfer",
    "huggingface",
    "llm_datadist",
    "lmcache",
    "sglang",
    "tensorrt_llm",
    "vllm",
)

TokenOrder: TypeAlias = Literal["NHD", "HND"]
"""Within a block: token, head, value (NHD), or head, token, value (HND)."""


class ModelOptions(TypedDict, total=False):
    """Keywords that all constructors take: which part of which model.

    `layers` and `heads` are a number (so many, from 0) or the numbers themselves, counted in the whole model.
    The others are those of :class:`KVLayout`.
    """

    layers: int | Sequence[int]
    heads: int | Sequence[int]
    quantization: str
    window: int | None
    total_heads: int | None
    total_layers: int | None


class CacheOptions(ModelOptions, total=False):
    """Those, and what a row is. `layers`, `heads`, `head_dim` and `dtype` must be given.

    `align` maps axes to the bytes to which their strides are rounded up.
    """

    head_dim: int
    dtype: str
    value_head_dim: int | None
    align: Mapping[str, int]


def dense(
    order: str,
    *,
    block_size: int,
    num_blocks: int,
    paged: bool = True,
    latent: bool = False,
    **options: Unpack[CacheOptions],
) -> KVLayout:
    """A layout of tensors without gaps, but for those that `align` asks for.

    Args:
        order: the axes from the outside: L layers, C keys and values, N blocks, T tokens of a block, H heads,
            D values. A bar ends those along which the tensors are separate: "L|CNTHD" is a tensor for each
            layer, "LC|NTHD" one for the keys and one for the values of each, "|NLCHTD" one for all.
        block_size: tokens in a block; of a contiguous cache: the longest sequence.
        num_blocks: blocks; of a contiguous cache: sequences.
        paged: False: contiguous.
        latent: one latent for each token instead of keys and values (MLA); C may be left out.
        options: see :class:`CacheOptions`.

    Raises:
        KVLayoutError: an axis is missing, or D is not the innermost; or the layout itself is wrong.
    """
    separate, _, inside = order.rpartition("|")
    named = sorted(separate + inside + ("C" if latent and "C" not in order else ""))
    if named != sorted("LCNTHD") or not inside.endswith("D") or set(separate) - {"L", "C"}:
        expected = "L, C, N, T, H, D once each, D the last, and a bar behind L or C that tell tensors apart"
        raise KVLayoutError(argument="order", value=order, expected=expected)
    layers, heads = numbers("layers", options.get("layers")), numbers("heads", options.get("heads"))
    kinds: tuple[Kind, ...] = ("latent",) if latent else ("key", "value")
    counts = {"L": len(layers), "C": len(kinds), "N": num_blocks, "T": block_size, "H": len(heads)}
    strides, sizes = _strides(inside, counts, _widths(kinds, options), options.get("align", {}))
    planes, tensors = [], dict[tuple[int, ...], int]()
    for place, layer in enumerate(layers):
        for index, kind in enumerate(kinds):
            at = {"L": place, "C": index}
            tensor = tensors.setdefault(tuple(at[axis] for axis in separate), len(tensors))
            stride = strides[index]
            offset = sum(at[axis] * stride[axis] for axis in "LC" if axis in inside)
            planes.append(KVPlane(layer, kind, tensor, offset, stride["N"], stride["T"], stride["H"]))
    nbytes = [sizes[0] if "C" not in separate else sizes[key[separate.index("C")]] for key in tensors]
    return make(planes, nbytes, heads, block_size, num_blocks, paged, options)


def _widths(kinds: Sequence[Kind], options: CacheOptions) -> list[int]:
    dtype, head_dim = options.get("dtype"), options.get("head_dim")
    if dtype is None or dtype not in DTYPES:
        raise KVLayoutError(argument="dtype", value=dtype, expected="one of " + ", ".join(DTYPES))
    if type(head_dim) is not int or head_dim <= 0:
        raise KVLayoutError(argument="head_dim", value=head_dim, expected="an int above zero")
    value_dim = options.get("value_head_dim")
    widths = {"value": head_dim if value_dim is None else value_dim}
    return [widths.get(kind, head_dim) * DTYPES[dtype] for kind in kinds]


def _strides(
    inside: str, counts: Mapping[str, int], widths: Sequence[int], align: Mapping[str, int]
) -> tuple[list[dict[str, int]], list[int]]:
    """From the inside: strides of keys and of values, which differ where their rows do, and all bytes."""
    for axis, to in align.items():
        if axis not in inside[:-1] or type(to) is not int or to <= 0:
            raise KVLayoutError(
                argument="align", value=f"{axis}: {to}", expected=f"one of {inside[:-1]}, above 0"
            )
    extents = list(widths)
    strides = [dict[str, int]() for _ in widths]
    for axis in reversed(inside[:-1]):
        to = align.get(axis, 1)
        extents = [math.ceil(extent / to) * to if to > 1 else extent for extent in extents]
        if axis == "C":  # the values come behind the keys, whatever the keys take
            for stride in strides:
                stride[axis] = extents[0]
            extents = [sum(extents)] * len(extents)
            continue
        for index, extent in enumerate(extents):
            strides[index][axis] = extent
        extents = [extent * counts[axis] for extent in extents]
    return strides, extents


def numbers(name: str, given: int | Sequence[int] | None) -> tuple[int, ...]:
    """The numbers that a count, or a sequence, stands for."""
    try:
        found = tuple(range(given)) if isinstance(given, int) else tuple(map(operator.index, given or ()))
    except TypeError:
        found = ()
    if not found:
        raise KVLayoutError(argument=name, value=given, expected="how many, or their numbers: one or more")
    return found


def make(
    planes: Sequence[KVPlane],
    tensor_nbytes: Sequence[int],
    heads: tuple[int, ...],
    block_size: int,
    num_blocks: int,
    paged: bool,
    options: CacheOptions,
) -> KVLayout:
    """A layout of these planes, with what the options say besides places."""
    taken: Any = {name: value for name, value in options.items() if name not in ("layers", "heads", "align")}
    return KVLayout(
        planes=tuple(planes),
        tensor_nbytes=tuple(tensor_nbytes),
        heads=heads,
        block_size=block_size,
        num_blocks=num_blocks,
        paged=paged,
        **taken,
    )


# ---- the orders of engines


def vllm(
    order: TokenOrder = "NHD",
    *,
    block_size: int,
    num_blocks: int,
    blocks_first: bool = False,
    one_tensor: bool = False,
    latent: bool = False,
    **options: Unpack[CacheOptions],
) -> KVLayout:
    """vLLM: a tensor for each layer.

    Args:
        order: what `VLLM_KV_CACHE_LAYOUT` says.
        block_size, num_blocks: as in vLLM.
        blocks_first: [blocks, 2, …] as with its FlashInfer backend, instead of [2, blocks, …] as with
            FlashAttention.
        one_tensor: all layers in one tensor, blocks first.
        latent: MLA, [blocks, tokens, values], a head_dim of kv_lora_rank + qk_rope_head_dim.
        options: see :class:`CacheOptions`.

    Source: `get_kv_cache_shape` and `get_kv_cache_stride_order` in vllm-project/vllm,
    vllm/v1/attention/backends/flash_attn.py and flashinfer.py; MLA: vllm/v1/attention/backends/mla.
    """
    if latent:
        axes = "|NLCTHD" if one_tensor else "L|CNTHD"
    elif one_tensor:
        axes = {"NHD": "|NLCTHD", "HND": "|NCHLTD"}[_known(order)]
    else:
        axes = "L|" + ("NC" if blocks_first else "CN") + _inner(order)
    return dense(axes, block_size=block_size, num_blocks=num_blocks, latent=latent, **options)


def sglang(*, size: int, page_size: int, latent: bool = False, **options: Unpack[CacheOptions]) -> KVLayout:
    """SGLang: for each layer a tensor of keys and one of values, [size + page_size, heads, head_dim].

    Token slot `i` is token `i % page_size` of block `i // page_size`.

    Args:
        size, page_size: those of the pool, in tokens; `size` a multiple of `page_size`.
        latent: MLA, [size + page_size, 1, kv_lora_rank + qk_rope_head_dim].
        options: see :class:`CacheOptions`. A pool that stores fp8 as uint8 says uint8 on both sides.

    Source: `MHATokenToKVPool` and `MLATokenToKVPool` in sgl-project/sglang,
    python/sglang/srt/mem_cache/memory_pool.py.
    """
    if page_size <= 0 or size % page_size:
        raise KVLayoutError(argument="size", value=size, expected=f"a multiple of page_size, {page_size}")
    blocks = size // page_size + 1
    return dense("LC|NTHD", block_size=page_size, num_blocks=blocks, latent=latent, **options)


def flashinfer(
    order: TokenOrder = "NHD",
    *,
    page_size: int,
    max_num_pages: int,
    separate: bool = False,
    **options: Unpack[CacheOptions],
) -> KVLayout:
    """FlashInfer: for each layer [pages, 2, page, heads, head_dim] (NHD), or heads before the page (HND).

    Args:
        order: its `kv_layout`.
        page_size, max_num_pages: as there.
        separate: the tuple of a key and a value tensor instead of one.
        options: see :class:`CacheOptions`.

    Source: `paged_kv_cache` in the documentation of flashinfer-ai/flashinfer, "KV-Cache Layout in
        FlashInfer".
    """
    axes = ("LC|N" if separate else "L|NC") + _inner(order)
    return dense(axes, block_size=page_size, num_blocks=max_num_pages, **options)


def lmcache(
    form: Literal["KV_2LTD", "KV_T2D", "KV_2TD"] = "KV_2LTD",
    *,
    chunk_size: int,
    num_chunks: int,
    latent: bool = False,
    **options: Unpack[CacheOptions],
) -> KVLayout:
    """LMCache's memory objects, one behind the other: a chunk of tokens is a block.

    Args:
        form: [2, layers, tokens, hidden], or for each layer [tokens, 2, hidden] or [2, tokens, hidden].
        chunk_size: tokens in a chunk.
        num_chunks: chunks that the tensor (of all layers, or of each) holds.
        latent: MLA, `KV_MLA_FMT`: [1, layers, tokens, values].
        options: see :class:`CacheOptions`.

    Source: `MemoryFormat` in LMCache/LMCache, lmcache/v1/memory_management.py.
    """
    axes = {"KV_2LTD": "|NCLTHD", "KV_T2D": "L|NTCHD", "KV_2TD": "L|NCTHD"}.get(form)
    if axes is None:
        raise KVLayoutError(argument="form", value=form, expected="KV_2LTD, KV_T2D or KV_2TD")
    return dense(axes, block_size=chunk_size, num_blocks=num_chunks, latent=latent, **options)


def huggingface(*, max_batch_size: int, max_cache_len: int, **options: Unpack[CacheOptions]) -> KVLayout:
    """Transformers' static cache: keys and values of each layer, [batch, heads, tokens, head_dim].

    Args:
        max_batch_size, max_cache_len: as there.
        options: see :class:`CacheOptions`.

    Source: `StaticLayer` in huggingface/transformers, src/transformers/cache_utils.py.
    """
    return dense("LC|NHTD", block_size=max_cache_len, num_blocks=max_batch_size, paged=False, **options)


def tensorrt_llm(
    *, tokens_per_block: int, num_blocks: int, latent: bool = False, **options: Unpack[CacheOptions]
) -> KVLayout:
    """A pool of TensorRT-LLM: one tensor of [blocks, layers, 2 (MLA: 1), heads x tokens x head_dim].

    Args:
        tokens_per_block, num_blocks: as there.
        latent: MLA.
        options: see :class:`CacheOptions`. Pools of different numbers of heads, or windows, are layouts of
            their own.

    Source: `allocatePools` in NVIDIA/TensorRT-LLM, cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp.
    """
    return dense("|NLCHTD", block_size=tokens_per_block, num_blocks=num_blocks, latent=latent, **options)


def llm_datadist(
    *, block_size: int, num_blocks: int, paged: bool = True, **options: Unpack[CacheOptions]
) -> KVLayout:
    """LLM-DataDist: equal tensors, keys and then values of each layer, [blocks, tokens, heads, head_dim].

    Args:
        block_size: tokens in a block; of a contiguous cache: the longest sequence.
        num_blocks: blocks; of a contiguous cache: the batch.
        paged: what `register_blocks_cache` registers; False: `register_cache`.
        options: see :class:`CacheOptions`.

    Source: `CacheDesc` (num_tensors, shape) and `tensor_num_per_layer=2` in the llm_datadist package of
        hicann/hixl,
    src/python/llm_datadist/llm_datadist/v2; shapes as vLLM-Ascend registers them.
    """
    return dense("LC|NTHD", block_size=block_size, num_blocks=num_blocks, paged=paged, **options)


def _known(order: str) -> str:
    if order not in ("NHD", "HND"):
        raise KVLayoutError(argument="order", value=order, expected="NHD or HND")
    return order


def _inner(order: str) -> str:
    return "THD" if _known(order) == "NHD" else "HTD"
