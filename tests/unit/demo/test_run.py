"""The parent's half of the demo, where no process is needed."""

from __future__ import annotations

import asyncio

import pytest

from hixl_aio.demo.run import _answer


@pytest.mark.asyncio
async def test_an_answer_that_nobody_waits_for_any_more_is_dropped() -> None:
    """A child may speak in the turn in which the run is cancelled: that is no error."""
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    future.cancel()
    _answer(future, "127.0.0.1:1")
    assert future.cancelled()
    other: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    _answer(other, "127.0.0.1:1")
    assert await other == "127.0.0.1:1"
