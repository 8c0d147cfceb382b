"""Second processes: what travels, what comes of a bad end, and that none outlives its block."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from hixl_aio import Engine, EngineOptions, InvalidArgumentError, PeerLostError
from hixl_aio.testing import ProcessFailedError, child_process, running_peer
from hixl_aio.testing._child import find_function

from . import functions

pytestmark = pytest.mark.asyncio


def is_gone(pid: int) -> bool:
    """It runs no more, and is no zombie of ours."""
    return not Path(f"/proc/{pid}").exists()


def states(pid: int) -> set[str]:
    """Of its threads, as the kernel writes them."""
    return {path.read_text().split()[2] for path in Path(f"/proc/{pid}/task").glob("*/stat")}


async def test_what_is_said_is_heard_and_the_end_is_known() -> None:
    """Messages travel both ways in order; the end of the block is the last word."""
    async with child_process(functions.echo) as child:
        for value in (1, "two", [3.5, None], {"four": {"five": True}}, "six\n\u2603"):
            await child.say(value)
        assert [await child.hear() for _ in range(5)] == [
            1, "two", [3.5, None], {"four": {"five": True}}, "six\n\u2603",
        ]  # fmt: skip
        pid = child.pid
    assert await child.result() == 5
    assert child.returncode == 0
    assert is_gone(pid)


async def test_arguments_and_results_travel_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever JSON has comes back the same; what the process prints appears among our own output."""
    arguments: dict[str, Any] = {
        "text": "x" * 500_000,
        "numbers": [1, 2.5, -3],
        "nothing": None,
        "deep": {"a": [[]]},
    }
    async with child_process(functions.give_back, **arguments) as child:
        assert await child.result() == arguments
    assert "printed by the other process" in capfd.readouterr().out


async def test_large_messages_do_not_wedge_either_side() -> None:
    """More than the socket holds, in both directions, also when the test has not listened before the end."""
    async with child_process(functions.say_much, nbytes=3_000_000) as child:
        pass
    assert await child.hear() == "x" * 3_000_000
    assert await child.result() == "y" * 3_000_000
    async with child_process(functions.echo) as child:
        await child.say("z" * 1_000_000)
        assert await child.hear() == "z" * 1_000_000


async def test_a_traceback_travels_back() -> None:
    """Whoever listens, asks for the result, or just ends the block hears of the failure, once."""
    async with child_process(functions.fail) as child:
        for ask in (child.hear, child.result):
            with pytest.raises(ProcessFailedError, match="wrong on purpose") as caught:
                await ask()
            assert caught.value.kind == "ValueError"
            assert 'raise ValueError("wrong on purpose")' in caught.value.traceback
    with pytest.raises(ProcessFailedError, match="wrong on purpose") as caught:
        async with child_process(functions.fail):
            pass
    assert caught.value.returncode == 1
    with pytest.raises(ProcessFailedError, match="InvalidArgumentError"):
        async with child_process(functions.return_an_object):
            pass


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("exit", "ended with status 3"),
        ("zero", "ended with status 0: its function has not returned"),
        ("sys", "SystemExit"),
        ("signal", "was killed by SIGSEGV"),
    ],
)
async def test_an_end_without_a_word_is_a_failure_that_says_how(how: str, says: str) -> None:
    """Status 0 without a result is one too."""
    with pytest.raises(ProcessFailedError, match=says):
        async with child_process(functions.leave, how=how) as child:
            await child.result()


async def test_hearing_after_the_last_word_raises_instead_of_waiting() -> None:
    """A function that has returned says nothing more."""
    async with child_process(functions.give_back) as child:
        with pytest.raises(ProcessFailedError, match="has nothing more to say"):
            await child.hear()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
async def test_a_process_that_the_test_ended_or_stopped_is_no_failure(number: int) -> None:
    """Killed, or stopped and killed at the end of the block."""
    async with child_process(functions.stay) as child:
        assert await child.hear() == "here"
        child.kill(number)
    assert is_gone(child.pid)
    assert child.failure() is None


async def test_a_process_that_was_stopped_and_goes_on_ends_in_good_order() -> None:
    """After SIGCONT a failure is a failure again."""
    async with child_process(functions.echo) as child:
        child.stop()
        await child.say("on")
        assert states(child.pid) == {"T"}
        child.go_on()
        assert await child.hear() == "on"
    assert child.returncode == 0


class Sabotage(Exception):
    """What goes wrong in a test."""


async def test_no_process_outlives_its_block_whatever_happens() -> None:
    """An exception, a cancellation, also a second one while it is being reaped."""
    pids: list[int] = []
    with pytest.raises(Sabotage):  # noqa: PT012
        async with child_process(functions.stay) as child:
            pids.append(child.pid)
            raise Sabotage

    there = asyncio.Event()

    async def block() -> None:
        async with child_process(functions.stay) as child:
            pids.append(child.pid)
            assert await child.hear() == "here"
            there.set()
        raise AssertionError("it does not end by itself")

    for cancel_twice in (False, True):
        there.clear()
        task = asyncio.create_task(block())
        await there.wait()
        await asyncio.sleep(0)  # it is at the end of its block now, where it would wait for ten seconds
        task.cancel()
        if cancel_twice:
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(pids) == 3
    assert all(map(is_gone, pids))


