"""After every test, whatever it was about: nothing is left open, running or in flight."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
import uvloop

from hixl_aio.testing import Resources

from .loops import run_on
from .soak import rounds


def pytest_configure() -> None:
    """What belongs to the whole process: a pipe of libuv's, and that Ctrl-C ends children."""
    uvloop.new_event_loop().close()  # the first loop opens the pipe: let that be now
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell has started us in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A soak repeats, so a test takes longer there."""
    for item in items:
        if rounds(0, 1) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1800))


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


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is marked `trio_only` on trio."""
    is_coroutine = inspect.iscoroutinefunction(pyfuncitem.obj)
    if not is_coroutine or pyfuncitem.get_closest_marker("trio_only") is None:
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def main() -> None:
        await pyfuncitem.obj(**given)

    run_on("trio", main)
    return True


class _LoopErrors(logging.Handler):
    """What a loop tells its log where no handler is set: a callback that raised, a task left pending."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "nobody looked at it" not in record.getMessage():  # which a test may leave at that
            self.texts.append(self.format(record))


_BEFORE = pytest.StashKey[Resources]()
_LOOP_ERRORS = pytest.StashKey[_LoopErrors]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Remember what was there before any fixture."""
    gc.freeze()  # above all the reports of earlier tests, which grow and make every look for garbage slower
    item.stash[_BEFORE] = Resources.now()
    item.stash[_LOOP_ERRORS] = _LoopErrors()
    logging.getLogger("asyncio").addHandler(item.stash[_LOOP_ERRORS])
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """No engine, operation, descriptor, thread or child outlives its test and its fixtures, and no loop has
    anything to complain of."""
    result = yield
    gc.collect()
    # No patience with descriptors: a closed engine has none (INV-10).
    left = Resources.now().added_since(item.stash[_BEFORE], patience=0.0)
    errors = item.stash[_LOOP_ERRORS]
    logging.getLogger("asyncio").removeHandler(errors)
    assert not left, "\n".join(left)
    assert not errors.texts, "\n".join(errors.texts)
    return result
