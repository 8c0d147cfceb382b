"""A program that runs an asyncio loop within itself, as notebooks do. Run as a script; no test imports it.

nested.py LINK
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[2]))

from hixl_aio import Completion, WrongLoopError
from tests.lifecycle.support import MIB, Pair, close, open_pair

T = TypeVar("T")


def nested(work: Coroutine[Any, Any, T]) -> T:
    """Synchronous code that waits for asynchronous one, on the loop that is running it."""
    return asyncio.get_running_loop().run_until_complete(work)


async def put(pair: Pair) -> str:
    """A put from end to end, with its signal."""
    await pair.near.put(pair.source, pair.target, signal="landed")
    return (await pair.far.wait_signal("landed")).name


async def main(link: str) -> None:
    pair = await open_pair(4 * MIB, link)
    for depth in range(1, 6):  # each within the one before
        assert nested(deeper(pair, depth)) == depth
    # Others go on meanwhile, and get what is theirs.
    waiting = asyncio.create_task(pair.far.wait_signal("later"))
    busy = asyncio.create_task(many(pair))
    await asyncio.sleep(0)
    assert nested(put(pair)) == "landed"
    await busy
    # From a callback, which runs in the middle of a turn of ours.
    said = asyncio.get_running_loop().create_future()

    def done(_: Completion) -> None:
        said.set_result(nested(put(pair)))

    pair.near.put(pair.source, pair.target).add_done_callback(done)
    assert await said == "landed"
    # A cancellation inside, and one of the task that waits outside.
    inner = asyncio.create_task(many(pair))
    await asyncio.sleep(0)
    inner.cancel()
    assert isinstance(nested(outcome(inner)), asyncio.CancelledError)
    await pair.near.signal(pair.peer, "later")
    assert (await waiting).name == "later"
    # A second loop is another loop, nested or not.
    other = asyncio.new_event_loop()
    try:
        other.run_until_complete(put(pair))
    except WrongLoopError:
        print("another loop is refused")
    finally:
        other.close()
    assert not pair.near.statistics().in_flight
    await close(pair)


async def deeper(pair: Pair, depth: int) -> int:
    assert await put(pair) == "landed"
    return 1 + nested(deeper(pair, depth - 1)) if depth > 1 else 1


async def many(pair: Pair) -> None:
    for _ in range(20):
        await pair.near.put(pair.source, pair.target)


async def outcome(task: asyncio.Task[None]) -> BaseException | None:
    (result,) = await asyncio.gather(task, return_exceptions=True)
    return result


if __name__ == "__main__":
    importlib.import_module("nest_asyncio").apply()  # it has no types
    asyncio.run(main(sys.argv[1]), debug=True)
    print("the end")
