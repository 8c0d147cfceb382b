"""After every test, whatever it was about: nothing is left open, running or in flight."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
import uvloop

from hixl_aio.testing import Resources


def pytest_configure() -> None:
    """libuv opens one pipe for the whole process with its first loop: let that be now."""
    uvloop.new_event_loop().close()


def pytest_collection_finish() -> None:
    """What importing has made stays: looking for garbage after each test need not look there."""
    gc.collect()
    gc.freeze()


@pytest_asyncio.fixture
async def _no_task_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, f"tasks are left: {left}"


@pytest.fixture(autouse=True)
def _asyncio_leaves_nothing(request: pytest.FixtureRequest) -> None:
    """Set up before all other asynchronous fixtures, so that it looks after them."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("_no_task_left")


_BEFORE = pytest.StashKey[Resources]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Remember what was there before any fixture."""
    item.stash[_BEFORE] = Resources.now()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """No engine, operation, descriptor, thread or child outlives its test and its fixtures."""
    result = yield
    gc.collect()
    # No patience with descriptors: a closed engine has none (INV-10).
    left = Resources.now().added_since(item.stash[_BEFORE], patience=0.0)
    assert not left, "\n".join(left)
    return result
