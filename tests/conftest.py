"""After every test, whatever it was about: nothing is left open, running or in flight."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop

from .loops import run_on


def _descriptors() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the one that listed the directory
    return found


def _threads() -> set[str]:
    """Python's threads and ours; libraries of mathematics have their own, and keep them."""
    found = {f"{thread.name} ({thread.ident})" for thread in threading.enumerate()}
    for task in os.listdir("/proc/self/task"):
        try:
            name = Path(f"/proc/self/task/{task}/comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name.startswith("hixl"):
            found.add(f"{name} ({task})")
    return found


def _children() -> set[str]:
    found: set[str] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            found.update(Path(f"/proc/self/task/{task}/children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def pytest_configure() -> None:
    """What belongs to the whole process: a pipe of libuv's, and that Ctrl-C ends children."""
    uvloop.new_event_loop().close()  # the first loop opens the pipe: let that be now
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell has started us in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


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


_BEFORE = pytest.StashKey[tuple[dict[str, str], set[str], set[str]]]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Remember what was there before any fixture."""
    item.stash[_BEFORE] = (_descriptors(), _threads(), _children())
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """No descriptor, thread, child or operation outlives its test and its fixtures."""
    result = yield
    gc.collect()
    descriptors, threads, children = item.stash[_BEFORE]
    _check_engines()
    new_threads = _settled(lambda: _threads() - threads)
    assert not new_threads, f"threads are left: {new_threads}"
    assert not (_children() - children), "child processes are left"
    new = {name: kind for name, kind in _descriptors().items() if descriptors.get(name) != kind}
    new = {name: kind for name, kind in new.items() if not kind.startswith("/proc/")}
    assert not new, f"descriptors are left: {new}"
    return result


def _settled(look: Callable[[], set[str]]) -> set[str]:
    """What a thread that has been joined leaves in /proc goes a moment later: look again until then."""
    limit = time.monotonic() + 5.0
    while (left := look()) and time.monotonic() < limit:
        time.sleep(0.001)
    return left


def _check_engines() -> None:
    from hixl_aio._runtime import _open_runtimes

    for runtime in list(_open_runtimes):
        assert runtime.life.state.name in ("CLOSED", "FORKED"), (
            f"{runtime.name} is {runtime.life.state.value}"
        )
        counts = runtime.statistics()
        assert counts.in_flight == 0, f"{runtime.name} is closed with operations: {counts}"
        assert counts.regions == counts.busy_regions == counts.peers == counts.unread_signals == 0, counts
        assert not len(runtime.requests), f"{runtime.name} is closed with {len(runtime.requests)} requests"
