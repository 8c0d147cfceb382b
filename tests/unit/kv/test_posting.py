"""What a plan holds is what a batch takes, in both directions, through a real engine."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from hixl_aio import Access, GetBlocks, PutBlocks
from hixl_aio.kv import Conversion, KVLayout, vllm
from hixl_aio.testing import connected_engines

OPTIONS: dict[str, Any] = {"layers": 3, "heads": 2, "head_dim": 8, "dtype": "bfloat16"}


def rows(layout: KVLayout, memory: Any, blocks: list[int], tokens: range) -> Any:
    """[layer, kind, token, head] → bytes, by the strides of the layout."""
    found = []
    for plane, token, head in itertools.product(layout.planes, tokens, range(len(layout.heads))):
        block, inside = divmod(token, layout.block_size)
        start = plane.offset + blocks[block] * plane.block_stride + inside * plane.token_stride
        start += head * plane.head_stride
        found.append(bytes(memory[plane.tensor][start : start + layout.row_nbytes(plane.kind)]))
    return found


@pytest.mark.asyncio
@pytest.mark.parametrize("is_get", [False, True], ids=["put", "get"])
async def test_a_plan_is_posted_as_it_is(is_get: bool) -> None:
    """One part for each pair of tensors; the same plan may be posted again."""
    source = vllm("NHD", block_size=4, num_blocks=6, **OPTIONS)
    destination = vllm("HND", block_size=8, num_blocks=3, **OPTIONS)
    made = Conversion(source, destination).plan([5, 0, 3], [2, 0], tokens=range(11))
    ours, theirs = (destination, source) if is_get else (source, destination)
    async with connected_engines() as pair:
        far = [
            await pair.far.allocate(nbytes, label=f"kv{index}", access=Access.READ_WRITE)
            for index, nbytes in enumerate(theirs.tensor_nbytes)
        ]
        near = [await pair.near.allocate(nbytes) for nbytes in ours.tensor_nbytes]
        await pair.peer.refresh()
        filled = far if is_get else near
        generator = np.random.default_rng(0)
        for _ in range(2):
            for region in filled:
                region.view()[:] = generator.bytes(region.nbytes)
            parts: list[GetBlocks | PutBlocks] = []
            for move in made.moves:
                arrays = move.src_offsets, move.dst_offsets, move.nbytes
                if is_get:
                    remote = pair.peer.region(f"kv{move.src_tensor}")
                    parts.append(GetBlocks(remote, near[move.dst_tensor], *arrays))
                else:
                    remote = pair.peer.region(f"kv{move.dst_tensor}")
                    parts.append(PutBlocks(near[move.src_tensor], remote, *arrays))
            batch = pair.near.batch(parts)
            await batch
            assert batch.nbytes == made.nbytes
            sent = [region.view() for region in filled]
            landed = [region.view() for region in (near if is_get else far)]
            expected = rows(source, sent, [5, 0, 3], range(11))
            assert rows(destination, landed, [2, 0], range(11)) == expected
            del sent, landed
