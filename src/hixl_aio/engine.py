"""The engine: one address, the peers it talks to, and the calls that move bytes.

This module holds the public face and its meaning. `hixl_aio._runtime` joins what stands behind it.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from hixl_aio._checks import check_text
from hixl_aio._runtime import Runtime, default_name
from hixl_aio._submission import StreamEvent
from hixl_aio.errors import InvalidArgumentError, UnclosedResourceWarning
from hixl_aio.options import DEFAULT, Access, Delivery, EngineOptions, Environment, Timeout, choose_backend
from hixl_aio.signals import Signal, SignalStream

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from hixl_aio.batch import Batch, BatchOp
    from hixl_aio.completion import Completion
    from hixl_aio.memory import LocalView, MemoryRegion, RemoteRegion, RemoteView
    from hixl_aio.peer import Peer
    from hixl_aio.stats import Capabilities, EngineStatistics

__all__ = ("Engine", "StreamEvent")

_REMOTE: Final = Delivery.REMOTE


class Engine:
    """One end of transfers: an async context manager that belongs to the loop that opened it, asyncio's or
    trio's.

    ::

        async with Engine() as engine:
            peer = await engine.connect(address)
            region = await engine.register(buffer)
            await engine.put(region, peer.region("inbox"))

    Arguments run with the data: source first, destination second. Data calls (`put`, `get`, `batch`,
    `signal`) are synchronous: the transfer starts at the call, and what they return is awaited to join it.
    Wrong use raises at the call; what the world does wrong arrives in the Completion.

    Args:
        address: where peers connect to: "host:port" (port 0: any), "[v6]:port" or "unix:NAME".
        name: what peers see; made up if None.
        backend: "auto", "host", "hixl" or "ucx"; "auto" takes HIXL_AIO_BACKEND, else the host backend.
        key: a secret shared by all engines of a group, for backends between hosts.
        insecure: allow an address that other hosts reach without a key, where the backend can do that at all.
        options: limits and habits.

    Raises:
        InvalidArgumentError: an argument is not what it should be.
        BackendUnavailableError: that backend is not there on this machine.
        UnsupportedError: a key, with a backend that would not use it.
    """

    __slots__ = ("__weakref__", "_created", "_data", "_requested", "_runtime")

    def __init__(
        self,
        address: str = "127.0.0.1:0",
        *,
        name: str | None = None,
        backend: str = "auto",
        key: bytes | None = None,
        insecure: bool = False,
        options: EngineOptions = EngineOptions(),  # noqa: B008  (frozen)
    ) -> None:
        self._created = ""
        check_text("address", address, "host:port or unix:NAME")
        if name is not None:
            check_text("name", name, "a str of 1 to 255 bytes, or None", 255)
        if not isinstance(options, EngineOptions):
            raise InvalidArgumentError(
                argument="options", value=type(options).__name__, expected="EngineOptions"
            )
        if not isinstance(insecure, bool):
            raise InvalidArgumentError(argument="insecure", value=insecure, expected="True or False")
        environment = Environment.read()
        choose_backend(backend, key, environment)
        if environment.debug:
            self._created = "".join(traceback.format_stack())
        self._requested = address
        self._runtime = Runtime(name or default_name(), options, environment)
        self._data = self._runtime.data

    # ---- life

    async def __aenter__(self) -> Self:
        """Bind the address and start, on the running loop.

        Raises:
            WrongLoopError: no loop runs here.
            ClosedError: this engine was opened before; make a new one.
            EngineError: the address is in use, or cannot be bound.
        """
        await self._runtime.open(self._requested)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._runtime.is_forked:
            return  # a forked child leaves: what takes it out of here is not replaced
        await self.aclose()

    async def aclose(self, *, drain_timeout: float | None = 5.0) -> None:
        """End everything: idempotent; a call that comes while another one closes waits for that one.

        Whoever waits for a signal, a peer or room in a line gets `ClosedError` at once. Operations under way
        may end first, for at most `drain_timeout`; then they are stopped, and those who await them get
        `ClosedError`.

        Completion means: no thread and no descriptor of the engine is left, no operation is in flight
            (INV-10).

        Cancellation: the engine closes all the same, without draining any further; then the cancellation is
            raised. So it is for each of several calls.

        Args:
            drain_timeout: seconds, or None for no limit.

        Raises:
            WrongLoopError: called on another loop or thread.
            EngineForkedError: called in a forked child.
        """
        await self._runtime.close(drain_timeout)

    @property
    def address(self) -> str:
        """What peers connect to, with the real port."""
        return self._runtime.address or self._requested

    @property
    def name(self) -> str:
        """What peers see."""
        return self._runtime.name

    @property
    def incarnation(self) -> str:
        """Which life this is (32 hex digits)."""
        return self._runtime.incarnation

    @property
    def closed(self) -> bool:
        """It is closed, or was never open, or belongs to the parent process."""
        return not self._runtime.is_open

    @property
    def options(self) -> EngineOptions:
        """Limits and habits."""
        return self._runtime.options

    @property
    def capabilities(self) -> Capabilities:
        """What the backend can do.

        Raises:
            ClosedError: it was never open.
        """
        return self._runtime.capabilities

    @property
    def peers(self) -> Mapping[str, Peer]:
        """Connected peers by address, whoever began. A live view."""
        return self._runtime.control.peers_view

    def statistics(self) -> EngineStatistics:
        """What it holds and has done: a frozen snapshot.

        Raises:
            EngineForkedError: called in a forked child.
        """
        return self._runtime.statistics()

    # ---- control plane: may wait

    async def allocate(
        self, nbytes: int, *, label: str | None = None, access: Access = Access.LOCAL
    ) -> MemoryRegion:
        """Make memory that peers on this machine can map: the fastest kind.

        Completion means: the memory is reserved, zeroed and registered; peers with the right find it under
            its label.

        Cancellation: what was made meanwhile is given back.

        Args:
            nbytes: its size, at least 1.
            label: what peers find it under, at most 255 bytes; None: they do not.
            access: what peers may do with it.

        Raises:
            InvalidArgumentError: an argument is not what it should be.
            ResourceExhaustedError: there is no such memory.
        """
        return await self._runtime.regions.allocate(nbytes, label, access)

    async def register(
        self, buffer: Buffer, *, label: str | None = None, access: Access = Access.LOCAL
    ) -> MemoryRegion:
        """Let memory of yours take part: anything with the buffer protocol, a NumPy array, a torch CPU
        tensor.

        The buffer is pinned (it cannot be resized) until the region is closed.

        Completion means: peers with the right find it under its label.

        Cancellation: the buffer is released as soon as nobody can touch it.

        Args:
            buffer: contiguous, at least 1 byte. A read-only one is a source; it cannot be a destination.
            label: what peers find it under, at most 255 bytes; None: they do not.
            access: what peers may do with it.

        Raises:
            InvalidArgumentError: no buffer, or an empty one.
            NotContiguousError: its bytes are not one run.
            AccessDeniedError: a read-only buffer with `Access.WRITE`.
            UnsupportedError: memory of a kind that the backend does not move, or a mapping of a file that
                cannot be copied safely here.
        """
        return await self._runtime.regions.register(buffer, label, access)

    async def connect(self, address: str, *, timeout: float = 3.0) -> Peer:  # noqa: ASYNC109  (the handshake's own)
        """Connect to another engine, or to this one. A second call returns the same peer.

        Completion means: both sides know each other and each other's regions; the connection is symmetric.

        Cancellation: ends the wait; a connection that nobody else wanted is closed again.

        Args:
            address: where it listens.
            timeout: seconds for the whole of it.

        Raises:
            PeerNotConnectedError: nobody listens there.
            ConnectTimeoutError: no answer in time.
            HandshakeError: the two do not fit together; names the field and both values.
            AuthenticationError: it runs as another user.
            InvalidArgumentError: no valid address.
        """
        return await self._runtime.control.connect(address, timeout)

    async def accept(self) -> Peer:
        """The next peer that connected to us. The connection is symmetric.

        Cancellation: ends the wait; the peer, if one was there, goes to the next who asks.

        Raises:
            ClosedError: the engine closes.
        """
        return await self._runtime.control.reception.accept()

    # ---- data plane: never blocks, starts now

    def put(
        self,
        src: LocalView | MemoryRegion,
        dst: RemoteView | RemoteRegion,
        *,
        timeout: Timeout = DEFAULT,
        signal: str | None = None,
        payload: bytes = b"",
        delivery: Delivery = Delivery.REMOTE,
        ready: Awaitable[object] | StreamEvent | None = None,
    ) -> Completion:
        """Write local memory into a peer's memory.

        The transfer starts now, before anything is awaited. Without a credit it waits in line, in the order
        of the calls.

        Completion means: the bytes are visible to the peer (`Delivery.REMOTE`), or `src` may be reused
            (`Delivery.LOCAL`). The peer learns of them by a signal only.

        Cancellation: a transfer that has left cannot be recalled, only stopped between two chunks. Awaiting
            joins it.

        Args:
            src: what is written; pinned from now on.
            dst: where to; of the same length.
            timeout: seconds from now, None for no deadline.
            signal: the peer gets a signal of this name once the bytes are there, or its negative form if they
                will not be.
            payload: goes with the signal.
            delivery: what completion means.
            ready: something to await first, while `src` is pinned; if it fails, nothing moves.

        Raises:
            InvalidArgumentError: sizes differ, or an argument is not what it should be.
            ClosedError: the engine or the region is closed.
            PeerNotConnectedError: call `connect` first.
            StaleRegionError: `dst` is a region that is over.
            AccessDeniedError: its owner does not let peers write to it.
            TransferQueueFullError: too many operations wait; `wait_capacity` waits.
            SignalQueueFullError: the peer holds too many unread signals; nothing moved.
            WrongLoopError: called on another loop or thread.
            EngineForkedError: called in a forked child.
        """
        if timeout is DEFAULT and ready is None and delivery is _REMOTE:
            done = self._data.put_now(src, dst, signal, payload)
            if done is not None:
                return done
        elif not isinstance(delivery, Delivery):
            raise InvalidArgumentError(argument="delivery", value=delivery, expected="a Delivery")
        return self._data.transfer(0, src, dst, timeout, signal, payload, ready)

    def get(
        self,
        src: RemoteView | RemoteRegion,
        dst: LocalView | MemoryRegion,
        *,
        timeout: Timeout = DEFAULT,
        ready: Awaitable[object] | StreamEvent | None = None,
    ) -> Completion:
        """Read a peer's memory into local memory.

        The transfer starts now, before anything is awaited. Without a credit it waits in line, in the order
        of the calls.

        Completion means: the bytes are in `dst`.

        Cancellation: a transfer that has left cannot be recalled, only stopped between two chunks. Awaiting
            joins it.

        Args:
            src: what is read.
            dst: where to; of the same length; pinned from now on.
            timeout: seconds from now, None for no deadline.
            ready: something to await first, while `dst` is pinned; if it fails, nothing moves.

        Raises:
            InvalidArgumentError: sizes differ, or an argument is not what it should be.
            ClosedError: the engine or the region is closed.
            PeerNotConnectedError: call `connect` first.
            StaleRegionError: `src` is a region that is over.
            AccessDeniedError: its owner does not let peers read it, or `dst` is read-only.
            TransferQueueFullError: too many operations wait; `wait_capacity` waits.
            WrongLoopError: called on another loop or thread.
            EngineForkedError: called in a forked child.
        """
        if timeout is DEFAULT and ready is None:
            done = self._data.get_now(src, dst)
            if done is not None:
                return done
        return self._data.transfer(1, dst, src, timeout, None, b"", ready)

    def batch(
        self,
        ops: Sequence[BatchOp],
        *,
        timeout: Timeout = DEFAULT,
        signal: str | None = None,
        payload: bytes = b"",
        ready: Awaitable[object] | StreamEvent | None = None,
    ) -> Batch:
        """Many transfers to one peer as one operation; adjacent runs are merged.

        Completion means: all parts are there. The order of the parts is not defined.

        Cancellation: as for `put`; what has arrived by then stays.

        Args:
            ops: Put, Get, PutBlocks and GetBlocks, all with the same peer.
            timeout: seconds from now, None for no deadline.
            signal: the peer gets a signal of this name once all parts are there, or its negative form.
            payload: goes with the signal.
            ready: something to await first, while the memory is pinned; if it fails, nothing moves.

        Raises:
            InvalidArgumentError: parts with different peers, or a part that is not what it should be (names
                it). ClosedError, PeerNotConnectedError, StaleRegionError, AccessDeniedError,
                TransferQueueFullError, SignalQueueFullError,
            WrongLoopError, EngineForkedError: as for `put`.
        """
        return self._data.batch(ops, timeout, signal, payload, ready)

    def signal(
        self, peer: Peer, name: str, payload: bytes = b"", *, after: Completion | None = None
    ) -> Completion:
        """Send a signal.

        Completion means: it is in the peer's queue.

        Args:
            peer: to whom.
            name: 1 to 1024 bytes of UTF-8.
            payload: at most 1024 bytes, less where `capabilities.max_signal_payload` says so.
            after: send it when that operation has completed, or its negative form if that fails.

        Raises:
            SignalQueueFullError: the peer holds too many unread signals.
            InvalidArgumentError, ClosedError, PeerNotConnectedError, WrongLoopError, EngineForkedError: as
                for `put`.
        """
        return self._data.signal(peer, name, payload, after)

    def fence(self, peer: Peer) -> None:
        """Operations to the peer that are called from now on start after all earlier ones have been
        delivered.

        Raises:
            ClosedError, PeerNotConnectedError, WrongLoopError, EngineForkedError: as for `put`.
        """
        self._data.fence(peer)

    async def flush(self, peer: Peer | None = None) -> None:
        """Wait until every operation called before is delivered, to one peer or to all.

        Completion means: all of them are delivered, or had ended before. Those that were stopped on request
            do not count.

        Cancellation: ends the wait, and stops nothing.

        Raises:
            HixlAioError: one of them failed meanwhile: the first failure.
        """
        await self._data.flush(peer)

    async def wait_capacity(self, peer: Peer) -> None:
        """Wait until one more operation may wait in the peer's line.

        Completion means: a call right now does not raise `TransferQueueFullError`.

        Cancellation: ends the wait.

        Raises:
            PeerLostError: the peer is gone.
            ClosedError: the engine closes.
        """
        await self._data.wait_capacity(peer)

    # ---- signals that arrive

    async def wait_signal(self, name: str, *, peer: Peer | None = None) -> Signal:
        """The next signal of that name, from one peer or from any: first in, first out. Each goes to exactly
        one waiter.

        Completion means: the signal is yours. For one that was bound to an operation: its bytes are there,
            unless `error` is set.

        Cancellation: ends the wait; a signal that was already in hand goes back to the front.

        Raises:
            PeerLostError: `peer` is gone, and nothing of that name is left from it.
            ClosedError: the engine closes.
        """
        return await self._runtime.mail.wait_signal(name, peer)

    def signals(self) -> AsyncIterator[Signal]:
        """Signals that nobody waits for by name, in the order of their arrival.

        Raises:
            ClosedError: from the iteration, when the engine closes.
        """
        return SignalStream(self._runtime)

    def __repr__(self) -> str:
        return f"<Engine {self.name} at {self.address}, {self._runtime.life.state.value}>"

    def __del__(self) -> None:
        runtime = getattr(self, "_runtime", None)
        if runtime is None or not runtime.is_open:
            return
        text = f"{self!r} was dropped without aclose(); use `async with`"
        if self._created:
            text += f"\nIt was made here:\n{self._created}"
        warnings.warn(UnclosedResourceWarning(text), stacklevel=2, source=self)
