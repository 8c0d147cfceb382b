"""Signals reach exactly one waiter each, in order, and are never lost."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from hixl_aio import (
    ClosedError,
    EngineOptions,
    InvalidArgumentError,
    PeerLostError,
    Signal,
    SignalQueueFullError,
)

from ..loops import Task, Tasks, on_trio, turns
from .support import LINKS, Pair, connected


async def test_signals_of_one_name_come_in_the_order_they_were_sent(pair: Pair) -> None:
    """FIFO per name and peer, with sequence numbers that have no gap."""
    for number in range(100):
        await pair.near.signal(pair.peer, f"n{number % 2}", str(number).encode())
    even = [await pair.far.wait_signal("n0") for _ in range(50)]
    odd = [await pair.far.wait_signal("n1", peer=pair.back) for _ in range(50)]
    assert [int(signal.payload) for signal in even] == list(range(0, 100, 2))
    assert [int(signal.payload) for signal in odd] == list(range(1, 100, 2))
    sequences = sorted(signal.sequence for signal in even + odd)
    assert sequences == list(range(sequences[0], sequences[0] + 100))


async def test_signals_travel_both_ways(pair: Pair) -> None:
    """A connection is symmetric."""
    await pair.far.signal(pair.back, "hello", b"from afar")
    signal = await pair.near.wait_signal("hello", peer=pair.peer)
    assert (signal.payload, signal.peer) == (b"from afar", pair.peer)


async def test_each_signal_goes_to_exactly_one_waiter(pair: Pair, tasks: Tasks) -> None:
    """Ten waiters and ten signals: everybody gets a different one."""
    waiters = [tasks.start(pair.far.wait_signal("one")) for _ in range(10)]
    await turns(3)
    for number in range(10):
        await pair.near.signal(pair.peer, "one", bytes([number]))
    got = [await waiter.result() for waiter in waiters]
    assert sorted(signal.payload[0] for signal in got) == list(range(10))


async def test_a_cancelled_waiter_puts_its_signal_back_to_the_front(pair: Pair, tasks: Tasks) -> None:
    """Whether a cancelled waiter already held a signal or not, nothing is lost and the order stays.

    asyncio takes the signal out of its hand again; on trio a wake-up that comes before the cancellation wins.
    """
    for cancel_late in (False, True):
        waiter = tasks.start(pair.far.wait_signal("s"))
        await turns(3)
        if not cancel_late:
            waiter.cancel()
        sent = [pair.near.signal(pair.peer, "s", payload) for payload in (b"1", b"2")]
        if cancel_late:
            pair.far._runtime.on_readable()  # the signal is in the waiter's hand, and it has not run yet
            waiter.cancel()
        outcome = await waiter.outcome()
        taken = [outcome.payload] if isinstance(outcome, Signal) else []
        assert taken == ([b"1"] if cancel_late and on_trio() else [])
        while len(taken) < 2:
            taken.append((await pair.far.wait_signal("s")).payload)
        assert taken == [b"1", b"2"]
        assert [operation.exception() for operation in sent] == [None, None]


async def test_the_stream_gives_signals_that_nobody_waits_for(pair: Pair, tasks: Tasks) -> None:
    """`signals()` leaves alone what is waited for by name."""
    waiter = tasks.start(pair.far.wait_signal("named"))
    await turns(3)
    for name in ("a", "named", "b", "a"):
        await pair.near.signal(pair.peer, name)
    stream = pair.far.signals()
    assert [(await anext(stream)).name for _ in range(3)] == ["a", "b", "a"]
    assert (await waiter.result()).name == "named"


async def test_sizes_are_checked_at_the_call(pair: Pair) -> None:
    """1024 bytes of name, and the payload that the transport takes, are fine; one more is refused, and so is
    an empty name."""
    most = pair.near.capabilities.max_signal_payload
    assert most == (1016 if pair.link == "resent" else 1024)
    await pair.near.signal(pair.peer, "n" * 1024, b"p" * most)
    signal = await pair.far.wait_signal("n" * 1024)
    assert signal.payload == b"p" * most
    for name, payload in (("n" * 1025, b""), ("n", b"p" * (most + 1)), ("", b""), ("\N{SNOWMAN}" * 342, b"")):
        with pytest.raises(InvalidArgumentError):
            pair.near.signal(pair.peer, name, payload)


async def test_a_signal_after_an_operation_follows_its_fate(pair: Pair) -> None:
    """`after=` sends the signal once the operation has completed."""
    region, remote = await pair.target(200_000)
    source = await pair.source(200_000, 1)
    put = pair.near.put(source, remote)
    await pair.near.signal(pair.peer, "after", b"x", after=put)
    assert put.done()
    signal = await pair.far.wait_signal("after")
    assert signal.error is None
    assert bytes(region.view()) == b"\x01" * 200_000
    await pair.near.signal(pair.peer, "after", after=put)
    assert (await pair.far.wait_signal("after")).error is None


@pytest.mark.parametrize("link", LINKS, indirect=True)
async def test_a_full_queue_is_an_error_at_the_sender(link: str) -> None:
    """With no place left at the peer, signals raise at the call, nothing moves, and taking one makes room."""
    async with connected(EngineOptions(links=(link,), signal_capacity=4), link) as pair:
        region, remote = await pair.target(8)
        source = await pair.source(8, 9)
        for number in range(4):
            await pair.near.signal(pair.peer, "s", bytes([number]))
        with pytest.raises(SignalQueueFullError) as full:
            pair.near.signal(pair.peer, "s")
        assert full.value.retryable
        with pytest.raises(SignalQueueFullError):
            pair.near.put(source, remote, signal="s")
        assert bytes(region.view()) == bytes(8)
        # Drained is not taken: the application decides.
        pair.far._runtime.on_readable()
        with pytest.raises(SignalQueueFullError):
            pair.near.signal(pair.peer, "s")
        assert (await pair.far.wait_signal("s")).payload == b"\x00"
        with anyio.fail_after(5):
            await _send_when_there_is_room(pair)
        assert [(await pair.far.wait_signal("s")).payload for _ in range(4)] == [
            b"\x01",
            b"\x02",
            b"\x03",
            b"new",
        ]


@pytest.mark.parametrize("link", LINKS, indirect=True)
async def test_five_thousand_unread_signals_lose_none(link: str) -> None:
    """As many as there are places by default are kept, each of the others is an error at the sender, and two
    waiters for different names get what is theirs and nothing else."""
    async with connected(EngineOptions(links=(link,)), link) as pair, Tasks() as tasks:
        places = pair.far.options.signal_capacity
        sent: dict[str, list[int]] = {"even": [], "odd": []}
        refused = 0
        for number in range(5000):
            name = "odd" if number % 2 else "even"
            try:
                pair.near.signal(pair.peer, name, number.to_bytes(4, "little"))
                sent[name].append(number)
            except SignalQueueFullError:
                refused += 1
        assert (places, refused) == (4096, 5000 - 4096)

        async def take(name: str) -> list[int]:
            found = [await pair.far.wait_signal(name) for _ in range(places // 2)]
            return [int.from_bytes(signal.payload, "little") for signal in found]

        even, odd = tasks.start(take("even")), tasks.start(take("odd"))
        assert {"even": await even.result(), "odd": await odd.result()} == sent
        assert pair.far.statistics().unread_signals == 0


async def _send_when_there_is_room(pair: Pair) -> None:
    while True:
        try:
            await pair.near.signal(pair.peer, "s", b"new")
        except SignalQueueFullError:
            await turns()
        else:
            return


async def test_waiting_for_a_peer_ends_when_it_goes(pair: Pair, tasks: Tasks) -> None:
    """What a peer has sent is still delivered; then waiting for it alone raises, for anybody goes on."""
    await pair.near.signal(pair.peer, "s", b"last words")
    anybody = tasks.start(pair.far.wait_signal("other"))
    waiting = tasks.start(pair.far.wait_signal("t", peer=pair.back))
    await turns(3)
    await pair.near.aclose()
    with pytest.raises(PeerLostError):
        await waiting.result()
    assert (await pair.far.wait_signal("s", peer=pair.back)).payload == b"last words"
    with pytest.raises(PeerLostError):
        await pair.far.wait_signal("s", peer=pair.back)
    assert not anybody.done()
    anybody.cancel()


async def _first(stream: AsyncIterator[Signal]) -> Signal:
    return await anext(stream)


async def test_closing_wakes_all_who_wait(pair: Pair, tasks: Tasks) -> None:
    """A hundred waiters of every kind hear ClosedError at once."""
    waiters: list[Task[object]] = [tasks.start(pair.far.wait_signal("s")) for _ in range(50)]
    waiters += [tasks.start(pair.far.wait_signal("s", peer=pair.back)) for _ in range(50)]
    waiters += [tasks.start(_first(pair.far.signals())), tasks.start(pair.far.accept())]
    await turns(3)
    await pair.far.aclose()
    for waiter in waiters:
        assert isinstance(await waiter.outcome(), ClosedError)


async def test_a_name_that_is_no_text_arrives_as_escapes(pair: Pair) -> None:
    """Whoever of our user sends it: the signal arrives, under a name that can be printed."""
    native = pair.near._runtime.native
    for raw, shown in ((b"\xff\xfe", "\\xff\\xfe"), (b"a\xed\xb2\x80", "a\\xed\\xb2\\x80")):
        assert native.send_signal(pair.peer._id, raw, b"x", 0, False) == 0
        assert (await pair.far.wait_signal(shown)).payload == b"x"
