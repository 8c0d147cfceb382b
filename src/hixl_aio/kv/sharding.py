"""Who holds what, and who sends what to whom, between any number of ranks and stages on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hixl_aio.kv.errors import KVLayoutError, KVMissingError
from hixl_aio.kv.layout import shown

__all__ = ("Held", "Holding", "Share", "assign", "heads_of_rank", "layers_of_stage")


class Held(Protocol):
    """What an engine holds, as far as sharing out goes: a :class:`KVLayout` is one."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Numbers of layers in the whole model."""

    @property
    def heads(self) -> tuple[int, ...]:
        """Numbers of KV heads in the whole model; (0,) for latents."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What an engine holds whose layout is not known.

    Attributes:
        layers, heads: as in :class:`KVLayout`.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """What one source sends to one destination: `layers` and `heads` of a plan.

    Attributes:
        source, destination: their indexes among those given.
        layers, heads: what is sent.
    """

    source: int
    destination: int
    layers: tuple[int, ...]
    heads: tuple[int, ...]


def heads_of_rank(total: int, rank: int, size: int) -> tuple[int, ...]:
    """The KV heads of one rank of tensor parallelism, as engines share them out.

    With more ranks than heads each rank holds one, and neighbours hold the same; latents are one head of all
    ranks.

    Args:
        total: KV heads of the model.
        rank: the rank, below `size`.
        size: ranks; `total` and `size` must divide one another.

    Raises:
        KVLayoutError: they do not, or there is no such rank.
    """
    _check_part("rank", rank, size)
    if total <= 0 or (total % size and size % total):
        raise KVLayoutError(
            argument="total", value=total, expected=f"a multiple or a divisor of {size} ranks"
        )
    if size >= total:
        return (rank * total // size,)
    each = total // size
    return tuple(range(rank * each, (rank + 1) * each))


def layers_of_stage(total: int, stage: int, stages: int) -> tuple[int, ...]:
    """The layers of one stage of a pipeline, shared out evenly, the first stages taking what is left over.

    Engines differ in who gets the rest: give their own numbers where they say them.

    Args:
        total: layers of the model.
        stage: the stage, below `stages`.
        stages: how many there are.

    Raises:
        KVLayoutError: there is no such stage, or one would be empty.
    """
    _check_part("stage", stage, stages)
    if total < stages:
        raise KVLayoutError(
            argument="total", value=total, expected=f"at least one for each of {stages} stages"
        )
    each, rest = divmod(total, stages)
    start = stage * each + min(stage, rest)
    return tuple(range(start, start + each + (stage < rest)))


def assign(sources: Sequence[Held], destinations: Sequence[Held]) -> tuple[Share, ...]:
    """Choose one source for everything that each destination holds.

    Where several sources hold the same (replicated heads, latents, replicas of the whole), one of them sends
    all of it to a destination, and destinations are spread over them evenly. The result depends on the
    arguments alone, so that engines that know the same holdings come to the same result.

    Args:
        sources: those that have the bytes.
        destinations: those that get them.

    Raises:
        KVMissingError: no source holds some layers or heads of a destination.
    """
    loads = [0] * len(sources)
    shares: list[Share] = []
    for index, wanted in enumerate(destinations):
        found: dict[int, dict[tuple[int, ...], list[int]]] = {}
        for layers, having in _by_holders(wanted.layers, [each.layers for each in sources], "layers", None):
            for heads, able in _by_holders(wanted.heads, [each.heads for each in sources], "heads", having):
                source = min(able, key=lambda each: (loads[each], each))
                loads[source] += len(layers) * len(heads)
                found.setdefault(source, {}).setdefault(heads, []).extend(layers)
        for source in sorted(found):
            shares += [
                Share(source, index, tuple(sorted(layers)), heads) for heads, layers in found[source].items()
            ]
    return tuple(shares)


def _by_holders(
    wanted: Sequence[int], held: Sequence[Sequence[int]], name: str, among: Sequence[int] | None
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """What is wanted, in groups that the same sources hold, with these sources."""
    candidates = range(len(held)) if among is None else among
    sets = {each: frozenset(held[each]) for each in candidates}
    groups: dict[tuple[int, ...], list[int]] = {}
    for number in wanted:
        groups.setdefault(tuple(each for each in candidates if number in sets[each]), []).append(number)
    if () in groups:
        all_held = set().union(*sets.values()) if sets else set[int]()
        raise KVMissingError(argument=name, side="sources", wanted=shown(wanted), held=shown(all_held))
    return [(tuple(numbers), holders) for holders, numbers in groups.items()]


def _check_part(name: str, part: int, count: int) -> None:
    if not 0 <= part < count:
        raise KVLayoutError(argument=name, value=part, expected=f"0 to {count - 1}")
