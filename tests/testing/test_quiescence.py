"""What counts as left behind, and what is given time to end."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading

import pytest

from hixl_aio import Access, Engine, EngineOptions
from hixl_aio.testing import (
    NotQuiescentError,
    ProcessFailedError,
    Resources,
    check_quiescent,
    connected_engines,
    unsettled,
)

pytestmark = pytest.mark.asyncio


async def test_an_engine_at_rest_is_at_rest() -> None:
    """Open regions, connected peers and settled operations are no trouble; a closed engine has none."""
    async with connected_engines() as pair:
        await pair.far.allocate(64, label="inbox", access=Access.WRITE)
        await pair.peer.refresh()
        source = await pair.near.allocate(64)
        await pair.near.put(source, pair.peer.region("inbox"), signal="s")
        await pair.far.wait_signal("s")
        for engine in (pair.near, pair.far):
            await check_quiescent(engine, patience=0.0)
    assert await unsettled(pair.near) == []


async def test_everything_that_is_left_is_named() -> None:
    """Operations by kind, peer and state; regions and signals by name; all in one error."""
    async with connected_engines(EngineOptions(credits_per_peer=1)) as pair:
        await pair.far.allocate(64, label="inbox", access=Access.WRITE)
        await pair.peer.refresh()
        source = await pair.near.allocate(64, label="source")
        never = asyncio.get_running_loop().create_future()
        puts = [pair.near.put(source, pair.peer.region("inbox"), ready=never) for _ in range(2)]
        for name in ("a", "b", "a"):
            await pair.far.signal(pair.back, name)
        with pytest.raises(NotQuiescentError) as caught:
            await check_quiescent(pair.near, patience=0.0)
        assert caught.value.left == (
            f"engine near: put with {pair.far.address}, waiting (2)",
            "engine near: region 'source' is busy",
            "engine near: signal 'a' is unread (2)",
            "engine near: signal 'b' is unread (1)",
        )
        for line in caught.value.left:
            assert line in str(caught.value)
        for put in puts:
            put.cancel()
        for name in ("a", "a", "b"):
            await pair.near.wait_signal(name)
        await check_quiescent(pair.near, patience=0.0)


async def test_what_is_under_way_may_end() -> None:
    """A put that nobody awaits is waited for; cancelling that wait ends it."""
    nbytes = 32 << 20
    async with connected_engines() as pair:
        await pair.far.allocate(nbytes, label="inbox", access=Access.WRITE)
        await pair.peer.refresh()
        source = await pair.near.allocate(nbytes)
        pair.near.put(source, pair.peer.region("inbox"))
        assert pair.near.statistics().in_flight == 1
        await check_quiescent(pair.near, patience=30.0)

        never = asyncio.get_running_loop().create_future()
        put = pair.near.put(source, pair.peer.region("inbox"), ready=never)
        looking = asyncio.create_task(check_quiescent(pair.near, patience=30.0))
        await asyncio.sleep(0)
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        put.cancel()


async def test_resources_are_compared_by_what_they_are() -> None:
    """A descriptor, a thread, a child, an open engine: listed while there, forgotten when gone."""
    before = Resources.now()
    assert Resources.now().added_since(before) == []
    reading, writing = os.pipe()
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="a thread")
    thread.start()
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # noqa: ASYNC220
    engine = Engine(name="forgotten")
    await engine.__aenter__()
    await engine.allocate(64)  # its threads have their names when they have done something
    left = Resources.now().added_since(before, patience=0.0)
    try:
        assert left[0] == "engine forgotten is open"
        assert (
            sum(f"descriptor {number} to pipe" in line for line in left for number in (reading, writing)) == 2
        )
        assert any(line.startswith(f"child process {process.pid} (") for line in left), left
        assert any(line.startswith("thread a thread (") for line in left)
        assert any(line.startswith("native thread hixl") for line in left)
        assert Resources.now().added_since(before, only_engines=True) == ["engine forgotten is open"]
    finally:
        os.close(reading)
        os.close(writing)
        go.set()
        thread.join()
        process.communicate()
        await engine.aclose()
    assert Resources.now().added_since(before, patience=0.0) == []


async def test_what_goes_a_moment_later_is_given_that_moment() -> None:
    """A descriptor that somebody else closes meanwhile."""
    before = Resources.now()
    reading, writing = os.pipe()
    os.close(writing)
    after = Resources.now()
    started = threading.Event()

    def close() -> None:
        started.wait()
        os.close(reading)

    thread = threading.Thread(target=close)
    thread.start()
    started.set()
    left = after.added_since(before, patience=10.0)
    thread.join()
    assert left == []


async def test_the_errors_pickle_and_say_what_to_do() -> None:
    """They cross process borders of test runners."""
    failed = ProcessFailedError(function="f", pid=7, returncode=-9, detail="it was early")
    assert "process 7, running f, was killed by SIGKILL: it was early. It left no traceback" in str(failed)
    for error in (failed, NotQuiescentError(["x is busy"])):
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error)
        assert vars(again) == vars(error)


async def test_the_tools_need_no_pytest() -> None:
    """Importing them imports neither pytest nor the plugin."""
    code = (
        "import sys, hixl_aio.testing; assert not {'pytest', '_pytest', 'pytest_hixl_aio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)  # noqa: ASYNC221
