"""A child of the demo in which something goes wrong: `python -m tests.demo.sabotage KIND MODULE`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from hixl_aio.demo import llama, verify
from hixl_aio.demo.decode import Decoder
from hixl_aio.demo.plan import Handoff
from hixl_aio.demo.prefill import Prefiller

__all__ = ("main",)


def flip_a_bit() -> None:
    """In decode's memory one bit of V of layer 2 changes after the second request has landed."""
    land = Decoder._land

    async def flipping(self: Decoder, payload: bytes) -> Any:
        job = await land(self, payload)
        if job.handoff.request == 1:
            job.cache.values(2, job.handoff.prompt_tokens).view(np.uint32)[5, 1, 3] ^= 1
        return job

    Decoder._land = flipping  # type: ignore[method-assign]


def drop_a_layer() -> None:
    """Prefill forgets to send layer 1 of the second request."""
    put_layer = Prefiller._put_layer

    def forgetful(self: Prefiller, transfer: Any, cache: Any, layer: int, puts: Any) -> None:
        if (transfer.request.index, layer) != (1, 1):
            put_layer(self, transfer, cache, layer, puts)

    Prefiller._put_layer = forgetful  # type: ignore[method-assign]


def swap_the_slots() -> None:
    """Decode reads each request from the slot of the other one."""
    unpack = Handoff.unpack

    def swapped(payload: bytes, plan: Any) -> Handoff:
        handoff = unpack(payload, plan)
        return Handoff(handoff.request, 1 - handoff.slot, handoff.prompt_tokens, handoff.first_token)

    vars(sys.modules["hixl_aio.demo.decode"])["Handoff"] = type(
        "Swapped", (), {"unpack": staticmethod(swapped)}
    )


def change_late() -> None:
    """After the cache has been hashed, one bit of K of layer 3 changes."""
    hashes = verify.kv_hashes

    def late(cache: llama.KVCache, tokens: int) -> tuple[str, ...]:
        found = hashes(cache, tokens)
        cache.keys(3, tokens).view(np.uint32)[0, 0, 0] ^= 1 << 30
        return found

    vars(sys.modules["hixl_aio.demo.decode"])["kv_hashes"] = late


KINDS: Final[dict[str, tuple[str, Callable[[], None]]]] = {
    "flip": ("decode", flip_a_bit),
    "drop": ("prefill", drop_a_layer),
    "swap": ("decode", swap_the_slots),
    "late": ("decode", change_late),
}


def main() -> int:
    """Be the child whose module is the second argument."""
    kind, module = sys.argv[1:]
    role, meddle = KINDS[kind]
    if module.endswith("." + role):
        meddle()
    status = importlib.import_module(module).main()
    assert isinstance(status, int)
    return status


if __name__ == "__main__":
    sys.exit(main())
