"""Every test here runs on asyncio in debug mode, on uvloop, and with eager tasks where there are any."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio
import uvloop

from hixl_aio import Engine, EngineOptions

from .support import LINKS, Pair, connected


def _debug_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    return loop


def _eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    if sys.version_info >= (3, 12):
        loop.set_task_factory(asyncio.eager_task_factory)
    return loop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops."""
    loops = {"asyncio": _debug_loop, "uvloop": uvloop.new_event_loop}
    if sys.version_info >= (3, 12):
        loops["eager"] = _eager_loop
    return loops


@pytest.fixture(params=LINKS)
def link(request: pytest.FixtureRequest) -> str:
    """A kind of link that both engines of a pair are forced to use."""
    assert isinstance(request.param, str)
    return request.param


@pytest_asyncio.fixture
async def pair(link: str) -> AsyncIterator[Pair]:
    """Two connected engines over one kind of link."""
    async with connected(EngineOptions(links=(link,)), link) as made:
        yield made


@pytest_asyncio.fixture
async def one() -> AsyncIterator[Engine]:
    """One engine alone."""
    async with Engine() as engine:
        yield engine
