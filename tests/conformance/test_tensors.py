"""Torch CPU tensors take part like any other buffer; torch itself is never imported by the library."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from hixl_aio import (
    Access,
    Engine,
    HixlAioError,
    InvalidArgumentError,
    NotContiguousError,
    PutBlocks,
    UnsupportedError,
)

from .support import Pair

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "int64", "uint8", "bool", "float8_e4m3fn"]
)
async def test_tensors_of_every_type_arrive_bit_by_bit(pair: Pair, dtype: str) -> None:
    """Also those that NumPy does not know."""
    kind = getattr(torch, dtype)
    bits = torch.randint(0, 2, (4, 48), dtype=torch.uint8)
    sent = bits.view(kind) if kind is not torch.bool else bits.bool()
    nbytes = sent.numel() * sent.element_size()
    region, remote = await pair.target(nbytes)
    source = await pair.near.register(sent)
    assert source.nbytes == nbytes
    await pair.near.put(source, remote)
    assert (
        bytes(region.view()) == bytes(source.view()) == sent.contiguous().view(torch.uint8).numpy().tobytes()
    )


async def test_a_tensor_may_be_the_destination(pair: Pair) -> None:
    """A view with a storage offset: its bytes change, those around it do not."""
    if pair.link == "shm":
        region, remote = await pair.target(32)
        region.view()[:] = bytes(range(32))
        storage = torch.zeros(16, dtype=torch.float32)
        destination = await pair.near.register(storage[4:12])
        await pair.near.get(remote, destination)
    else:
        storage = torch.zeros(16, dtype=torch.float32)
        await pair.far.register(storage[4:12], label="t", access=Access.WRITE)
        await pair.peer.refresh()
        source = await pair.near.register(bytes(range(32)))
        await pair.near.put(source, pair.peer.region("t"))
    assert storage[4:12].view(torch.uint8).tolist() == list(range(32))
    assert storage[:4].abs().sum() == storage[12:].abs().sum() == 0


async def test_tensors_that_are_not_plain_are_refused(one: Engine) -> None:
    """Transposed, strided, expanded, empty, on another device: a typed error, nothing registered."""
    matrix = torch.arange(16.0).reshape(4, 4)
    for bad in (matrix.T, matrix[:, ::2], torch.ones(1, 4).expand(4, 4)):
        with pytest.raises(NotContiguousError):
            await one.register(bad)
    conjugate = torch.ones(2, dtype=torch.complex64).conj()
    for bad in (torch.empty(0), torch.eye(3).to_sparse(), conjugate):
        with pytest.raises(InvalidArgumentError):
            await one.register(bad)
    with pytest.raises(UnsupportedError):
        await one.register(torch.empty(4, device="meta"))
    for fine in (torch.tensor(1.0), torch.ones(3, requires_grad=True), matrix[1], torch.ones(1, 4).T):
        await one.register(fine)
    assert one.statistics().regions == 4


async def test_a_registered_tensor_stays_where_it_is(one: Engine) -> None:
    """Its storage is kept alive and cannot be resized until the region is closed."""
    tensor = torch.arange(8, dtype=torch.int32)
    region = await one.register(tensor)
    with pytest.raises(RuntimeError):
        tensor.resize_(1000)
    del tensor
    gc.collect()
    assert bytes(region.view()[4:8]) == b"\x01\x00\x00\x00"
    assert torch.frombuffer(region.view(), dtype=torch.int32)[7] == 7
    assert torch.from_dlpack(region).tolist()[:4] == [0, 0, 0, 0]


async def test_offsets_may_be_tensors(pair: Pair) -> None:
    """int64 on the CPU, without a copy of each value."""
    region, remote = await pair.target(64)
    source = await pair.source(64, 3)
    offsets = torch.tensor([0, 32])
    await pair.near.batch([PutBlocks(source, remote, offsets, offsets + 8, 8)])
    assert bytes(region.view()).count(3) == 16
    with pytest.raises(HixlAioError):
        pair.near.batch([PutBlocks(source, remote, offsets.float(), offsets, 8)])
