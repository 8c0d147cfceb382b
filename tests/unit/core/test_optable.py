"""The op table: tokens, pins, counters, exactly one settlement."""

from __future__ import annotations

from typing import Any

import pytest

from hixl_aio._core.credits import PeerLine, Posting
from hixl_aio._core.gate import Gate
from hixl_aio._core.optable import Operation, OperationKind, OperationState, OperationTable
from hixl_aio._core.regions import RegionRecord
from hixl_aio.errors import InternalError


class Outcome:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.released = 0

    def _conclude(self, operation: Operation, error: Any) -> None: ...

    def _release(self) -> None:
        self.released += 1


def line() -> PeerLine:
    return PeerLine(1, "a:1", lambda _: Posting.POSTED, credits=1, capacity=1)


def region() -> RegionRecord:
    return RegionRecord((1, 1, 64, 0x1000, 0, 0, "r"), owner=None, readonly=False, keep=None)


def test_tokens_only_grow() -> None:
    """None is used twice (INV-9)."""
    table = OperationTable()
    tokens = [table.next_token() for _ in range(1000)]
    assert tokens == sorted(set(tokens))


def test_states_are_counted_with_their_bytes() -> None:
    """From waiting to settled, each move shows in count and bytes, and pins hold from first to last."""
    table, record, outcome = OperationTable(), region(), Outcome()
    operation = Operation(table.next_token(), OperationKind.PUT, line(), 64, outcome)
    operation.pins = (record,)
    table.add(operation)
    assert (record.pins, table.totals.nbytes[OperationState.WAITING]) == (1, 64)
    for state in (OperationState.POSTED, OperationState.ABANDONED, OperationState.QUARANTINED):
        table.move(operation, state)
        assert [count for count in table.totals.counts if count] == [1]
        assert table.totals.nbytes[state] == 64
    woken: list[str] = []
    empty = table.empty_gate(lambda _: None)
    assert empty is not None
    operation.settled = Gate(woken.append)
    operation.settled.add("waiter")
    table.settle(operation)
    assert (record.pins, outcome.released, len(table), woken, empty.is_open) == (0, 1, 0, ["waiter"], True)
    assert table.empty_gate(lambda _: None) is None
    assert table.find(operation.token) is None


def test_an_operation_settles_exactly_once() -> None:
    """A second settlement, or a token that is used twice, is an error of ours (INV-1)."""
    table = OperationTable()
    operation = Operation(1, OperationKind.GET, line(), 1, Outcome())
    table.add(operation)
    with pytest.raises(InternalError):
        table.add(Operation(1, OperationKind.GET, line(), 1, Outcome()))
    table.settle(operation)
    with pytest.raises(InternalError):
        table.settle(operation)


def test_operations_of_one_line_are_found_in_order() -> None:
    """For the end of a peer."""
    table, one, other = OperationTable(), line(), line()
    made = [Operation(n, OperationKind.PUT, one if n % 2 else other, 1, Outcome()) for n in range(1, 7)]
    for operation in made:
        table.add(operation)
    assert [operation.token for operation in table.of_line(one)] == [1, 3, 5]
    assert [operation.token for operation in table] == [1, 2, 3, 4, 5, 6]


def test_the_last_pin_opens_the_gate_of_the_region() -> None:
    """And an unpin too many is an error of ours."""
    record = region()
    record.pins = 2
    record.busy_gate = gate = Gate(lambda _: None)
    record.unpin()
    assert not gate.is_open
    record.unpin()
    assert gate.is_open
    with pytest.raises(InternalError):
        record.unpin()


def test_a_gate_opens_once() -> None:
    """Whoever comes later goes through, whoever left is not woken."""
    woken: list[str] = []
    gate = Gate(woken.append)
    assert gate.add("a")
    assert gate.add("b")
    gate.discard("a")
    gate.discard("never came")
    gate.open()
    gate.open()
    assert woken == ["b"]
    assert not gate.add("c")
