"""Engines on trio: what scopes, nurseries and the end of a run mean for operations and their memory."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio
import trio.lowlevel
import trio.testing

from hixl_aio import (
    AbandonedTransferWarning,
    Access,
    Completion,
    Engine,
    InvalidArgumentError,
    OperationState,
    Status,
    TransferStoppedError,
    UnclosedResourceWarning,
    WrongLoopError,
)
from hixl_aio.testing import FaultPlan

from ..loops import Promise
from .conftest import Scene, SceneMaker

pytestmark = pytest.mark.trio_only

settle = trio.testing.wait_all_tasks_blocked


def start(scene: Scene, **options: Any) -> Completion:
    """One posted put."""
    return scene.engine.put(scene.source[0:8], scene.remote[0:8], **options)


class Joining:
    """A task that awaits an operation inside a scope of its own, and tells when it has ended."""

    def __init__(self, nursery: trio.Nursery, operation: Completion) -> None:
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        nursery.start_soon(self._run, operation)

    async def _run(self, operation: Completion) -> None:
        with self.scope:
            await operation
        self.ended.set()


async def together(*tasks: Callable[[], Awaitable[object]]) -> None:
    """Both in a nursery."""
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task)


# ---- scopes


async def test_a_cancelled_join_lasts_until_the_transport_lets_go(scene: SceneMaker) -> None:
    """The stop is asked for once, in the step of the cancellation; the task goes on at the record."""
    async with scene() as s, trio.open_nursery() as nursery:
        operation = start(s)
        joining = Joining(nursery, operation)
        await settle()
        for _ in range(3):
            joining.scope.cancel()
            assert s.native.stopped == [s.native.posted[0].handle]
            await settle()
        assert not joining.ended.is_set()
        assert s.source.busy
        s.native.end(status=Status.STOPPED)
        await joining.ended.wait()
        assert joining.scope.cancelled_caught
        assert not s.source.busy
        assert isinstance(operation.exception(), TransferStoppedError)


async def test_a_deadline_of_a_scope_stops_and_joins(scene: SceneMaker) -> None:
    """`move_on_after` ends late, with the memory settled, and says that its time was over."""
    async with scene() as s:
        operation = start(s)

        async def transport() -> None:
            await settle(0.005)
            assert s.native.stopped
            s.native.end(status=Status.STOPPED)

        async with trio.open_nursery() as nursery:
            with trio.move_on_after(0) as scope:
                nursery.start_soon(transport)
                await operation
            assert scope.cancelled_caught
            assert operation.state is OperationState.SETTLED


async def test_behind_a_shield_nothing_is_stopped(scene: SceneMaker) -> None:
    """The operation completes; the cancellation comes after the shield."""
    async with scene() as s:
        operation = start(s)
        with trio.CancelScope() as outer:
            outer.cancel()
            with trio.CancelScope(shield=True):
                s.engine._runtime.bridge.call_soon(s.native.end)
                await operation
            assert operation.exception() is None
            await trio.lowlevel.checkpoint()
        assert outer.cancelled_caught
        assert s.native.stopped == []


async def test_nested_scopes_that_end_during_a_join_are_each_told(scene: SceneMaker) -> None:
    """The inner one is cancelled, then the outer one while the join lasts: one stop, the outer catches."""
    async with scene() as s, trio.open_nursery() as nursery:
        operation = start(s)
        outer, inner, ended = trio.CancelScope(), trio.CancelScope(), trio.Event()

        async def joining() -> None:
            with outer:
                with inner:
                    await operation
                raise AssertionError("the outer scope was cancelled too")
            ended.set()

        nursery.start_soon(joining)
        await settle()
        inner.cancel()
        await settle()
        outer.cancel()
        await settle()
        assert not ended.is_set()
        s.native.end(status=Status.STOPPED)
        await ended.wait()
        assert (outer.cancelled_caught, inner.cancelled_caught) == (True, False)
        assert len(s.native.stopped) == 1


async def test_cancelling_one_of_two_tasks_stops_nothing(scene: SceneMaker) -> None:
    """The cancelled one waits for the memory, the other one gets the result."""
    async with scene() as s, trio.open_nursery() as nursery:
        operation = start(s)
        first, second = Joining(nursery, operation), Joining(nursery, operation)
        await settle()
        first.scope.cancel()
        await settle()
        assert s.native.stopped == []
        assert not first.ended.is_set()
        s.native.end()
        await first.ended.wait()
        await second.ended.wait()
        assert (first.scope.cancelled_caught, second.scope.cancelled_caught) == (True, False)


async def test_what_waits_in_line_is_left_at_once(scene: SceneMaker) -> None:
    """The transport does not have it: the task goes in the turn of the cancellation; nothing has moved."""
    async with scene(credits_per_peer=1) as s:
        first, second = start(s), start(s)
        with trio.CancelScope() as scope:
            scope.cancel()
            await second
        assert scope.cancelled_caught
        assert isinstance(second.exception(), TransferStoppedError)
        s.native.end()
        await first


async def test_after_the_grace_the_transfer_is_abandoned(scene: SceneMaker) -> None:
    """The task goes on with a warning, the region stays busy until the record."""
    async with scene(cancel_grace=0.01) as s:
        operation = start(s)
        scope = trio.CancelScope()
        scope.cancel()
        with pytest.warns(AbandonedTransferWarning), scope:
            await operation
        assert scope.cancelled_caught
        assert (operation.state, s.source.busy) == (OperationState.ABANDONED, True)
        s.native.end()
        await operation.settled()
        assert not s.source.busy


async def test_a_record_before_the_cancellation_is_a_result(scene: SceneMaker) -> None:
    """In one step: the task has its result, and the scope has caught nothing."""
    async with scene() as s, trio.open_nursery() as nursery:
        joining = Joining(nursery, start(s))
        await settle()
        s.native.end()
        s.engine._runtime.on_readable()
        joining.scope.cancel()
        await joining.ended.wait()
        assert not joining.scope.cancelled_caught
        assert s.native.stopped == []


async def test_a_sibling_that_fails_stops_the_others_and_waits_for_the_memory(scene: SceneMaker) -> None:
    """The nursery ends when the transport has let go, with the failure of the sibling alone."""
    async with scene() as s:
        operation = start(s)
        failed = trio.Event()

        async def sibling() -> None:
            await settle()
            failed.set()
            raise KeyError("x")

        async def transport() -> None:
            await failed.wait()
            await settle()
            assert s.native.stopped
            assert s.source.busy
            s.native.end(status=Status.STOPPED)

        async with trio.open_nursery() as outside:
            outside.start_soon(transport)
            with pytest.raises(ExceptionGroup) as group:
                await together(sibling, operation.wait)
            assert not s.source.busy
        assert [type(error) for error in group.value.exceptions] == [KeyError]


async def test_a_deadline_and_a_signal_in_the_same_step_lose_nothing(scene: SceneMaker) -> None:
    """Signal first: it is returned. Deadline first: it stays for the next who waits."""
    async with scene() as s, trio.open_nursery() as nursery:
        got: list[bytes] = []
        for sequence, signal_first in enumerate((True, False), 1):
            scope, ended = trio.CancelScope(), trio.Event()

            async def wait(scope: trio.CancelScope = scope, ended: trio.Event = ended) -> None:
                with scope:
                    got.append((await s.engine.wait_signal("s")).payload)
                ended.set()

            nursery.start_soon(wait)
            await settle()
            s.native.arrive(s.peer._id, sequence, "s", b"%d" % sequence)
            if signal_first:
                s.engine._runtime.on_readable()
            scope.deadline = trio.current_time() - 1  # it is over now
            assert scope.cancel_called
            s.engine._runtime.on_readable()
            await ended.wait()
            assert scope.cancelled_caught == (not signal_first)
        assert got == [b"1"]
        assert (await s.engine.wait_signal("s")).payload == b"2"


# ---- checkpoints


async def test_every_await_is_a_checkpoint(scene: SceneMaker) -> None:
    """Also where there is nothing to wait for: what is done, what is there, what is closed."""
    async with scene() as s:
        done = start(s)
        s.native.end()
        await done
        s.native.accepted(7, "127.0.0.1:7", "cd" * 16)
        s.native.arrive(s.peer._id, 1, "s")
        s.native.arrive(s.peer._id, 2, "t")
        await settle()
        closed = await s.engine.register(bytearray(8))
        await closed.aclose()
        fresh = await s.engine.register(bytearray(8))
        gone = await s.engine.connect("127.0.0.1:9")
        await gone.aclose()
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: done.wait(),
            lambda: done.wait(join=False),
            lambda: done.settled(),
            lambda: s.engine.flush(),
            lambda: s.engine.flush(s.peer),
            lambda: s.engine.wait_capacity(s.peer),
            lambda: s.engine.accept(),
            lambda: s.engine.wait_signal("s"),
            lambda: anext(s.engine.signals()),
            lambda: s.engine.connect("127.0.0.1:2"),
            lambda: s.engine.register(bytearray(8)),
            lambda: s.engine.allocate(8),
            lambda: s.peer.refresh(),
            lambda: closed.aclose(),
            lambda: fresh.aclose(),
            lambda: gone.aclose(),
        ]
        for call in calls:
            with trio.testing.assert_checkpoints():
                await call()
        for _ in range(3):
            with trio.testing.assert_checkpoints():
                await done
        engine = Engine()
        with trio.testing.assert_checkpoints():
            await engine.__aenter__()
        for _ in range(2):
            with trio.testing.assert_checkpoints():
                await engine.aclose()


async def test_the_waits_of_a_fault_plan_are_checkpoints() -> None:
    """Also where what they wait for is there already."""
    plan = FaultPlan()
    async with plan.engine() as engine:
        peer = await engine.connect(engine.address)
        region = await engine.allocate(8, label="x", access=Access.WRITE)
        await peer.refresh()
        held = plan.hold()
        operation = engine.put(await engine.register(bytearray(8)), peer.region("x"))
        await held.wait_caught()
        with trio.testing.assert_checkpoints():
            await held.wait_caught()
        held.release()
        await operation
        await plan.wait_pending()
        with trio.testing.assert_checkpoints():
            await plan.wait_pending()
        await region.aclose()


async def test_a_cancelled_opening_leaves_nothing_open() -> None:
    """The checkpoint comes before there is anything; the engine can still be opened."""
    engine = Engine()
    with trio.CancelScope() as scope:
        scope.cancel()
        await engine.__aenter__()
    assert scope.cancelled_caught
    assert engine.closed
    async with engine:
        assert not engine.closed


async def test_a_cancelled_scope_closes_its_engine(scene: SceneMaker) -> None:
    """Nothing is drained, what is under way is stopped, and the scope ends when all is closed."""
    async with scene() as s:
        start(s)
        with trio.CancelScope() as scope:
            scope.cancel()
            s.engine._runtime.bridge.call_later(0.001, lambda: s.native.end(status=Status.STOPPED))
            await s.engine.aclose()
        assert scope.cancelled_caught
        assert s.engine.closed
        assert s.engine.statistics().in_flight == 0


async def test_a_future_of_asyncio_is_refused_at_the_call(scene: SceneMaker) -> None:
    """It would never resolve here; nothing is pinned."""
    loop = asyncio.new_event_loop()
    try:
        async with scene() as s:
            with pytest.raises(InvalidArgumentError, match="loop"):
                start(s, ready=loop.create_future())
            assert not s.source.busy
    finally:
        loop.close()


async def test_ready_is_dropped_with_its_operation(scene: SceneMaker) -> None:
    """What an operation waited for ends when the operation is stopped."""
    async with scene() as s:
        ended = trio.Event()

        async def never() -> None:
            try:
                await trio.sleep_forever()
            finally:
                ended.set()

        operation = start(s, ready=never())
        await settle()
        assert operation.cancel()
        await ended.wait()
        resolved = Promise()
        other = start(s, ready=resolved.awaitable)
        resolved.set()
        await settle()
        assert other.state is OperationState.POSTED
        s.native.end()
        await other


# ---- runs


async def opened() -> Engine:
    """An engine that nobody closes."""
    engine = Engine(name="left open")
    await engine.__aenter__()
    return engine


def test_an_engine_of_another_run_is_refused_at_once() -> None:
    """Every call of one that its run has left open: WrongLoopError, with a short name of both runs."""
    engine = trio.run(opened)

    async def main(engine: Engine) -> None:
        for waiting in (
            engine.flush(),
            engine.accept(),
            engine.wait_signal("s"),
            engine.allocate(8),
            engine.aclose(),
        ):
            with pytest.raises(WrongLoopError) as wrong:
                await waiting
            assert len(str(wrong.value)) < 400
        with pytest.raises(WrongLoopError):
            engine.batch([])

    trio.run(main, engine)
    with pytest.warns(UnclosedResourceWarning, match="left open"):  # noqa: PT031
        del engine
        gc.collect()


def test_a_run_that_leaves_an_engine_open_ends_with_a_warning_alone() -> None:
    """With an operation under way: no crash, no hang, and the memory is given back when the engine goes."""

    async def nothing() -> None:
        await trio.lowlevel.checkpoint()

    async def main() -> None:
        engine, other = await opened(), await opened()
        region = await other.allocate(64 << 20, label="x", access=Access.WRITE)
        peer = await engine.connect(other.address)
        source = await engine.allocate(64 << 20)
        for _ in range(20):
            engine.put(source, peer.region("x"), ready=nothing())
        await trio.lowlevel.checkpoint()
        del region

    with pytest.warns(UnclosedResourceWarning, match="left open") as warned:  # noqa: PT031
        trio.run(main)
        gc.collect()
    assert len(warned) == 2


async def test_an_engine_that_is_dropped_only_warns() -> None:
    """The run goes on, and what stands behind the engine can still be closed."""
    engine = await opened()
    runtime = engine._runtime
    with pytest.warns(UnclosedResourceWarning, match="left open"):  # noqa: PT031
        del engine
        gc.collect()
    await runtime.close(1.0)


def test_a_generator_that_the_end_of_the_run_closes_closes_its_engine() -> None:
    """trio has taken the reader by then; nothing hangs, and nothing is left."""
    engines: list[Engine] = []
    kept: list[AsyncGenerator[None, None]] = []

    async def generator() -> AsyncGenerator[None, None]:
        async with Engine() as engine:
            engines.append(engine)
            await engine.allocate(8)
            yield

    async def main() -> None:
        kept.append(generator())
        await anext(kept[0])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # trio's own, about such generators
        trio.run(main)
    kept.clear()
    assert engines[0].closed
    assert engines[0].statistics().in_flight == 0


async def test_an_interrupt_during_a_close_that_is_cancelled_is_not_lost() -> None:
    """The cancellation came first, but stands; Ctrl-C is told once, so it is what comes out."""
    plan = FaultPlan()
    engine = await plan.engine().__aenter__()
    region = await engine.allocate(8, label="x", access=Access.WRITE)
    peer = await engine.connect(engine.address)
    held = plan.hold(can_stop=False)
    put = engine.put(region, peer.region("x"))
    scope, token = trio.CancelScope(), trio.lowlevel.current_trio_token()

    async def interrupt() -> None:
        await settle()
        scope.cancel()  # ends the drain; the stop that follows waits for `cancel_grace`, whatever comes
        await settle()
        token.run_sync_soon(signal.raise_signal, signal.SIGINT)  # where trio keeps it for the main task
        await settle()
        held.release()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(interrupt)
        with pytest.raises(KeyboardInterrupt), scope:
            await engine.aclose()
    assert put.done()
    assert engine.closed


def test_programs_on_anyio_run_on_trio() -> None:
    """Its task groups, timeouts and events; a put joins as on trio itself."""
    seen: list[object] = []

    async def main() -> None:
        async with Engine() as one, Engine() as other:
            region = await other.allocate(8, label="x", access=Access.WRITE)
            peer = await one.connect(other.address)
            source = await one.register(bytearray(b"12345678"))
            async with anyio.create_task_group() as group:
                with anyio.fail_after(5):
                    group.start_soon(one.put(source, peer.region("x"), signal="s").wait)
                    seen.append((await other.wait_signal("s")).error)
            with anyio.move_on_after(0.001) as scope:
                await other.wait_signal("s")
            seen.append(scope.cancelled_caught)
            seen.append(bytes(region.view()))

    anyio.run(main, backend="trio")
    assert seen == [None, True, b"12345678"]


def test_a_run_in_a_thread_is_a_run_of_its_own() -> None:
    """Two at the same time, each with engines of its own."""
    moved: list[bytes] = []

    async def main() -> None:
        async with Engine() as engine:
            peer = await engine.connect(engine.address)
            region = await engine.allocate(8, label="x", access=Access.WRITE)
            await peer.refresh()
            await engine.put(await engine.register(b"12345678"), peer.region("x"))
            moved.append(bytes(region.view()))

    threads = [threading.Thread(target=trio.run, args=(main,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert moved == [b"12345678"] * 2
