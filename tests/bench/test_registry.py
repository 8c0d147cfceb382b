"""Which workloads there are."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hixl_aio.bench.errors import SelectionError
from hixl_aio.bench.registry import all_workloads, families, select
from hixl_aio.bench.run import BenchOptions

# What the project has set itself; see docs/howto/bench.md.
TARGETS = {
    "put.shm.128B",
    "get.shm.128B",
    "put.shm.128KiB",
    "put.shm.16MiB",
    "put.shm.128MiB",
    "put.shm.1GiB",
    "put.cma.128MiB",
    "put.cma.1GiB",
    "signal.wake.shm",
    "rate.shm.64",
    "table.128x4KiB-batch",
    "batch.shuffled.100000",
    "stall.initiator.1",
    "stall.target.1",
    "idle.initiator",
    "idle.target",
    "growth.peers.256",
    "growth.regions.100000",
    "growth.outstanding.100000",
    "start.import",
    "start.engine",
}


def test_names_are_unique() -> None:
    """A name says which result it is."""
    names = [workload.name for workload in all_workloads()]
    assert len(names) == len(set(names))


def test_every_target_is_measured() -> None:
    """Those, and no others."""
    assert {workload.name for workload in all_workloads() if workload.target is not None} == TARGETS


@pytest.mark.parametrize("link", ["shm", "cma", "cooperative"])
@pytest.mark.parametrize("kind", ["put", "get"])
def test_sizes_go_from_8_bytes_to_1_gib(kind: str, link: str) -> None:
    """In powers of four at most apart."""
    sizes = sorted(
        int(workload.params["nbytes"])
        for workload in all_workloads()
        if workload.name.startswith(f"{kind}.{link}.")
    )
    assert (sizes[0], sizes[-1]) == (8, 1 << 30)
    assert all(high <= 4 * low for low, high in pairwise(sizes))


def test_the_quick_run_has_some_of_everything() -> None:
    """Each family, and less of it."""
    quick = select((), quick=True)
    assert {workload.family for workload in quick} == families()
    assert len(quick) < len(all_workloads())


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("put.shm.128B", {"put.shm.128B"}),
        ("*.shm.8B", {"put.shm.8B", "get.shm.8B"}),
        (
            "signal",
            {
                "signal.roundtrip",
                "signal.wake.shm",
                "signal.wake.cma",
                "signal.wake.cooperative",
                "signal.wake.shm-spin",
            },
        ),
    ],
)
def test_a_pattern_is_a_name_or_the_beginning_of_names(pattern: str, expected: set[str]) -> None:
    """A beginning ends at a dot."""
    assert {workload.name for workload in select((pattern,), quick=False)} == expected


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    """And named."""
    with pytest.raises(SelectionError, match=r"put\.shm\.1B"):
        select(("put.shm.128B", "put.shm.1B"), quick=False)


def test_what_has_nothing_to_do_with_the_loop_runs_once() -> None:
    """On the first loop only."""
    plan = BenchOptions(select(("start",), quick=True), ("asyncio", "uvloop"), quick=True).plan()
    assert [(loop, workload.name) for loop, workload in plan] == [
        ("asyncio", "start.import"),
        ("asyncio", "start.engine"),
        ("uvloop", "start.engine"),
    ]
