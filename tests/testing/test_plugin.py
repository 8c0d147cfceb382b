"""The pytest plugin, in suites of its own: each inner run is a real pytest process."""

from __future__ import annotations

import importlib.util

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.timeout(120)

INI = """
[pytest]
asyncio_default_fixture_loop_scope = function
timeout = 30
filterwarnings =
    error
    ignore:Module already imported so cannot be rewritten. _editable_skbc:pytest.PytestAssertRewriteWarning
{more}
"""
STRICT = "asyncio_mode = strict"
AUTO = "asyncio_mode = auto"
# anyio's backends here: two loops of asyncio, and trio where that is installed and there is a bridge to it.
TRIO = all(importlib.util.find_spec(name) is not None for name in ("trio", "hixl_aio._bridge.trio"))
BACKENDS = 3 if TRIO else 2
MARK = {
    "strict": "import pytest; pytestmark = pytest.mark.asyncio",
    "auto": "",
    "anyio": """
import pytest
pytestmark = pytest.mark.anyio
@pytest.fixture(params=["asyncio", "uvloop", "trio"][:BACKENDS])
def anyio_backend(request):
    return ("asyncio", {"use_uvloop": True}) if request.param == "uvloop" else request.param
""".replace("BACKENDS", str(BACKENDS)),
}
MODES = [pytest.param(mode, id=mode) for mode in MARK]


def run(
    pytester: pytest.Pytester, source: str, mode: str = "strict", ini: str = "", *arguments: str
) -> pytest.RunResult:
    """One inner suite."""
    pytester.makeini(INI.format(more="\n".join((AUTO if mode == "auto" else STRICT, ini))))
    pytester.makepyfile(test_inner="\n".join((MARK[mode], source)))
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)


GOOD = """
import pytest
from hixl_aio import Access, PeerLostError, TransferFailedError

async def send(engine, peer, *, text, times=1):
    source = await engine.register(bytearray(text.encode()))
    for _ in range(times):
        await engine.put(source, peer.region("inbox")[: len(text)], signal="sent")
    return {"sent": times, "name": engine.name, "links": list(engine.options.links)}

async def serve(engine, peer):
    await engine.wait_signal("never")

async def test_an_engine_is_open_on_the_loop_of_the_test(engine):
    assert not engine.closed
    await (await engine.allocate(100)).aclose()

async def test_a_pair_is_connected(engine_pair):
    inbox = await engine_pair.far.allocate(5, label="inbox", access=Access.WRITE)
    source = await engine_pair.near.register(bytearray(b"hello"))
    await engine_pair.peer.refresh()
    await engine_pair.near.put(source, engine_pair.peer.region("inbox"), signal="there")
    assert (await engine_pair.far.wait_signal("there", peer=engine_pair.back)).peer is engine_pair.back
    assert bytes(inbox.view()) == b"hello"

async def test_what_is_dropped_may_still_end_by_itself(engine_pair):
    await engine_pair.far.allocate(50_000_000, label="inbox", access=Access.WRITE)
    source = await engine_pair.near.allocate(50_000_000)
    await engine_pair.peer.refresh()
    engine_pair.near.put(source, engine_pair.peer.region("inbox"))

async def test_a_plan_of_faults_spoils_the_pair(engine_pair, fault_plan):
    await engine_pair.far.allocate(8, label="inbox", access=Access.WRITE)
    await engine_pair.peer.refresh()
    source = await engine_pair.near.allocate(8)
    fault_plan.fail()
    with pytest.raises(TransferFailedError):
        await engine_pair.near.put(source, engine_pair.peer.region("inbox"))

async def test_a_plan_of_faults_spoils_the_engine(fault_plan, engine, peer_process):
    await engine.allocate(64, label="inbox", access=Access.WRITE)
    dropped = fault_plan.drop_signal("other")
    other = await peer_process(send, text="x")
    await engine.wait_signal("sent", peer=other.peer)
    await other.result()
    assert dropped.hits == 0

async def test_two_peers_run_and_their_results_come_back(engine, peer_process):
    inbox = await engine.allocate(64, label="inbox", access=Access.WRITE)
    first = await peer_process(send, text="from the first")
    second = await peer_process(send, text="second", times=3)
    for _ in range(3):
        await engine.wait_signal("sent", peer=second.peer)
    await engine.wait_signal("sent", peer=first.peer)
    assert await second.result() == {"sent": 3, "name": "send", "links": []}
    assert (await first.result())["sent"] == 1
    assert first.pid != second.pid

async def test_a_peer_that_still_runs_is_killed_and_that_is_no_failure(engine, peer_process):
    await peer_process(serve)

async def test_a_peer_may_be_killed_by_the_test(engine, peer_process):
    other = await peer_process(serve)
    other.kill()
    with pytest.raises(PeerLostError):
        await engine.wait_signal("x", peer=other.peer)
"""


