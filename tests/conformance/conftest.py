"""Every test here runs on asyncio in debug mode and on uvloop, and most of them over every kind of link."""

from __future__ import annotations

import asyncio
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


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops."""
    return {"asyncio": _debug_loop, "uvloop": uvloop.new_event_loop}


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
