"""The pytest plugin of hixl-aio: fixtures for code that transfers, and a look at what a test leaves behind.

It lies outside the package `hixl_aio`, so that loading it imports nothing of that: a suite that does not use
the fixtures pays nothing for them. See `docs/howto/testing.md`.

A fixture must run on the loop of its test, and it is pytest-asyncio or anyio that runs both. So each
asynchronous fixture has halves that those plugins run, and a synchronous face that asks for the right one.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from hixl_aio import Engine, EngineOptions
    from hixl_aio.testing import ChildProcess, EnginePair, FaultPlan, PeerProcess, Resources

__all__ = ("engine", "engine_pair", "fault_plan", "hixl_aio_options", "peer_process")

_SCOPES: Final = ("function", "class", "module", "package", "session")
_MODES: Final = ("all", "operations", "off")
_BEFORE: Final[pytest.StashKey[Resources]] = pytest.StashKey()
_LEFT: Final[pytest.StashKey[list[str]]] = pytest.StashKey()
_FAILED: Final[pytest.StashKey[bool]] = pytest.StashKey()
_PROCESSES: Final[pytest.StashKey[list[ChildProcess]]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Our settings."""
    parser.addini(
        "hixl_aio_quiescence",
        'what must be at rest after a test that used a fixture of hixl-aio: "all" (operations, signals, '
        'engines, threads, descriptors, child processes), "operations" (the first three), or "off"',
        default="all",
    )
    parser.addini(
        "hixl_aio_patience",
        "seconds that operations have to settle after a test, before they count as left behind",
        default="1.0",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Our marker, and the halves of our fixtures."""
    config.addinivalue_line(
        "markers",
        "hixl_aio_quiescence(what): overrides the setting of that name for a test; "
        '"all", "operations" or "off"',
    )
    _check_mode(config.getini("hixl_aio_quiescence"), "the setting hixl_aio_quiescence")
    _patience(config)
    halves = ModuleType("pytest_hixl_aio_halves")
    for half in _HALVES:
        setattr(halves, _name(half, "anyio"), pytest.fixture(_copy(half), name=_name(half, "anyio")))
    if config.pluginmanager.has_plugin("asyncio"):
        import pytest_asyncio

        for half in _HALVES:
            for scope in _SCOPES:  # a test may choose the loop that it runs on
                made = pytest_asyncio.fixture(_copy(half), loop_scope=scope, name=_name(half, scope))
                setattr(halves, _name(half, scope), made)
    config.pluginmanager.register(halves, "hixl_aio_halves")


# ---- the fixtures


@pytest.fixture
def hixl_aio_options() -> EngineOptions:
    """The options of the engines that the other fixtures open. Override it to change them."""
    from hixl_aio import EngineOptions

    return EngineOptions()


@pytest.fixture
def fault_plan() -> FaultPlan:
    """What goes wrong with the transport of `engine`, or of `engine_pair.near`: nothing, until told."""
    from hixl_aio.testing import FaultPlan

    return FaultPlan()


@pytest.fixture
def engine(request: pytest.FixtureRequest, hixl_aio_options: EngineOptions) -> Engine:
    """An open engine on the loop of the test."""
    found: Engine = _ask(request, _engine)
    return found


@pytest.fixture
def engine_pair(request: pytest.FixtureRequest, hixl_aio_options: EngineOptions) -> EnginePair:
    """Two connected engines on the loop of the test: near, far, peer (far, seen from near), back."""
    found: EnginePair = _ask(request, _engine_pair)
    return found


@pytest.fixture
def peer_process(request: pytest.FixtureRequest, engine: Engine) -> Callable[..., Awaitable[PeerProcess]]:
    """Start a second process with an engine of its own: `other = await peer_process(function, **arguments)`.

    It runs `await function(its_engine, its_peer, **arguments)`, connected to the fixture `engine`. Processes
    that still run at the end of the test are killed; those that failed make the test fail.
    """
    processes: list[ChildProcess] = _ask(request, _processes)

    async def start(function: Callable[..., Any], /, **arguments: object) -> PeerProcess:
        from hixl_aio.testing._peer import start_peer

        return await start_peer(processes, engine, function, **arguments)

    return start


# ---- their halves


async def _engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    from hixl_aio import Engine

    _remember(request)
    plan = _plan(request)
    make = Engine if plan is None else plan.engine
    async with make(options=request.getfixturevalue("hixl_aio_options")) as opened:
        yield opened
        await _check(request, opened)
        if plan is not None:
            plan.release_all()  # the engine closes, and would wait for it


async def _engine_pair(request: pytest.FixtureRequest) -> AsyncIterator[EnginePair]:
    from hixl_aio.testing import connected_engines

    _remember(request)
    plan = _plan(request)
    async with connected_engines(request.getfixturevalue("hixl_aio_options"), plan=plan) as pair:
        yield pair
        await _check(request, pair.near, pair.far)
        if plan is not None:
            plan.release_all()  # the engine closes, and would wait for it


async def _processes(request: pytest.FixtureRequest) -> AsyncIterator[list[ChildProcess]]:
    item = request.node
    processes: list[ChildProcess] = []
    item.stash[_PROCESSES] = processes
    try:
        yield processes
        # First: what is in flight with a process that is killed ends with it.
        await _check(request, request.getfixturevalue("engine"))
    finally:
        for process in processes:
            process.reap()


_HALVES: Final[tuple[Callable[..., AsyncIterator[Any]], ...]] = (_engine, _engine_pair, _processes)


def _name(half: Callable[..., object], runner: str) -> str:
    return f"_hixl_aio{half.__name__}_{runner}"


def _copy(half: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    """The plugins mark the function itself, so each fixture needs its own."""
    assert isinstance(half, FunctionType)
    return FunctionType(half.__code__, half.__globals__, half.__name__)


def _ask(request: pytest.FixtureRequest, half: Callable[..., object]) -> Any:
    """The value of a half, from whichever plugin runs this test."""
    _plan(request)  # made here: a half runs on the loop already, where no asynchronous fixture can be made
    item = request.node
    marker = item.get_closest_marker("asyncio")  # in auto mode, pytest-asyncio puts it there
    if marker is not None and request.config.pluginmanager.has_plugin("asyncio"):
        default = request.config.getini("asyncio_default_test_loop_scope")
        return request.getfixturevalue(_name(half, marker.kwargs.get("loop_scope") or default))
    if "anyio_backend" in request.fixturenames:
        return request.getfixturevalue(_name(half, "anyio"))
    pytest.fail(
        f"the fixture {request.fixturename!r} needs a loop, and {item.nodeid} has none: make it an "
        "`async def` test that pytest-asyncio (@pytest.mark.asyncio) or anyio (@pytest.mark.anyio) runs",
        pytrace=False,
    )


def _plan(request: pytest.FixtureRequest) -> FaultPlan | None:
    """The plan of this test, if it asks for one, however it does."""
    if "fault_plan" not in request.fixturenames:
        return None
    plan: FaultPlan = request.getfixturevalue("fault_plan")
    return plan


# ---- quiescence


def _check_mode(mode: object, where: str) -> str:
    if mode not in _MODES:
        raise pytest.UsageError(f"{where} is {mode!r}; it must be one of {', '.join(map(repr, _MODES))}")
    return str(mode)


def _patience(config: pytest.Config) -> float:
    text = config.getini("hixl_aio_patience")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise pytest.UsageError(f"the setting hixl_aio_patience is {text!r}; it must be a number of seconds")
    return seconds


def _mode(item: pytest.Item) -> str:
    marker = item.get_closest_marker("hixl_aio_quiescence")
    if marker is None:
        return str(item.config.getini("hixl_aio_quiescence"))
    where = f"the marker hixl_aio_quiescence of {item.nodeid}"
    return _check_mode(marker.args[0] if marker.args else None, where)


def _remember(request: pytest.FixtureRequest) -> None:
    """What is there before the first of our fixtures opens something; the loop is there already."""
    item = request.node
    if _BEFORE not in item.stash and _mode(item) != "off":
        from hixl_aio.testing import Resources

        item.stash[_BEFORE] = Resources.now()
        item.stash[_LEFT] = []


async def _check(request: pytest.FixtureRequest, *engines: Engine) -> None:
    """Before an engine is closed, which would end what is under way."""
    item = request.node
    if _BEFORE in item.stash:
        from hixl_aio.testing import unsettled

        for each in engines:
            item.stash[_LEFT] += await unsettled(each, patience=_patience(item.config))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """After all fixtures: has anything failed unseen, is anything left? A failed test has told enough."""
    result = yield
    if not item.stash.get(_FAILED, False):
        processes = item.stash.get(_PROCESSES, [])
        wrong = [str(process.failure()) for process in processes if process.failed_unheard]
        if _BEFORE in item.stash:
            wrong += _what_is_left(item)
        if wrong:
            pytest.fail("\n\n".join(wrong), pytrace=False)
    return result


def _what_is_left(item: pytest.Item) -> list[str]:
    from hixl_aio.testing import NotQuiescentError, Resources

    gc.collect()
    now, only_engines = Resources.now(), _mode(item) == "operations"
    left = item.stash[_LEFT] + now.added_since(item.stash[_BEFORE], only_engines=only_engines)
    return [str(NotQuiescentError(list(dict.fromkeys(left))))] if left else []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test shows the tracebacks of its other processes."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.failed and report.when != "teardown":
        item.stash[_FAILED] = True
        for process in item.stash.get(_PROCESSES, []):
            failure = process.failure()
            if failure is not None:
                report.sections.append((f"hixl_aio process {process.pid}: {process.name}", str(failure)))
    return report  # type: ignore[return-value]
