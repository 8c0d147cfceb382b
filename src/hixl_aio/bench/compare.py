"""What got slower between two runs: by the ratio to the floor of each run, never by seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from hixl_aio.bench.report import Report, Result
from hixl_aio.bench.statistics import Spread

__all__ = ("Change", "Comparison", "Kind", "compare")

_WORTH_A_WORD: Final = 1.1
_WORTH_A_WORD_OF_MEMORY: Final = 1.25

Kind: TypeAlias = Literal["slower", "faster", "same", "broke", "gone", "new", "no floor"]


@dataclass(frozen=True, slots=True)
class Change:
    """One workload on one loop, in both runs.

    Attributes:
        name, loop: which one.
        kind: what became of it.
        floor: what both were compared with; empty: bytes, or nothing.
        old, new: the ratios to that floor; None where there is none.
    """

    name: str
    loop: str
    kind: Kind
    floor: str = ""
    old: Spread | None = None
    new: Spread | None = None

    @property
    def factor(self) -> float:
        """By how much it changed: 1.0 is not at all."""
        if self.old is None or self.new is None or not self.old.median:
            return 1.0
        return self.new.median / self.old.median


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs side by side.

    Attributes:
        changes: all workloads of either run, the worst first.
    """

    changes: tuple[Change, ...]

    @property
    def worse(self) -> bool:
        """Did anything get slower or break?"""
        return any(change.kind in ("slower", "broke") for change in self.changes)


def compare(old: Report, new: Report) -> Comparison:
    """Set two runs side by side.

    A workload is slower if its ratio grew by a tenth at least, and the middle halves of the rounds of both
    runs do not touch. Memory, which has no floor, is compared by bytes, and has to grow by a quarter.
    """
    changes = sorted(_changes(old, new), key=lambda change: -change.factor)
    return Comparison(tuple(changes))


def _changes(old: Report, new: Report) -> Iterator[Change]:
    before = {(result.name, result.loop): result for result in old.results}
    for result in new.results:
        earlier = before.pop((result.name, result.loop), None)
        if earlier is None or earlier.work is None:
            yield Change(result.name, result.loop, "new")
        elif result.work is None:
            yield Change(result.name, result.loop, "broke")
        else:
            yield _change(earlier, result)
    for name, loop in before:
        yield Change(name, loop, "gone")


def _change(old: Result, new: Result) -> Change:
    if new.unit == "B":
        return _judged(new, "", _bytes(old), _bytes(new), _WORTH_A_WORD_OF_MEMORY)
    floor = next((name for name in (new.floor, old.floor) if name in old.floors and name in new.floors), "")
    if not floor:
        return Change(new.name, new.loop, "no floor")
    return _judged(new, floor, old.ratios[floor], new.ratios[floor], _WORTH_A_WORD)


def _bytes(result: Result) -> Spread:
    assert result.work is not None
    return Spread(result.work.median, result.work.low, result.work.high)


def _judged(new: Result, floor: str, before: Spread, after: Spread, worth: float) -> Change:
    kind: Kind = "same"
    if after.low > before.high and after.median > before.median * worth:
        kind = "slower"
    elif after.high < before.low and after.median * worth < before.median:
        kind = "faster"
    return Change(new.name, new.loop, kind, floor, before, after)
