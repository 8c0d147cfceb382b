"""Opening, closing, loops, threads and forks."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable

import anyio
import pytest

import hixl_aio
from hixl_aio import (
    Access,
    ClosedError,
    Engine,
    EngineError,
    EngineForkedError,
    EngineOptions,
    InvalidArgumentError,
    OperationState,
    TransferError,
    UnclosedResourceWarning,
    UnsupportedError,
    WrongLoopError,
)
from hixl_aio.testing import FaultPlan

from ..loops import Promise, Tasks, gather, outcomes, run_on, turns
from .support import Pair, connected, faulty, memory


async def test_an_engine_is_built_outside_and_opened_inside_a_loop() -> None:
    """Before it is open every call says how to open it; after it is closed it cannot be opened again."""
    engine = Engine("127.0.0.1:0", name="mine")
    with pytest.raises(ClosedError, match="async with"):
        await engine.allocate(8)
    with pytest.raises(ClosedError):
        _ = engine.capabilities
    async with engine:
        assert engine.address.startswith("127.0.0.1:")
        assert not engine.address.endswith(":0")
        assert len(engine.incarnation) == 32
        assert engine.capabilities.can_stop
        assert engine.name == "mine"
    assert engine.closed
    assert engine.capabilities.name == "host"
    with pytest.raises(ClosedError):
        await engine.allocate(8)
    with pytest.raises(ClosedError):
        async with engine:
            pass
    await engine.aclose()


async def test_addresses_are_parsed_and_bound_once() -> None:
    """TCP of both families and unix names work; a port that is taken, or nonsense, is a typed error."""
    for address in ("127.0.0.1:0", "[::1]:0", f"unix:hixl-test-{os.getpid()}"):
        async with Engine(address) as engine, Engine() as other:
            assert (await other.connect(engine.address)).address == engine.address
            with pytest.raises(EngineError):
                async with Engine(engine.address):
                    pass
    for address in ("nonsense", "127.0.0.1:notaport", "127.0.0.1:70000"):
        with pytest.raises(InvalidArgumentError):
            async with Engine(address):
                pass
    with pytest.raises(InvalidArgumentError):
        Engine("")
    with pytest.raises(UnsupportedError):
        async with Engine("0.0.0.0:0"):
            pass


async def test_closing_twice_and_at_the_same_time_is_one_closing(pair: Pair) -> None:
    """Concurrent calls wait for the first, later ones return at once."""
    await gather(*(pair.near.aclose() for _ in range(10)))
    assert pair.near.closed
    await pair.near.aclose()


async def test_closing_lets_what_is_under_way_end(pair: Pair) -> None:
    """Operations that were started and dropped still arrive: closing drains."""
    size = 4 << 20
    region, remote = await pair.target(size)
    source = await pair.source(size, 3)
    operations = [pair.near.put(source, remote) for _ in range(10)]
    await pair.near.aclose()
    assert [operation.exception() for operation in operations] == [None] * 10
    assert region.view()[-1] == 3
    assert source.closed


async def test_closing_without_patience_stops_what_is_under_way(pair: Pair, tasks: Tasks) -> None:
    """With no time to drain, everything ends with success or ClosedError, and nothing is left in flight."""
    size = 32 << 20
    _, remote = await pair.target(size)
    source = await pair.source(size, 3)
    operations = [pair.near.put(source, remote) for _ in range(50)]
    waiting = [tasks.start(operation.wait()) for operation in operations]
    await turns()
    await pair.near.aclose(drain_timeout=0)
    results = [await task.outcome() for task in waiting]
    assert all(result is None or isinstance(result, ClosedError) for result in results)
    assert any(isinstance(result, ClosedError) for result in results)
    assert {operation.state for operation in operations} == {OperationState.SETTLED}
    assert pair.near.statistics().in_flight == 0


@pytest.mark.parametrize("what", ["region", "engine"])
async def test_nothing_is_written_after_the_target_has_closed(pair: Pair, what: str) -> None:
    """When closing returns, no peer writes into the memory any more: a pattern put there survives."""
    size = 16 << 20
    buffer = mmap.mmap(-1, size)
    region, remote = await pair.target(size)
    if pair.link != "shm":
        region = await pair.far.register(buffer, label="mapped", access=Access.WRITE)
        await pair.peer.refresh()
        remote = pair.peer.region("mapped")
    source = await pair.source(size, 1)
    operations = [pair.near.put(source, remote) for _ in range(80)]
    view = region.view() if pair.link == "shm" else memoryview(buffer)
    while not view[0]:
        await turns()
    await (pair.far.aclose(drain_timeout=0) if what == "engine" else region.aclose())
    view[:] = b"\x07" * size
    results = await outcomes(*operations)
    assert any(result is not None for result in results)
    assert view[0] == view[-1] == 7
    assert bytes(view) == b"\x07" * size


async def test_closing_under_cancellation_closes_all_the_same(pair: Pair, tasks: Tasks) -> None:
    """The cancellation arrives when everything is closed."""
    size = 32 << 20
    _, remote = await pair.target(size)
    source = await pair.source(size)
    for _ in range(50):
        pair.near.put(source, remote)
    closing = tasks.start(pair.near.aclose(drain_timeout=None))
    await turns()
    for _ in range(3):
        closing.cancel()
        await turns()
    assert await closing.cancelled()
    assert pair.near.closed
    assert pair.near.statistics().in_flight == 0


async def test_a_cancelled_close_beside_another_one_ends_when_the_engine_is_closed(
    link: str, tasks: Tasks
) -> None:
    """The first has all the time there is; the second one's cancellation cuts that short for both."""
    plan = FaultPlan()
    async with faulty(link, near=plan) as pair:
        _, remote = await pair.target(8)
        source = await pair.source(8)
        held = plan.hold()
        put = pair.near.put(source, remote, timeout=None)
        await held.wait_caught()
        first = tasks.start(pair.near.aclose(drain_timeout=None))
        await turns(3)
        second, third = tasks.start(pair.near.aclose()), tasks.start(source.aclose())
        await turns(3)
        assert [task.done() for task in (first, second, third)] == [False] * 3
        second.cancel()
        third.cancel()
        with anyio.fail_after(5):
            for closing in (second, third):
                assert await closing.cancelled()
                assert pair.near.closed
                assert put.state is OperationState.SETTLED
            await first.result()
        assert isinstance(put.exception(), ClosedError)


