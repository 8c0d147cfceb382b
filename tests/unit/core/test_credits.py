"""The line of one peer: order, credits, fences, flushes, room."""

from __future__ import annotations

from typing import Any

import pytest

from hixl_aio._core.credits import PeerLine, Posting
from hixl_aio._core.gate import Gate
from hixl_aio._core.optable import Operation, OperationKind, OperationState
from hixl_aio.errors import TransferFailedError, TransferQueueFullError


class Bench:
    """A line, and what it has posted."""

    def __init__(self, credits: int = 2, capacity: int = 1000) -> None:
        self.line = PeerLine(1, "a:1", self._post, credits=credits, capacity=capacity)
        self.posted: list[int] = []
        self.full = False
        self._tokens = 0

    def _post(self, operation: Operation) -> Posting:
        if self.full:
            return Posting.FULL
        self.posted.append(operation.token)
        if operation.nbytes == 0:
            operation.state = OperationState.SETTLED
            self.line.left(operation)
            return Posting.ENDED
        operation.state = OperationState.POSTED
        return Posting.POSTED

    def operation(self, nbytes: int = 1) -> Operation:
        self._tokens += 1
        return Operation(self._tokens, OperationKind.PUT, self.line, nbytes, NOBODY)

    def put(self, nbytes: int = 1) -> Operation:
        """Called and ready."""
        operation = self.operation(nbytes)
        self.line.call(operation)
        self.line.enter(operation)
        return operation

    def unready(self) -> Operation:
        """Called, not ready."""
        operation = self.operation()
        self.line.call(operation)
        return operation

    def end(self, operation: Operation) -> None:
        operation.state = OperationState.SETTLED
        self.line.ended(operation)

    def stop(self, operation: Operation) -> None:
        operation.state = OperationState.SETTLED
        self.line.left(operation)
        self.line.pump()


class _Nobody:
    def _conclude(self, operation: Operation, error: Any) -> None: ...

    def _release(self) -> None: ...


NOBODY = _Nobody()


def opened(woken: list[str], name: str) -> Gate:
    """A gate with one waiter."""
    gate = Gate(woken.append)
    gate.add(name)
    return gate


def test_operations_are_posted_in_the_order_of_the_calls_while_there_are_credits() -> None:
    """Two credits: two are posted, and each record posts the next."""
    bench = Bench(credits=2)
    operations = [bench.put() for _ in range(5)]
    assert bench.posted == [1, 2]
    assert (bench.line.inflight, bench.line.waiting, bench.line.idle) == (2, 3, False)
    bench.end(operations[1])
    assert bench.posted == [1, 2, 3]
    for operation in (operations[0], operations[2], operations[3], operations[4]):
        bench.end(operation)
    assert bench.posted == [1, 2, 3, 4, 5]
    assert bench.line.idle
    assert bench.line.quiet


def test_an_operation_that_is_not_ready_holds_up_nobody() -> None:
    """It enters the line when it is ready (INV-5)."""
    bench = Bench(credits=1)
    late = bench.unready()
    assert bench.line.idle
    first, second = bench.put(), bench.put()
    bench.line.enter(late)
    bench.end(first)
    bench.end(second)
    assert bench.posted == [2, 3, 1]


def test_a_fence_waits_for_everything_called_before() -> None:
    """Also for what is not ready, and also when everything before it has been stopped."""
    bench = Bench(credits=9)
    early, late = bench.put(), bench.unready()
    bench.line.fence()
    bench.line.fence()
    after = bench.put()
    assert not bench.line.idle
    bench.end(early)
    assert bench.posted == [1]
    bench.line.enter(late)
    assert bench.posted == [1, 2]
    bench.end(late)
    assert bench.posted == [1, 2, 3]
    bench.end(after)
    assert bench.line.idle
    held = bench.unready()
    bench.line.fence()
    bench.put()
    bench.stop(held)
    assert bench.posted[-1] == 5


def test_a_fence_with_nothing_before_it_is_nothing() -> None:
    """The line stays idle."""
    bench = Bench()
    bench.line.fence()
    assert bench.line.idle


