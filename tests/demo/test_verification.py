"""`--verify` fails when it must, and names the first difference."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .harness import Demo, options


def sabotaged(kind: str, *, verify: bool) -> list[str]:
    chosen = options(verify=verify, max_tokens=12)
    return [sys.executable, "-m", "tests.demo.parent", chosen, "tests.demo.sabotage", kind]


@pytest.mark.parametrize(
    ("kind", "difference"),
    [
        ("flip", "prompt 2: the KV bytes differ first in V of layer 2"),
        ("drop", "prompt 2: the KV bytes differ first in K of layer 1"),
        ("swap", "prompt 1: the KV bytes differ first in K of layer 0"),
        ("late", "prompt 1: the logits differ first at step 1"),
    ],
)
def test_what_goes_wrong_is_found(tmp_path: Path, kind: str, difference: str) -> None:
    """One bit, one layer, one slot or one late write that is wrong: status 1 and where it was first seen."""
    with Demo(tmp_path, sabotaged(kind, verify=True)) as demo:
        assert demo.finish() == 1
        assert demo.messages()[-1] == f"hixl-aio demo: verification failed: {difference}"
        assert "Verified" not in demo.out


@pytest.mark.parametrize("kind", ["drop", "swap"])
def test_what_never_arrived_is_not_computed_with(tmp_path: Path, kind: str) -> None:
    """Also without verification a cache that was not written ends the run with a line that says so."""
    with Demo(tmp_path, sabotaged(kind, verify=False)) as demo:
        assert demo.finish() == 1
        [line] = demo.messages()
        assert "had never been written" in line or "choose another token than prefill did" in line
        assert "run with --verify" in line
