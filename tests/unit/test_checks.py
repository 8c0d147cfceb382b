"""Arguments that no call can take: each is a typed error that names it, whatever its type."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

from hixl_aio import (
    Access,
    Completion,
    Engine,
    EngineOptions,
    InvalidArgumentError,
    MemoryKind,
    Put,
    RemoteRegion,
    WrongLoopError,
)
from hixl_aio._checks import MAX_SECONDS, check_seconds
from hixl_aio.memory import LocalView, RemoteView
from hixl_aio.options import Environment

from .conftest import SceneMaker

SURROGATE = "a\udc80b"
HUGE = 10**5000


class _Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def test_no_number_of_seconds() -> None:
    """The argument is named, also when its value cannot be printed."""
    for value in (-1, float("inf"), float("nan"), True, "5", None, HUGE * -1, _Unspeakable()):
        with pytest.raises(InvalidArgumentError, match=r"grace is .*, expected seconds") as refused:
            check_seconds("grace", value)
        assert refused.value.argument == "grace"
        assert len(str(refused.value)) < 1000


def test_more_seconds_than_a_clock_takes_are_as_good_as_for_ever() -> None:
    """A deadline of a thousand digits is a deadline, not an overflow."""
    assert check_seconds("timeout", HUGE) == MAX_SECONDS
    assert check_seconds("timeout", 0.5) == 0.5
    assert EngineOptions(transfer_timeout=HUGE, drain_timeout=None).transfer_timeout == MAX_SECONDS


@pytest.mark.parametrize(
    "make",
    [
        lambda: Engine(SURROGATE),
        lambda: Engine(name=SURROGATE),
        lambda: Engine(name="é" * 200),
        lambda: EngineOptions(links=None),  # type: ignore[arg-type]
        lambda: EngineOptions(links=[1]),  # type: ignore[arg-type]
        lambda: EngineOptions(credits_per_peer=HUGE),
        lambda: RemoteRegion.from_bytes(None),  # type: ignore[arg-type]
        lambda: RemoteRegion.from_bytes(10**9),  # type: ignore[arg-type]
        lambda: RemoteRegion.from_bytes(bytes(10**6)),
        lambda: RemoteRegion("ab" * 16, 1, 1, 8, MemoryKind.HOST, None, "x"),  # type: ignore[arg-type]
        lambda: RemoteRegion("ab" * 16, 1, 1, 8, MemoryKind.HOST, Access.READ, None),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_made(make: Callable[[], object]) -> None:
    """A typed error, before anything is opened or allocated."""
    with pytest.raises(InvalidArgumentError):
        make()


def test_a_key_of_any_bytes_is_read_from_the_environment() -> None:
    """The environment of a process is bytes; what is no UTF-8 comes through unchanged."""
    assert Environment.read({"HIXL_AIO_KEY": "\udcff\udc80key"}).key == b"\xff\x80key"


@pytest.mark.asyncio
async def test_what_the_calls_of_an_engine_refuse(scene: SceneMaker) -> None:
    """Nothing of it reaches native code or leaves a trace."""
    async with scene() as s:
        here, there = s.source[0:8], s.remote[0:8]
        s.native.answers = [0]
        done = s.engine.put(here, there)
        wrong: list[Any] = [[1], 1.5, "0", None, object()]
        calls: list[Callable[[], object]] = [
            lambda: s.engine.put(here, there, timeout=_Unspeakable()),  # type: ignore[arg-type]
            lambda: s.engine.put(here, there, timeout=HUGE * -1),
            lambda: s.engine.batch([], payload=b"x"),
            lambda: s.engine.batch([], ready=asyncio.get_running_loop().create_future()),
            lambda: s.peer.region(SURROGATE),
            lambda: done.add_done_callback(print, context="x"),  # type: ignore[arg-type]
            *(lambda bad=bad: s.source[0:bad] for bad in wrong if bad is not None),
            *(lambda bad=bad: LocalView(s.source, bad, 1) for bad in wrong),
            *(lambda bad=bad: RemoteView(s.remote, 0, bad) for bad in wrong),
        ]
        for call in calls:
            with pytest.raises(InvalidArgumentError):
                call()
        for wait in (
            s.engine.connect(SURROGATE),
            s.engine.connect("127.0.0.1:1", timeout=0),
            s.engine.connect("127.0.0.1:1", timeout=_Unspeakable()),  # type: ignore[arg-type]
            s.engine.allocate(8, label=SURROGATE),
            s.engine.aclose(drain_timeout="5"),  # type: ignore[arg-type]
            s.engine.aclose(drain_timeout=True),
        ):
            with pytest.raises(InvalidArgumentError):
                await wait
        assert s.native.reserved == 0
        s.native.answers = [0, 0]  # done within the call
        await s.engine.put(here, there, timeout=HUGE)
        await s.engine.batch([Put(here, there)], timeout=HUGE)


@pytest.mark.asyncio
async def test_views_do_not_change(scene: SceneMaker) -> None:
    """Their bounds were checked when they were made, so they stay as they are."""
    async with scene() as s:
        for view in (s.source[0:8], s.remote[0:8]):
            for name in ("region", "offset", "nbytes"):
                with pytest.raises(AttributeError):
                    setattr(view, name, 1 << 40)


@pytest.mark.asyncio
async def test_a_callback_on_what_is_done_belongs_to_the_loop_too(scene: SceneMaker) -> None:
    """From another thread it is refused; on the loop it runs in the next turn, also after aclose()."""
    called: list[Completion] = []
    refused: list[BaseException] = []
    async with scene() as s:
        s.native.answers = [0]
        done = s.engine.put(s.source[0:8], s.remote[0:8])

        def elsewhere() -> None:
            try:
                done.add_done_callback(called.append)
            except WrongLoopError as error:
                refused.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert len(refused) == 1
    done.add_done_callback(called.append, context=contextvars.copy_context())
    await asyncio.sleep(0)
    assert called == [done]