@pytest.mark.parametrize("mode", MODES)
def test_the_fixtures_work_whoever_runs_the_tests(pytester: pytest.Pytester, mode: str) -> None:
    """pytest-asyncio in its strict and its auto mode, and anyio's plugin."""
    outcome = run(pytester, GOOD, mode)
    outcome.assert_outcomes(passed=8 * BACKENDS if mode == "anyio" else 8)


USERS_FIXTURES = """
import asyncio
import pytest
{decorators}
from hixl_aio import Access, EngineOptions

@pytest.fixture(params=["shm", "cma"])
def hixl_aio_options(request):
    return EngineOptions(links=(request.param,), signal_capacity=7)

@fixture
async def inbox(engine_pair):
    region = await engine_pair.far.allocate(8, label="inbox", access=Access.WRITE)
    await engine_pair.peer.refresh()
    yield region
    await region.aclose()

async def test_users_fixtures_build_on_ours(engine_pair, inbox):
    assert engine_pair.near.options.signal_capacity == 7
    remote = engine_pair.peer.region("inbox")
    source = await engine_pair.near.allocate(8)
    await engine_pair.near.put(source, remote)
"""


@pytest.mark.parametrize("mode", MODES)
def test_users_fixtures_build_on_ours_and_choose_the_options(pytester: pytest.Pytester, mode: str) -> None:
    """`hixl_aio_options` may be overridden, with parameters; an asynchronous fixture may use an engine."""
    decorators = "import pytest_asyncio; fixture = pytest_asyncio.fixture"
    source = USERS_FIXTURES.format(decorators="fixture = pytest.fixture" if mode != "strict" else decorators)
    run(pytester, source, mode).assert_outcomes(passed=2 * BACKENDS if mode == "anyio" else 2)


def test_the_engine_is_on_the_loop_that_the_test_chose(pytester: pytest.Pytester) -> None:
    """Any loop scope of pytest-asyncio, from the marker or from the settings."""
    source = """
import pytest
class TestScopes:
    @pytest.mark.asyncio(loop_scope="module")
    async def test_module(self, engine): await (await engine.allocate(1)).aclose()
    @pytest.mark.asyncio(loop_scope="class")
    async def test_class(self, engine_pair): await engine_pair.near.flush()
    @pytest.mark.asyncio(loop_scope="session")
    async def test_session(self, engine): await (await engine.allocate(1)).aclose()
    @pytest.mark.asyncio(loop_scope="function")
    async def test_function(self, engine): await (await engine.allocate(1)).aclose()
    @pytest.mark.asyncio
    async def test_default(self, engine): await (await engine.allocate(1)).aclose()
"""
    pytester.makeini(INI.format(more="asyncio_default_test_loop_scope = package"))
    pytester.makepyfile(test_inner=source)
    pytester.runpytest_subprocess().assert_outcomes(passed=5)


BAD = """
import os, threading
import pytest
from hixl_aio import Access, Engine

async def fails(engine, peer, *, say):
    await engine.signal(peer, say)
    raise ValueError("wrong on purpose")

async def test_unread(engine_pair):
    for _ in range(3):
        await engine_pair.near.signal(engine_pair.peer, "nobody takes it")
        await engine_pair.near.signal(engine_pair.peer, "last")
        await engine_pair.far.wait_signal("last")  # so the other one has arrived

async def test_waiting(engine_pair):
    import anyio
    inbox = await engine_pair.far.allocate(8, label="inbox", access=Access.WRITE)
    source = await engine_pair.near.allocate(8, label="source")
    await engine_pair.peer.refresh()
    engine_pair.near.put(source, engine_pair.peer.region("inbox"), ready=anyio.Event().wait())

async def test_held(engine_pair, fault_plan):
    await engine_pair.far.allocate(8, label="inbox", access=Access.WRITE)
    source = await engine_pair.near.allocate(8)
    await engine_pair.peer.refresh()
    held = fault_plan.hold(at="landed")
    engine_pair.near.put(source, engine_pair.peer.region("inbox"), signal="on its way")
    await held.wait_caught()

OPEN = []
async def test_engine(engine):
    other = Engine(name="forgotten")
    await other.__aenter__()
    OPEN.append(other)

async def test_descriptor_and_thread_and_child(engine):
    import subprocess
    OPEN.extend(os.pipe())
    go = threading.Event()
    threading.Thread(target=go.wait, name="my thread", daemon=True).start()
    OPEN.append(go)
    OPEN.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))

async def test_peer_fails_unseen(engine, peer_process):
    other = await peer_process(fails, say="last words")
    await engine.wait_signal("last words")
    while other.failure() is None: pass

async def test_peer_fails_and_is_missed(engine, peer_process):
    other = await peer_process(fails, say="last words")
    await engine.wait_signal("last words")
    await engine.wait_signal("more", peer=other.peer)

async def test_peer_fails_and_is_asked(engine, peer_process):
    from hixl_aio.testing import ProcessFailedError
    other = await peer_process(fails, say="last words")
    await engine.wait_signal("last words")
    with pytest.raises(ProcessFailedError) as caught:
        await other.result()
    assert caught.value.kind == "ValueError" and "wrong on purpose" in caught.value.traceback

async def test_only_the_first_cause_is_shown(engine_pair):
    await engine_pair.near.signal(engine_pair.peer, "unread in a failed test")
    assert False, "the first cause"
"""


