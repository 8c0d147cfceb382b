"""Two processes that connect to each other at the same moment."""

from __future__ import annotations

import asyncio

import pytest

from hixl_aio.testing import child_process

from . import children


@pytest.mark.asyncio
async def test_simultaneous_connects_end_in_one_peer_on_each_side() -> None:
    """Both connect at once, eight times over with new processes: one peer each, under the other's name."""
    for _ in range(8):
        async with (
            child_process(children.meet, go="left") as left,
            child_process(children.meet, go="right") as right,
        ):
            left_address, right_address = (await left.hear())["address"], (await right.hear())["address"]
            await left.say({"address": right_address})
            await right.say({"address": left_address})
            from_left, from_right = await asyncio.gather(left.hear(), right.hear())
            assert from_left == {"peers": [right_address], "name": "right"}
            assert from_right == {"peers": [left_address], "name": "left"}