async def test_a_cancelled_close_of_a_region_beside_another_one_ends_when_it_is_closed(
    link: str, tasks: Tasks
) -> None:
    """Nobody goes on with memory that is still written."""
    plan = FaultPlan()
    async with faulty(link, near=plan) as pair:
        _, remote = await pair.target(8)
        source = await pair.source(8)
        held = plan.hold()
        get = pair.near.get(remote, source)
        await held.wait_caught()
        first, second = tasks.start(source.aclose()), tasks.start(source.aclose())
        await turns(3)
        second.cancel()
        await turns(3)
        assert not second.done()
        held.release()
        assert await second.cancelled()
        assert source.closed
        await first.result()
        await get


async def test_use_from_another_loop_or_thread_is_refused_at_once(pair: Pair, loop: str) -> None:
    """A call that comes on the wrong loop raises WrongLoopError, and never hangs."""
    _, remote = await pair.target(8)
    source = await pair.source(8)
    held = pair.near.put(source, remote, ready=Promise().awaitable)
    errors: list[BaseException] = []

    async def elsewhere() -> None:
        calls: list[Callable[[], object]] = [
            lambda: pair.near.put(source, remote),
            lambda: pair.near.batch([]),
            lambda: pair.near.signal(pair.peer, "s"),
            lambda: pair.near.fence(pair.peer),
            held.cancel,
            lambda: held.add_done_callback(print),
        ]
        for call in calls:
            with pytest.raises(WrongLoopError) as wrong:
                call()
            errors.append(wrong.value)
        for waiting in (
            held.wait(),
            pair.near.flush(),
            pair.near.wait_signal("s"),
            pair.near.aclose(),
            source.aclose(),
        ):
            with pytest.raises(WrongLoopError) as wrong:
                await waiting
            errors.append(wrong.value)

    for other in {loop, "asyncio", "trio"}:
        errors.clear()
        thread = threading.Thread(target=run_on, args=(other, elsewhere))
        thread.start()
        thread.join()
        assert len(errors) == 11
    assert held.cancel()


async def test_a_call_without_a_running_loop_is_refused(pair: Pair) -> None:
    """A plain thread has no loop, so nothing of ours works there."""
    _, remote = await pair.target(8)
    source = await pair.source(8)
    errors: list[BaseException] = []

    def call() -> None:
        try:
            pair.near.put(source, remote)
        except WrongLoopError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert errors
    assert errors[0].current == "none"  # type: ignore[attr-defined]


async def test_a_forked_child_is_told_so_and_the_parent_goes_on(pair: Pair) -> None:
    """In the child every call raises EngineForkedError; the parent's operations complete."""
    size = 8 << 20
    region, remote = await pair.target(size)
    source = await pair.source(size, 5)
    operation = pair.near.put(source, remote)
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (
            lambda: pair.near.put(source, remote),
            lambda: pair.near.signal(pair.peer, "s"),
            lambda: pair.near.fence(pair.peer),
            lambda: pair.near.flush().send(None),
            lambda: pair.near.aclose().send(None),
            lambda: operation.wait().send(None) if not operation.done() else pair.near.batch([]),
            lambda: source.view(),
            lambda: source.describe(),
            lambda: pair.peer.route,
            lambda: pair.near.statistics(),
        ):
            try:
                call()
            except EngineForkedError:
                refused += 1
        os._exit(refused)
    _, status = os.waitpid(child, 0)  # noqa: ASYNC222  (it ends at once, and the loop's own watcher must not see it)
    assert os.waitstatus_to_exitcode(status) == 10
    await operation
    assert region.view()[-1] == 5
    await pair.near.put(source, remote, signal="after")
    await pair.far.wait_signal("after")