@pytest.mark.parametrize("mode", ["strict", "anyio"])
def test_what_is_left_behind_fails_the_test_and_is_listed(pytester: pytest.Pytester, mode: str) -> None:
    """Unread signals, operations, busy regions, engines, descriptors, threads, children, failed peers."""
    outcome = run(
        pytester,
        BAD,
        mode,
        "hixl_aio_patience = 0.05",
        *(["-k", "not asyncio and not uvloop" if TRIO else "not uvloop"] if mode == "anyio" else []),
    )
    outcome.assert_outcomes(passed=7, failed=2, errors=6)
    text = outcome.stdout.str()
    for line in (
        "  - engine far: signal 'nobody takes it' is unread (3)",
        ", waiting (1)",
        ", posted (1)",
        "  - engine near: region 'source' is busy",
        "  - engine forgotten is open",
        "  - thread my thread (",
        "(cat)",
        "hixl_aio process ",
        "ValueError: wrong on purpose",
        "AssertionError: the first cause",
    ):
        assert line in text, line
    alone = text.split("teardown of test_descriptor_and_thread_and_child")[1].split("\n____")[0]
    assert alone.count("  - descriptor ") == 3, alone  # a pipe's two ends, and the one to the child
    assert "unread in a failed test" not in text.split("short test summary")[0].replace(
        '"unread in a failed test")', ""
    )


def test_the_check_can_be_narrowed_and_switched_off(pytester: pytest.Pytester) -> None:
    """By a marker for a test, by a setting for a suite; the marker wins."""
    source = """
import os
import pytest
OPEN = []
@pytest.mark.hixl_aio_quiescence("off")
async def test_off(engine_pair):
    await engine_pair.near.signal(engine_pair.peer, "x")
@pytest.mark.hixl_aio_quiescence("operations")
async def test_operations(engine_pair):
    OPEN.extend(os.pipe())
@pytest.mark.hixl_aio_quiescence("operations")
async def test_operations_still_fail(engine_pair):
    await engine_pair.near.signal(engine_pair.peer, "operations")
    await engine_pair.near.signal(engine_pair.peer, "last")
    await engine_pair.far.wait_signal("last")  # so the other one has arrived
async def test_setting(engine):
    OPEN.extend(os.pipe())
"""
    run(pytester, source).assert_outcomes(passed=4, errors=2)
    run(pytester, source, "strict", "hixl_aio_quiescence = operations").assert_outcomes(passed=4, errors=1)
    wrong = run(pytester, source, "strict", "hixl_aio_quiescence = sometimes")
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    wrong.stderr.fnmatch_lines("*'sometimes'; it must be one of 'all', 'operations', 'off'*")


def test_a_test_without_a_loop_is_told_what_it_misses(pytester: pytest.Pytester) -> None:
    """A synchronous test gets an error that names the fixture and both plugins."""
    pytester.makeini(INI.format(more=STRICT))
    pytester.makepyfile(test_inner="def test_sync(engine): pass")
    outcome = pytester.runpytest_subprocess()
    outcome.assert_outcomes(errors=1)
    outcome.stdout.fnmatch_lines("*the fixture 'engine' needs a loop*")


def test_a_suite_that_uses_none_of_it_imports_none_of_it(pytester: pytest.Pytester) -> None:
    """Loading the plugin imports neither hixl_aio nor an event loop."""
    pytester.makepyfile(
        test_inner="""
import sys
def test_nothing_of_it_is_there():
    assert "pytest_hixl_aio" in sys.modules
    found = {name for name in sys.modules if name.split(".")[0] in ("hixl_aio", "uvloop", "anyio", "asyncio")}
    assert not found, found
"""
    )
    outcome = pytester.runpytest_subprocess("-p", "no:asyncio", "-p", "no:anyio", "-p", "no:timeout")
    outcome.assert_outcomes(passed=1)


def test_a_suite_may_have_an_engine_of_its_own(pytester: pytest.Pytester) -> None:
    """A fixture called `engine` of somebody else stays what it is."""
    pytester.makepyfile(
        test_inner="""
import pytest
@pytest.fixture
def engine(): return "a database"
def test_mine(engine): assert engine == "a database"
"""
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