async def test_a_cancelled_wait_tears_no_message() -> None:
    """`hear` and `result` are cancelled over and over while a large message comes in; it arrives whole."""
    async with child_process(functions.say_much, nbytes=2_000_000) as child:
        heard: Any = None
        while heard is None:
            task = asyncio.ensure_future(child.hear())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if not task.done():
                task.cancel()
            heard = (await asyncio.gather(task, return_exceptions=True))[0]
            heard = None if isinstance(heard, asyncio.CancelledError) else heard
        assert heard == "x" * 2_000_000
        assert await child.result() == "y" * 2_000_000


async def test_only_what_another_process_can_find_is_accepted() -> None:
    """No lambda, no closure, no plain function, no argument that is not JSON; nothing is started."""

    async def local(parent: object) -> None:
        """Not at the top level."""

    wrong: list[Any] = [local, lambda parent: None, print, 5]
    for function in wrong:
        with pytest.raises(InvalidArgumentError, match="at the top level"):
            async with child_process(function):
                pass
    with pytest.raises(InvalidArgumentError, match="JSON"):
        async with child_process(functions.give_back, value=b"bytes"):
            pass


async def test_a_function_is_found_by_its_name_or_by_its_file(tmp_path: Path) -> None:
    """Also inside a class, and in a file that no import leads to."""
    async with child_process(functions.Named.inside) as child:
        assert await child.result() == "found"
    file = tmp_path / "away.py"
    file.write_text("async def f(parent):\n    return 1\n")
    for module in ("away", "__main__", "json"):  # not there, not importable, another one
        found = find_function(module, str(file), "f")
        assert found.__code__.co_filename == str(file)
    for name in [name for name in sys.modules if name.startswith("_hixl_aio_test_")]:
        del sys.modules[name]


async def test_the_process_is_ours_alone() -> None:
    """Our child, in a session of its own (Ctrl-C is ours alone), with none of our descriptors."""
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    try:
        pipe = os.readlink(f"/proc/self/fd/{reading}")
        async with child_process(functions.where) as child:
            found = await child.result()
    finally:
        os.close(reading)
        os.close(writing)
    assert found["parent"] == os.getpid()
    assert found["session"] == child.pid
    assert found["argv"] == []
    assert pipe not in found["descriptors"]


async def test_a_process_dies_with_its_parent() -> None:
    """Even when that is killed: nobody is left to clean up."""
    program = """
import asyncio, os, sys
from hixl_aio.testing import child_process
from tests.testing import functions
async def main():
    async with child_process(functions.stay) as child:
        await child.hear()
        print(child.pid, flush=True)
        os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(  # noqa: ASYNC221
        [sys.executable, "-W", "error", "-c", program],
        cwd=root,
        stdout=subprocess.PIPE,
        timeout=30,
        check=False,
    )
    assert done.returncode == -9
    with contextlib.suppress(ProcessLookupError):  # it is gone, and its remains too
        descriptor = os.pidfd_open(int(done.stdout))
        try:
            async with asyncio.timeout(5):
                await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)


# ---- peers


async def test_a_peer_has_the_options_of_the_engine_and_returns_when_it_is_closed() -> None:
    """It is connected when the block begins; among our peers it is known which one it is."""
    options = EngineOptions(links=("cma",), signal_capacity=9)
    async with Engine(options=options) as engine, Engine() as other:
        await other.connect(engine.address)
        async with running_peer(engine, functions.serve, label="theirs") as process:
            assert process.peer.name == "serve"
            await engine.wait_signal("ready", peer=process.peer)
            await process.peer.refresh()
            source = await engine.register(bytearray(b"abc"))
            await engine.put(source, process.peer.region("theirs")[:3])
            await engine.signal(process.peer, "stop", b"thanks")
            assert await process.result() == "thanks"
            assert [link.name for link in process.peer.route] == ["cma"]
        assert is_gone(process.pid)


async def test_a_peer_that_fails_says_so_before_it_is_seen_to_be_gone() -> None:
    """When a wait ends with PeerLostError, the traceback is here already."""
    async with Engine() as engine:
        with pytest.raises(ProcessFailedError, match="wrong on purpose"):  # noqa: PT012
            async with running_peer(engine, functions.fail_as_a_peer) as process:
                with pytest.raises(PeerLostError):
                    await engine.wait_signal("never", peer=process.peer)
                failure = process.failure()
                assert failure is not None
                assert failure.kind == "ValueError"


async def test_a_peer_that_cannot_begin_says_why() -> None:
    """Wrong arguments for the function: the traceback names them."""
    async with Engine() as engine:
        with pytest.raises(ProcessFailedError, match="unexpected keyword argument 'no_such'"):
            async with running_peer(engine, functions.serve, no_such=1) as process:
                await process.result()