def test_what_ends_at_once_takes_no_credit() -> None:
    """Signals and empty transfers end while they are posted."""
    bench = Bench(credits=1)
    first = bench.put()
    bench.put(0)
    bench.put(0)
    assert bench.posted == [1]
    bench.end(first)
    assert bench.posted == [1, 2, 3]
    assert bench.line.quiet
    assert bench.line.idle


def test_no_native_slot_is_like_no_credit() -> None:
    """The operation keeps its place at the head of the line."""
    bench = Bench(credits=5)
    bench.full = True
    bench.put()
    bench.put()
    assert bench.posted == []
    assert bench.line.stalled
    assert not bench.line.idle
    bench.full = False
    bench.line.pump()
    assert bench.posted == [1, 2]
    assert not bench.line.stalled


def test_a_full_line_refuses_with_its_numbers() -> None:
    """What waits for a credit and what is not ready both count."""
    bench = Bench(credits=1, capacity=3)
    bench.put()
    bench.put()
    bench.put()
    bench.unready()
    with pytest.raises(TransferQueueFullError) as full:
        bench.line.check_room()
    assert (full.value.waiting, full.value.limit, full.value.peer) == (3, 3, "a:1")


def test_room_is_offered_first_come_first_served() -> None:
    """One place, one offer; who goes away passes it on."""
    bench = Bench(credits=1, capacity=1)
    first, second = bench.put(), bench.put()
    woken: list[str] = []
    gates = [opened(woken, name) for name in "abc"]
    for gate in gates:
        bench.line.want_room(gate)
    assert not bench.line.has_room()
    bench.end(first)
    assert woken == ["a"]
    bench.line.drop_room(gates[0])
    assert woken == ["a", "b"]
    bench.line.drop_room(gates[2])
    bench.line.offer_room()
    assert woken == ["a", "b"]
    bench.end(second)


def test_a_flush_waits_for_what_was_called_before_only() -> None:
    """Several flushes at once, with operations between them; a failure is kept for them."""
    bench = Bench(credits=9)
    woken: list[str] = []
    assert bench.line.flush(lambda: opened(woken, "none")) is None
    first = bench.put()
    one = bench.line.flush(lambda: opened(woken, "one"))
    same = bench.line.flush(lambda: opened(woken, "never made"))
    assert one is not None
    assert same is not None
    assert one[0] is same[0]
    second = bench.put()
    two = bench.line.flush(lambda: opened(woken, "two"))
    assert two is not None
    third = bench.put()
    assert bench.posted == [1, 2, 3]  # a flush is no fence
    second.state = OperationState.SETTLED
    bench.line.ended(second, TransferFailedError())
    assert woken == []
    bench.end(first)
    assert woken == ["one", "two"]
    assert one[1].failure is None
    assert two[1].failure is not None
    bench.line.ended(bench_posted(bench), TransferFailedError())
    late = bench.put()
    three = bench.line.flush(lambda: opened(woken, "three"))
    assert three is not None
    bench.end(late)
    assert three[1].failure is None  # what failed before it was called is not its news
    bench.end(third)
    assert bench.line.idle


def bench_posted(bench: Bench) -> Operation:
    """One more operation, posted and over."""
    operation = bench.put()
    operation.state = OperationState.SETTLED
    return operation


def test_thousands_of_stopped_operations_do_not_stay() -> None:
    """What was stopped in line is skipped, and swept when there is much of it."""
    bench = Bench(credits=1, capacity=10_000)
    head = bench.put()
    waiting = [bench.put() for _ in range(5000)]
    for operation in waiting[:4990]:
        bench.stop(operation)
    epoch = waiting[-1].epoch
    assert epoch is not None
    assert len(epoch.queue) < 100
    assert bench.line.waiting == 10
    bench.end(head)
    for operation in waiting[4990:]:
        bench.end(operation)
    assert bench.posted == [1, *range(4992, 5002)]
    assert bench.line.quiet


def test_a_line_that_is_down_posts_nothing_and_lets_everybody_go() -> None:
    """Whoever waits for room looks again and finds out why."""
    bench = Bench(credits=1, capacity=1)
    first = bench.put()
    bench.put()
    woken: list[str] = []
    bench.line.want_room(opened(woken, "a"))
    bench.line.take_down()
    assert woken == ["a"]
    bench.end(first)
    assert bench.posted == [1]
    assert not bench.line.idle