async def test_a_forked_child_leaves_with_the_status_that_it_chose() -> None:
    """`sys.exit` passes through `async with engine`; leaving it in peace does not, and says why."""

    def stay() -> None:
        pass

    ways: list[tuple[Callable[[], object], str]] = [
        (lambda: sys.exit(7), "SystemExit(7)"),
        (stay, "EngineForkedError"),
    ]
    for leave, expected in ways:
        reader, writer = os.pipe()
        child = 0
        try:
            async with Engine():
                child = os.fork()
                if child == 0:
                    leave()
        except BaseException as error:
            if child != 0:
                raise
            os.write(writer, repr(error).encode())
        finally:
            if child == 0:
                os._exit(0)
        os.waitpid(child, 0)  # noqa: ASYNC222  (it ends at once, and the loop's own watcher must not see it)
        os.close(writer)
        with open(reader, "rb") as answers:  # noqa: ASYNC230  (a pipe whose other end is closed)
            assert expected in answers.read().decode()


async def test_a_subprocess_inherits_nothing(pair: Pair) -> None:
    """Descriptors are closed on exec."""
    del pair
    command = ("ls", "-l", "/proc/self/fd")
    process = subprocess.run(command, capture_output=True, close_fds=False, check=True)  # noqa: ASYNC221
    for kind in (b"memfd", b"eventfd", b"pidfd"):
        assert kind not in process.stdout


async def test_dropping_all_of_an_open_engine_only_warns(link: str) -> None:
    """Engine, peer, region and completion go with a put under way: the warning names the engine, the bytes
    and the signal arrive all the same, and its region stays whole."""
    far = Engine(options=EngineOptions(links=(link,)))
    async with far:
        plan = FaultPlan()
        engine = plan.engine(name="dropped", options=far.options)
        await engine.__aenter__()
        runtime = engine._runtime
        target = await memory(far, link, 4096, label="target", access=Access.WRITE)
        peer = await engine.connect(far.address)
        source = await memory(engine, link, 4096)
        source.view()[:] = b"\x07" * 4096
        inbox = await engine.allocate(8, label="x", access=Access.WRITE)
        held = plan.hold(at="half")
        op = engine.put(source, peer.region("target"), signal="landed")
        await held.wait_caught()
        with pytest.warns(UnclosedResourceWarning, match="dropped"):  # noqa: PT031
            del engine, peer, source, op
            gc.collect()
        others = [await far.register(bytearray(b"\x09" * 4096)) for _ in range(32)]
        held.release()
        assert (await far.wait_signal("landed")).error is None
        assert bytes(target.view()) == b"\x07" * 4096
        assert all(bytes(other.view()) == b"\x09" * 4096 for other in others)
        assert not inbox.closed
        await runtime.close(1.0)


async def test_two_runs_in_a_row_work(loop: str) -> None:
    """An engine for each loop: the second loop knows nothing of the first, of whatever kind they are."""

    def run_twice() -> None:
        async def main() -> None:
            async with connected(EngineOptions()) as pair:
                _, remote = await pair.target(8)
                await pair.near.put(await pair.source(8), remote)

        for _ in range(2):
            hixl_aio.run(main())
            run_on(loop, main)

    thread = threading.Thread(target=run_twice)
    thread.start()
    thread.join()


async def test_a_loop_that_ends_with_operations_under_way_is_silent(loop: str) -> None:
    """The engine is never closed, its loop is: no error, no hang; the only word is the warning."""
    code = """
import asyncio, sys, hixl_aio
if "trio" in sys.argv:
    import trio
async def main():
    a, b = hixl_aio.Engine(), hixl_aio.Engine()
    await a.__aenter__(); await b.__aenter__()
    region = await b.allocate(64 << 20, label="x", access=hixl_aio.Access.WRITE)
    peer = await a.connect(b.address)
    source = await a.allocate(64 << 20)
    for _ in range(20):
        a.put(source, peer.region("x"))
    if "--exit" in sys.argv:
        sys.exit(3)
if "trio" in sys.argv:
    trio.run(main)
else:
    asyncio.run(main())
print("done")
"""
    for arguments, status, output in (([], 0, "done\n"), (["--exit"], 3, "")):
        command = (sys.executable, "-c", code, loop, *arguments)
        process = subprocess.run(command, capture_output=True, timeout=20, text=True)  # noqa: ASYNC221
        assert (process.returncode, process.stdout) == (status, output), process.stderr
        assert "Traceback" not in process.stderr


async def test_errors_in_the_body_do_not_keep_the_engine_open() -> None:
    """`async with` closes whatever leaves it."""
    with pytest.raises(TransferError):
        async with Engine() as engine:
            raise TransferError
    assert engine.closed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del engine
        gc.collect()
