"""Every test here runs on asyncio in debug mode, on uvloop, with eager tasks where there are any, on trio.

Tests are plain coroutine functions. The whole of one runs in the first task of a loop of its own, and so do
the fixtures that open something: they return an `Opens`, and the test gets what it opens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from hixl_aio import Engine, EngineOptions

from ..loops import ASYNCIO_LOOPS, LOOPS, Tasks, run_on
from .support import LINKS, connected, resent, spoiled_by_nothing


@dataclass(frozen=True, slots=True)
class Opens:
    """A fixture's value that is opened on the test's loop, and closed there."""

    manager: Callable[[], AbstractAsyncContextManager[Any]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Once for each loop."""
    definition = metafunc.definition
    if definition.get_closest_marker("asyncio") is not None:
        raise pytest.UsageError(
            f"{definition.nodeid}: tests here run on every loop by themselves. Take the mark `asyncio` off; "
            "one that is about asyncio itself gets the mark `asyncio_only`."
        )
    asyncio_only = definition.get_closest_marker("asyncio_only") is not None
    metafunc.parametrize("loop", tuple(ASYNCIO_LOOPS) if asyncio_only else LOOPS, indirect=True)


# What an interpreter can do wrong shows on its loops, and a loop sees two kinds of links: those that are done
# within the call, and those that wake it. Which link it is matters to native code, the same for all of them.
_LOOP_FOR_EVERY_LINK: Final = "eager" if "eager" in LOOPS else "asyncio"
_LINKS_FOR_EVERY_LOOP: Final = ("shm", "cma")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what one interpreter alone has to run, before anything is chosen by its marks."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and isinstance(item, pytest.Function):
            given = item.callspec.params
            link = given.get("pair", given.get("link"))
            if link not in (None, *_LINKS_FOR_EVERY_LOOP) and given["loop"] != _LOOP_FOR_EVERY_LINK:
                item.add_marker(pytest.mark.one_interpreter)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Run a test on its loop, with what its fixtures open."""
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def main() -> None:
        async with AsyncExitStack() as stack:
            for name, value in given.items():
                if isinstance(value, Opens):
                    given[name] = await stack.enter_async_context(value.manager())
            await pyfuncitem.obj(**given)
            given.clear()

    run_on(str(pyfuncitem.funcargs["loop"]), main)
    return True


@pytest.fixture(autouse=True)
def loop(request: pytest.FixtureRequest) -> str:
    """The kind of loop that this test runs on."""
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture(params=LINKS)
def link(request: pytest.FixtureRequest) -> str:
    """A kind of link that both engines of a pair are forced to use."""
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture(params=(*LINKS, "fault", "resent"))
def pair(request: pytest.FixtureRequest) -> Opens:
    """Two connected engines over one kind of link, with fault transports that spoil nothing, or with signals
    that get lost and are sent again."""
    link = str(request.param)
    if link == "fault":
        return Opens(spoiled_by_nothing)
    if link == "resent":
        return Opens(resent)
    return Opens(lambda: connected(EngineOptions(links=(link,)), link))


@pytest.fixture
def one() -> Opens:
    """One engine alone."""
    return Opens(Engine)


@pytest.fixture
def tasks() -> Opens:
    """Tasks beside the test; closed before what the test has named earlier."""
    return Opens(Tasks)
