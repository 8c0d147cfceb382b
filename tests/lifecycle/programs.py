"""Programs that leave, or multiply, with operations in flight. Run as a script; no test imports it.

programs.py LOOP LINK FUNCTION ARGUMENT
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from hixl_aio import EngineForkedError, HixlAioError, PeerState
from tests.lifecycle.support import MIB, Pair, open_pair, run

KEPT: list[object] = []
LINK = ""
LIST_DESCRIPTORS = """
import os
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2 and os.path.lexists(f"/proc/self/fd/{name}"):
        print(name, os.readlink(f"/proc/self/fd/{name}"))
"""


async def in_flight() -> Pair:
    """Sixteen puts of 64 MiB are under way, and nobody waits for them or will close anything."""
    pair = await open_pair(64 * MIB, LINK)
    pair.put_many(16)
    return pair


async def leave(way: str) -> None:
    """End the program with operations in flight and no aclose."""
    pair = await in_flight()
    if way.startswith("kept-"):
        KEPT.append(pair)  # else the engines go with this frame, before the interpreter
    ways: dict[str, Callable[[], object]] = {
        "return": lambda: None,
        "sys.exit": lambda: sys.exit(3),
        "error": raise_mine,
        "os._exit": lambda: os._exit(4),
        "SIGINT": lambda: os.kill(os.getpid(), signal.SIGINT),
        "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    }
    print(time.monotonic(), flush=True)
    ways[way.removeprefix("kept-")]()
    if "SIG" in way:
        await asyncio.Event().wait()


def raise_mine() -> None:
    raise RuntimeError("mine")


# ---- children


async def still_whole(pair: Pair, puts: list[Any]) -> None:
    """Nothing of what a child did reached us or the peer."""
    await asyncio.gather(*(put.wait() for put in puts))
    await pair.put(signal="after")
    assert (await pair.far.wait_signal("after")).error is None
    assert pair.peer.state is PeerState.CONNECTED
    assert len(pair.near.peers) == len(pair.far.peers) == 1
    await pair.near.aclose()
    await pair.far.aclose()
    print("whole")


def refused(pair: Pair) -> int:
    """How many calls are refused in this process because the engine is the parent's."""
    count = 0
    calls: tuple[Callable[[], object], ...] = (
        pair.put,
        lambda: pair.near.signal(pair.peer, "s"),
        lambda: pair.near.aclose().send(None),
        lambda: pair.near.wait_signal("s").send(None),
        lambda: pair.near.connect(pair.far.address).send(None),
        lambda: pair.peer.region("target"),
        pair.near.statistics,
    )
    for call in calls:
        try:
            call()
        except EngineForkedError:
            count += 1
        except HixlAioError as error:
            print(f"{call} is refused with {error!r}", file=sys.stderr)
    return count


async def fork_and_finalize(how: str) -> None:
    """A forked child that takes its interpreter down in full, destructors and all, in the middle of puts."""
    pair = await open_pair(16 * MIB, LINK)
    puts = pair.put_many(16)
    child = os.fork()
    if child == 0:
        count = refused(pair)
        if how == "collect":
            del pair, puts
            gc.collect()
        ctypes.PyDLL(None).Py_Exit(count)
    _, status = os.waitpid(child, 0)  # noqa: ASYNC222  (it ends at once)
    assert os.waitstatus_to_exitcode(status) == 7, status
    await still_whole(pair, puts)


def answer() -> int:
    """What a pool's worker does: an engine of its own, and its own exit."""

    async def main() -> int:
        pair = await open_pair(4096, LINK)
        await pair.put(signal="s")
        await pair.far.wait_signal("s")
        await pair.near.aclose()
        await pair.far.aclose()
        return 42

    return asyncio.run(main())


def answer_in_a_fork() -> int:
    """The same where a loop was running when we were forked."""
    asyncio.events._set_running_loop(None)
    return answer()


async def pool(how: str) -> None:
    """A pool of processes beside puts in flight; its workers have engines of their own."""
    pair = await open_pair(16 * MIB, LINK)
    puts = pair.put_many(16)
    context = multiprocessing.get_context(how)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        work = answer_in_a_fork if how == "fork" else answer
        assert await asyncio.get_running_loop().run_in_executor(executor, work) == 42
    await still_whole(pair, puts)


def load(pair: Pair, view: memoryview, orders: Any, answers: Any) -> None:
    """A data loader's worker: forked, it keeps all of the parent's objects and serves several rounds."""
    while (order := orders.get()) is not None:
        try:
            pair.put()  # what a data set does that has kept the engine
        except EngineForkedError as error:
            answers.put((order, refused(pair), bytes(view[:4]), error))


async def workers(how: str) -> None:
    """Forked workers that stay for several rounds beside puts in flight; they end, or are made to."""
    pair = await open_pair(16 * MIB, LINK)
    pair.source.view()[:] = b"\x5a" * (16 * MIB)
    before = memoryview(b"before the fork")
    context = multiprocessing.get_context("fork")
    orders, answers = context.Queue(), context.Queue()
    puts = pair.put_many(16)
    processes = [
        context.Process(target=load, args=(pair, before, orders, answers), daemon=True) for _ in range(2)
    ]
    for process in processes:
        process.start()
    loop = asyncio.get_running_loop()
    for order in range(10):
        puts += pair.put_many(2)
        orders.put(order)
        found, count, seen, error = await loop.run_in_executor(None, answers.get)
        assert (found, count, seen) == (order, 7, b"befo"), (found, count, seen)
        assert isinstance(error, EngineForkedError)  # it came through the queue as a pickle
    for process in processes:
        {"end": lambda: orders.put(None), "terminate": process.terminate, "kill": process.kill}[how]()
    for process in processes:
        await loop.run_in_executor(None, process.join)
        assert process.exitcode == {"end": 0, "terminate": -signal.SIGTERM, "kill": -signal.SIGKILL}[how]
    for queue in (orders, answers):
        queue.close()
        queue.join_thread()
    await asyncio.gather(*(put.wait() for put in puts))
    back = await pair.near.register(bytearray(16 * MIB))
    await pair.near.get(pair.target, back)
    assert back.view() == pair.source.view()
    await still_whole(pair, puts)


async def spawn(how: str) -> None:
    """`subprocess.run` beside puts in flight, also without closing descriptors."""
    pair = await open_pair(16 * MIB, LINK)
    puts = pair.put_many(16)
    done = subprocess.run(  # noqa: ASYNC221  (the loop is to be busy)
        [sys.executable, "-c", LIST_DESCRIPTORS],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        close_fds=how == "close",
    )
    for kind in ("memfd", "eventfd", "pidfd", "socket:"):
        assert kind not in done.stdout, done.stdout
    await still_whole(pair, puts)


FUNCTIONS: dict[str, Callable[[str], Coroutine[Any, Any, None]]] = {
    function.__name__: function for function in (leave, fork_and_finalize, pool, workers, spawn)
}

if __name__ == "__main__":
    LINK = os.environ["HIXL_AIO_TEST_LINK"] = sys.argv[2]
    run(sys.argv[1], FUNCTIONS[sys.argv[3]](sys.argv[4]))
else:  # a pool's worker
    LINK = os.environ.get("HIXL_AIO_TEST_LINK", "")
