"""A stand-in for two connected engines, as lazy as the contract allows.

A put without a signal is delivered only when a fence and a signal-bound put behind it demand it, in a
shuffled order, and its source is read at that moment. What holds on this network holds on every real one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from hixl_aio.demo.messages import Message

__all__ = ("LazyEngine", "LazyRegion", "Network", "Recorder")


@dataclass(slots=True)
class LazyView:
    region: LazyRegion
    span: slice


class LazyRegion:
    def __init__(self, nbytes: int) -> None:
        self.memory = bytearray(b"\xff" * nbytes)
        self.nbytes = nbytes

    def view(self) -> memoryview:
        return memoryview(self.memory)

    def __getitem__(self, span: slice) -> LazyView:
        assert 0 <= span.start <= span.stop <= self.nbytes
        return LazyView(self, span)


class LazyCompletion:
    elapsed = 0.001

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.shield(self.future).__await__()

    async def wait(self) -> None:
        await self

    def exception(self) -> BaseException | None:
        is_over = self.future.done() and not self.future.cancelled()
        return self.future.exception() if is_over else None


@dataclass(slots=True)
class Incoming:
    name: str
    payload: bytes
    error: Exception | None = None


@dataclass(slots=True)
class _Put:
    source: LazyView
    target: LazyView
    signal: Incoming | None
    completion: LazyCompletion


@dataclass(slots=True)
class Network:
    """What is under way, and what a test wants to happen to it."""

    random: random.Random = field(default_factory=lambda: random.Random(7))
    touch: Callable[[LazyView], None] = lambda _: None
    fail_put: int | None = None
    negative: bool = False
    honour_fences: bool = True
    puts: int = 0


class LazyEngine:
    def __init__(self, network: Network) -> None:
        self._network = network
        self._line: list[_Put] = []
        self._fenced = 0
        self._arrived: dict[str, asyncio.Queue[Incoming]] = {}
        self.other: LazyEngine = self

    @classmethod
    def pair(cls, network: Network) -> tuple[LazyEngine, LazyEngine]:
        one, two = cls(network), cls(network)
        one.other, two.other = two, one
        return one, two

    def _queue(self, name: str) -> asyncio.Queue[Incoming]:
        return self._arrived.setdefault(name, asyncio.Queue())

    def put(
        self, src: LazyView, dst: LazyView, *, signal: str | None = None, payload: bytes = b""
    ) -> LazyCompletion:
        assert src.span.stop - src.span.start == dst.span.stop - dst.span.start
        bound = None if signal is None else Incoming(signal, payload)
        put = _Put(src, dst, bound, LazyCompletion())
        self._line.append(put)
        self._network.puts += 1
        if self._network.puts == self._network.fail_put:
            put.completion.future.set_exception(RuntimeError("this put fails"))
        if bound is not None:
            asyncio.get_running_loop().call_soon(self._deliver_until, put)
        return put.completion

    def fence(self, peer: object) -> None:
        if self._network.honour_fences:
            self._fenced = len(self._line)

    def _deliver_until(self, last: _Put) -> None:
        before, self._line = self._line[: self._fenced], self._line[self._fenced :]
        self._fenced = 0
        self._network.random.shuffle(before)
        self._line.remove(last)
        for put in (*before, last):
            self._deliver(put)

    def _deliver(self, put: _Put) -> None:
        if put.completion.future.done():
            return
        put.target.region.memory[put.target.span] = put.source.region.memory[put.source.span]
        self._network.touch(put.target)
        put.completion.future.set_result(None)
        if put.signal is not None:
            if self._network.negative:
                put.signal.error = RuntimeError("the negative form")
            self.other._queue(put.signal.name).put_nowait(put.signal)

    def signal(self, peer: object, name: str, payload: bytes = b"") -> LazyCompletion:
        completion = LazyCompletion()
        completion.future.set_result(None)
        self.other._queue(name).put_nowait(Incoming(name, payload))
        return completion

    async def wait_signal(self, name: str, *, peer: object) -> Incoming:
        return await self._queue(name).get()


class Recorder:
    """A channel to nobody that remembers what was said."""

    def __init__(self) -> None:
        self.said: list[Message] = []
        self.listeners: list[Callable[[Message], None]] = []

    async def send(self, message: Message) -> None:
        self.said.append(message)
        for listener in self.listeners:
            listener(message)
