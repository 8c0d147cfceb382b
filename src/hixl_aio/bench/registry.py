"""All workloads, in the order in which they run."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from hixl_aio.bench.errors import SelectionError
from hixl_aio.bench.growth import growth
from hixl_aio.bench.life import idling, starts
from hixl_aio.bench.operations import batches, rates, table
from hixl_aio.bench.pages import pages
from hixl_aio.bench.shares import shares
from hixl_aio.bench.signals import signals
from hixl_aio.bench.stalls import stalls
from hixl_aio.bench.transfers import transfers
from hixl_aio.bench.workload import Workload

__all__ = ("all_workloads", "families", "select")


def all_workloads() -> tuple[Workload, ...]:
    """All of them."""
    return (
        *transfers(),
        *table(),
        *rates(),
        *batches(),
        *signals(),
        *shares(),
        *stalls(),
        *pages(),
        *starts(),
        *idling(),
        *growth(),
    )


def families() -> frozenset[str]:
    """The first parts of all names."""
    return frozenset(workload.family for workload in all_workloads())


def select(patterns: Sequence[str], *, quick: bool) -> tuple[Workload, ...]:
    """Those that a run has.

    Args:
        patterns: names with `*` and `?`, or the beginnings of names; empty: all.
        quick: only those of the quick run.

    Raises:
        SelectionError: a pattern matches nothing.
    """
    found = [workload for workload in all_workloads() if workload.quick or not quick]
    for pattern in patterns:
        if not any(_matches(workload, pattern) for workload in found):
            raise SelectionError(pattern)
    return tuple(
        workload
        for workload in found
        if not patterns or any(_matches(workload, pattern) for pattern in patterns)
    )


def _matches(workload: Workload, pattern: str) -> bool:
    return fnmatch.fnmatchcase(workload.name, pattern) or f"{workload.name}.".startswith(f"{pattern}.")
