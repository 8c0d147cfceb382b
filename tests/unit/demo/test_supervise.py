"""Which of several errors a run of the demo is said to have ended with."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from hixl_aio.demo.errors import ChildError, DemoError, LostError, ToldError
from hixl_aio.demo.supervise import children

pytestmark = pytest.mark.asyncio

LOST = LostError("prefill", "failed: PeerLostError: it is gone")


async def give_up(error: DemoError) -> NoReturn:
    raise error


async def run_into(*errors: DemoError) -> None:
    """A run whose children fail so, in one turn of the loop."""
    async with children() as them:
        for error in errors:
            them._group.create_task(give_up(error))
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("cause", [ToldError("had never been written"), ChildError("decode", "failed: X")])
@pytest.mark.parametrize("cause_first", [False, True])
async def test_of_two_errors_in_one_turn_the_cause_is_raised(cause: DemoError, cause_first: bool) -> None:
    """The process that missed the other one may be heard first; what is raised is what the other one said."""
    with pytest.raises(type(cause)) as raised:
        await run_into(*((cause, LOST) if cause_first else (LOST, cause)))
    assert raised.value is cause


async def test_a_loss_that_nobody_explains_is_raised_itself() -> None:
    """Where no process tells of a cause, the loss is all there is to say."""
    with pytest.raises(LostError) as raised:
        await run_into(LOST)
    assert raised.value is LOST
