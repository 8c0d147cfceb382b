"""Do strided planes of one tensor overlap? Answered from the strides, without looking at single rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ("Box", "overlapping")


@dataclass(frozen=True, slots=True)
class Box:
    """Rows that lie at `offset` plus any multiples of strides.

    Attributes:
        name: for the error.
        offset: of the first row.
        axes: (stride, count), the largest stride first; only counts above one.
        row: bytes of each row.
    """

    name: str
    offset: int
    axes: tuple[tuple[int, int], ...]
    row: int

    @property
    def stop(self) -> int:
        return self.offset + sum(stride * (count - 1) for stride, count in self.axes) + self.row


def overlapping(boxes: Sequence[Box]) -> tuple[str, str] | None:
    """Two names that share bytes, or that cannot be shown not to; a name beside itself: within one.

    What is common is decided exactly: regions one behind the other, and regions that alternate evenly.
    """
    for cluster in _clusters(boxes):
        found = _within(cluster)
        if found is not None:
            return found
    return None


def _clusters(boxes: Sequence[Box]) -> list[list[Box]]:
    """Those whose spans touch, together."""
    clusters: list[list[Box]] = []
    stop = -1
    for box in sorted(boxes, key=lambda each: each.offset):
        if clusters and box.offset < stop:
            clusters[-1].append(box)
        else:
            clusters.append([box])
        stop = max(stop, box.stop)
    return clusters


def _within(cluster: Sequence[Box]) -> tuple[str, str] | None:
    first, last = cluster[0], cluster[-1]
    if not first.axes or any(box.axes[:1] != first.axes[:1] for box in cluster):
        return (first.name, last.name) if len(cluster) > 1 else None
    # All repeat at the same stride: they are apart if one repetition of all fits into it, and is apart in
    # itself.
    stride = first.axes[0][0]
    inner = [Box(box.name, box.offset, box.axes[1:], box.row) for box in cluster]
    if max(box.stop for box in inner) - first.offset > stride:
        return first.name, last.name
    return overlapping(inner)
