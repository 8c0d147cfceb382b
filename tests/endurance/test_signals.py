"""Signals under load: none overtakes its bytes, none is lost, doubled, torn or taken twice."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hixl_aio import (
    Access,
    Engine,
    EngineOptions,
    HixlAioError,
    Put,
    PutBlocks,
    Signal,
    SignalQueueFullError,
    Status,
)
from hixl_aio.testing import EnginePair, FaultPlan, check_quiescent, connected_engines, running_peer

from ..soak import rounds
from .exchange import exchange, talk

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(rounds(60, 1800))]

KIB, MIB = 1 << 10, 1 << 20
LINKS = [
    pytest.param("shm", id="shm"),
    pytest.param("cma", id="cma"),
    pytest.param("cooperative", id="cooperative"),
]


def lanes(link: str, **more: Any) -> EngineOptions:
    """Several copy threads share a transfer, in chunks; the smallest ones are done within the call."""
    return EngineOptions(links=(link,), copy_threads=3, chunk_nbytes=64 * KIB, inline_nbytes=2 * KIB, **more)


# ---- a signal and its bytes (A2-01, A2-13)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(
    ("count", "smallest", "largest"),
    [
        pytest.param(rounds(2, 20), 64 * MIB, 64 * MIB, id="64MiB"),
        pytest.param(rounds(700, 10_000), 1, 200 * KIB, id="small"),
    ],
)
async def test_no_signal_overtakes_its_bytes_between_processes(
    link: str, count: int, smallest: int, largest: int
) -> None:
    """Random bytes, hashed when the signal comes, in both directions at once between two processes."""
    arguments = {"rounds": count, "smallest": smallest, "largest": largest, "shared": link == "shm"}
    async with Engine(options=lanes(link)) as engine:
        async with running_peer(engine, exchange, seed=1, **arguments) as other:
            ours = await exchange(engine, other.peer, seed=2, **arguments)  # type: ignore[arg-type]
            theirs = await other.result()
        assert min(ours, theirs) >= count * smallest


@pytest.mark.parametrize("link", ["inproc", "shm", "cma", "cooperative"])
async def test_no_signal_overtakes_its_bytes_within_a_process(link: str) -> None:
    """The same between two engines of one process."""
    arguments: dict[str, Any] = {"rounds": rounds(300, 10_000), "smallest": 1, "largest": 200 * KIB}
    async with connected_engines(lanes(link)) as pair:
        await asyncio.gather(
            exchange(pair.near, pair.peer, seed=1, shared=link == "shm", **arguments),
            exchange(pair.far, pair.back, seed=2, shared=link == "shm", **arguments),
        )
        await check_quiescent(pair.near)
        await check_quiescent(pair.far)


@pytest.mark.parametrize("link", ["inproc", "shm", "cma", "cooperative"])
async def test_a_thousand_puts_at_once_neither_mix_nor_touch_their_sources(link: str) -> None:
    """Every source is what it was, and every destination is its source."""
    count, size = 1000, 8 * KIB
    async with connected_engines(lanes(link)) as pair:
        if link == "shm":
            source = await pair.near.allocate(count * size)
            target = await pair.far.allocate(count * size, label="target", access=Access.WRITE)
        else:
            source = await pair.near.register(bytearray(count * size))
            target = await pair.far.register(bytearray(count * size), label="target", access=Access.WRITE)
        await pair.peer.refresh()
        remote = pair.peer.region("target")
        for turn in range(rounds(2, 100)):
            data = random.Random(turn).randbytes(count * size)
            source.view()[:] = data
            places = list(range(count))
            random.Random(turn).shuffle(places)
            for place in places:
                span = slice(place * size, (place + 1) * size)
                pair.near.put(source[span], remote[span])
            await pair.near.flush()
            assert source.view() == data
            assert target.view() == data


# ---- nothing to move, nothing that moves (A2-05, A2-07, A2-08)


async def test_one_byte_puts_signal_once_each_and_do_not_starve_the_loop() -> None:
    """The fastest path there is: each put one completion and one signal, and others have their turns."""
    count, burst = rounds(20_000, 1_000_000), 500
    turns = 0

    async def neighbour() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with connected_engines(EngineOptions(links=("shm",))) as pair:
        await pair.far.allocate(1, label="target", access=Access.WRITE)
        source = await pair.near.allocate(1)
        await pair.peer.refresh()
        remote, sequence, called = pair.peer.region("target"), None, 0

        def count_call(_: object) -> None:
            nonlocal called
            called += 1

        other = asyncio.ensure_future(neighbour())
        for _ in range(count // burst):
            for _ in range(burst):
                put = pair.near.put(source, remote, signal="s")
                put.add_done_callback(count_call)
                await put
            for _ in range(burst):
                signal = await pair.far.wait_signal("s")
                assert sequence is None or signal.sequence == sequence + 1
                sequence = signal.sequence
        await asyncio.sleep(0)
        other.cancel()
        assert called == count
        assert turns >= count // 32
        await check_quiescent(pair.far)
        assert pair.near.statistics().inlined == count


async def test_nothing_to_move_still_signals_once() -> None:
    """A put of no bytes, a batch of no blocks, and one where some blocks are empty."""
    async with connected_engines() as pair:
        await pair.far.allocate(64, label="target", access=Access.WRITE)
        source = await pair.near.allocate(64)
        await pair.peer.refresh()
        remote = pair.peer.region("target")
        before = pair.near.statistics().native
        await pair.near.put(source[:0], remote[:0], signal="put")
        await pair.near.batch([PutBlocks(source, remote, [], [], 8)], signal="no blocks")
        await pair.near.batch([Put(source[:0], remote[:0])], signal="an empty part")
        await pair.near.batch(
            [PutBlocks(source, remote, [0, 9, 64], [64, 3, 0], [0, 5, 0])], signal="some blocks"
        )
        for name in ("put", "no blocks", "an empty part", "some blocks"):
            signal = await pair.far.wait_signal(name)
            assert (signal.error, signal.name) == (None, name)
        await check_quiescent(pair.far)
        await check_quiescent(pair.near)
        assert pair.near.statistics().native["submitted"] - before["submitted"] <= 4
        assert not source.busy


async def test_a_receiver_that_counts_to_sixteen_gets_sixteen() -> None:
    """One of sixteen writes cannot start: its signal comes in the negative form and says which one."""
    async with connected_engines() as pair:

        async def fail() -> None:
            raise RuntimeError("the block was taken away")

        await pair.far.allocate(16 * 64, label="target", access=Access.WRITE)
        source = await pair.near.allocate(16 * 64)
        await pair.peer.refresh()
        remote = pair.peer.region("target")
        puts = []
        for part in range(16):
            span = slice(part * 64, (part + 1) * 64)
            ready = fail() if part == 5 else None
            puts.append(
                pair.near.put(source[span], remote[span], signal="part", payload=bytes([part]), ready=ready)
            )
        signals = [await pair.far.wait_signal("part") for _ in range(16)]
        assert sorted(signal.payload[0] for signal in signals) == list(range(16))
        assert [signal.payload[0] for signal in signals if signal.error is not None] == [5]
        results = await asyncio.gather(*(put.wait() for put in puts), return_exceptions=True)
        assert [part for part, result in enumerate(results) if result is not None] == [5]
        await check_quiescent(pair.near)


@pytest.mark.parametrize("how", ["refused", "failed", "revoked"])
async def test_a_batch_that_cannot_start_says_so_in_one_round_trip(how: str) -> None:
    """Refused by the transport, failed in it, or its fifth region taken back by the owner meanwhile."""
    plan = FaultPlan()
    async with connected_engines(plan=plan) as pair:
        regions = [await pair.far.allocate(64, label=f"b{part}", access=Access.WRITE) for part in range(16)]
        source = await pair.near.allocate(64)
        await pair.peer.refresh()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        parts = [Put(source, pair.peer.region(f"b{part}")) for part in range(16)]
        batch = pair.near.batch(parts, signal="batch", payload=b"0-15", ready=ready)
        if how == "revoked":
            await regions[5].aclose()
        else:
            plan.fail() if how == "failed" else plan.refuse(Status.FAILED)
        ready.set_result(None)
        signal = await pair.far.wait_signal("batch")
        assert signal.error is not None
        assert signal.payload == b"0-15"
        with pytest.raises(HixlAioError):
            await batch
        await check_quiescent(pair.near)


# ---- who gets it


class Taking:
    """Many tasks that take signals in every way there is, and are cancelled at any time."""

    def __init__(self, pair: EnginePair, total: int) -> None:
        self.pair = pair
        self.total = total
        self.seen: list[Signal] = []
        self.cancelled = 0
        self.over = asyncio.Event()

    async def wait(self, way: int) -> Signal:
        far, back = self.pair.far, self.pair.back
        if way == 0:
            return await anext(far.signals())
        return await far.wait_signal("ab"[way % 2], peer=back if way < 3 else None)

    async def worker(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self.over.is_set():
            waiting = asyncio.ensure_future(self.wait(chance.randrange(5)))
            if chance.random() < 0.5:
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                waiting.cancel()
            else:
                over = asyncio.ensure_future(self.over.wait())
                await asyncio.wait([waiting, over], return_when=asyncio.FIRST_COMPLETED)
                over.cancel()
                waiting.cancel()  # does nothing to one that is done
            await asyncio.wait([waiting])
            if waiting.cancelled():
                self.cancelled += 1
                continue
            self.seen.append(waiting.result())
            if len(self.seen) == self.total:
                self.over.set()


async def send_when_there_is_room(pair: EnginePair, name: str, payload: bytes = b"") -> int:
    """Returns how often there was none."""
    refused = 0
    while True:
        try:
            await pair.near.signal(pair.peer, name, payload)
        except SignalQueueFullError:
            refused += 1
            await asyncio.sleep(0)
        else:
            return refused


async def test_each_signal_reaches_exactly_one_of_many_waiters() -> None:
    """64 tasks wait by name, by name and peer, or for any, and half of them are cancelled on the way."""
    total = rounds(3000, 200_000)
    async with connected_engines(EngineOptions(signal_capacity=32)) as pair:
        taking = Taking(pair, total)
        chance = random.Random(0)
        async with asyncio.timeout(rounds(60, 1800)), asyncio.TaskGroup() as group:
            for seed in range(64):
                group.create_task(taking.worker(seed))
            for _ in range(total):
                await send_when_there_is_room(pair, chance.choice("ab"))
        sequences = sorted(signal.sequence for signal in taking.seen)
        assert sequences == list(range(sequences[0], sequences[0] + total))
        assert taking.cancelled > total // 10
        await check_quiescent(pair.far)


async def test_a_cancelled_waiter_puts_its_signal_back_to_the_front() -> None:
    """One receiver that is cancelled over and over, also with a signal in hand, sees them all in order."""
    total, chance, cancelled = rounds(3000, 200_000), random.Random(1), 0
    got: list[int] = []
    async with connected_engines(EngineOptions(signal_capacity=8)) as pair:

        async def send() -> None:
            for number in range(total):
                await send_when_there_is_room(pair, "s", number.to_bytes(4, "little"))
                if chance.random() < 0.1:
                    # Until all have been taken, so that several come at once to one who waits for the first.
                    while pair.far.statistics().unread_signals:  # noqa: ASYNC110
                        await asyncio.sleep(0)
                    for _ in range(chance.randrange(20)):
                        await asyncio.sleep(0)

        sending = asyncio.ensure_future(send())
        while len(got) < total:
            waiting = asyncio.ensure_future(pair.far.wait_signal("s"))
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                pair.far._runtime.on_readable()  # it may have a signal in hand now, and has not run yet
            if chance.random() < 0.7:
                waiting.cancel()
            await asyncio.wait([waiting])
            if waiting.cancelled():
                cancelled += 1
            else:
                got.append(int.from_bytes(waiting.result().payload, "little"))
        await sending
        assert got == list(range(total))
        assert cancelled > total // 10
        await check_quiescent(pair.far)


async def test_a_full_queue_refuses_and_loses_nothing() -> None:
    """What was accepted arrives once, in order; what was refused has moved no byte and arrives not at all."""
    total, refused = rounds(2000, 100_000), 0
    async with connected_engines(EngineOptions(signal_capacity=3)) as pair:
        target = await pair.far.allocate(4, label="target", access=Access.WRITE)
        source = await pair.near.allocate(4)
        await pair.peer.refresh()
        remote, taken = pair.peer.region("target"), 0

        async def take(number: int) -> None:
            nonlocal taken
            assert (await pair.far.wait_signal("s")).payload == number.to_bytes(4, "little")
            taken = number + 1

        for number in range(total):
            source.view()[:] = payload = number.to_bytes(4, "little")
            while True:
                before = bytes(target.view())
                try:
                    await pair.near.put(source, remote, signal="s", payload=payload)
                    break
                except SignalQueueFullError:
                    refused += 1
                    assert bytes(target.view()) == before
                    await take(taken)
            assert bytes(target.view()) == payload
        while taken < total:
            await take(taken)
        assert refused == total - 3
        await check_quiescent(pair.far)


# ---- many senders

ENGINES, TASKS = 8, 8


class Listening:
    """One engine that hears many, and checks every frame."""

    def __init__(self, engine: Engine, each: int) -> None:
        self.engine = engine
        self.total = ENGINES * TASKS * each
        self.each = each

    async def listen(self) -> None:
        sequences: dict[str, int] = {}
        numbers: collections.defaultdict[tuple[str, str], set[int]] = collections.defaultdict(set)
        heard = 0
        async for signal in self.engine.signals():
            who, task, number, _ = signal.payload.decode().split("/", 3)
            head = f"{who}/{task}/{number}/".encode()
            assert signal.payload == (head * 1024)[: len(signal.payload)], "the frame is whole"
            assert signal.name.rstrip("n") == f"t{task}"
            assert signal.error is None
            last = sequences.get(signal.peer.incarnation)
            assert last is None or signal.sequence == last + 1, "no gap, no repetition"
            sequences[signal.peer.incarnation] = signal.sequence
            assert int(number) not in numbers[signal.peer.incarnation, task]
            numbers[signal.peer.incarnation, task].add(int(number))
            heard += 1
            if heard == self.total:
                break
        assert len(sequences) == ENGINES
        assert set(map(len, numbers.values())) == {self.each}
        assert len(numbers) == ENGINES * TASKS


async def talk_alone(address: str, each: int, seed: int) -> int:
    """An engine on a loop of its own."""
    async with Engine(name=f"e{seed}") as engine:
        peer = await engine.connect(address)
        return await talk(engine, peer, tasks=TASKS, each=each, seed=seed)


async def in_threads(engine: Engine, each: int) -> None:
    loop = asyncio.get_running_loop()
    with concurrent.futures.ThreadPoolExecutor(ENGINES) as pool:
        runs = [
            loop.run_in_executor(pool, asyncio.run, talk_alone(engine.address, each, seed))
            for seed in range(ENGINES)
        ]
        assert await asyncio.gather(*runs) == [TASKS * each] * ENGINES


async def in_processes(engine: Engine, each: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(running_peer(engine, talk, tasks=TASKS, each=each, seed=seed))
            for seed in range(ENGINES)
        ]
        assert [await process.result() for process in processes] == [TASKS * each] * ENGINES


@pytest.mark.parametrize("spread", [in_threads, in_processes])
async def test_many_senders_keep_frames_whole_and_sequences_without_gaps(
    spread: Callable[[Engine, int], Coroutine[Any, Any, None]],
) -> None:
    """Eight engines with eight tasks each, in threads or in processes, send to one engine at once."""
    each = rounds(60, 3000)
    async with Engine(options=EngineOptions(signal_capacity=256)) as engine:
        await engine.allocate(4096, label="inbox", access=Access.WRITE)
        listening = asyncio.ensure_future(Listening(engine, each).listen())
        try:
            await asyncio.gather(spread(engine, each), listening)
        finally:
            listening.cancel()
        await check_quiescent(engine)
