"""The comparison of two runs, and the hashes it compares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hixl_aio.demo.messages import Trace
from hixl_aio.demo.models import Model
from hixl_aio.demo.verify import first_difference, kv_hashes, logits_hash

from .support import new_cache, prefill

TRACE = Trace(0, (4, 5), ("k0", "v0", "k1", "v1"), ("a", "b", "c"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv": ("k0", "v0", "k1", "x")}, "the KV bytes differ first in V of layer 1"),
        ({"kv": ("x", "v0", "k1", "x")}, "the KV bytes differ first in K of layer 0"),
        ({"logits": ("a", "x", "c")}, "the logits differ first at step 1"),
        ({"logits": ("a", "b")}, "the logits differ first at step 2"),
        ({"tokens": (4, 6)}, "the tokens differ first at step 1"),
        ({"tokens": (4,)}, "the tokens differ first at step 1"),
        ({"tokens": (4, 5, 6)}, "the tokens differ first at step 2"),
        ({"tokens": (9, 5), "logits": ("a", "x", "c")}, "the tokens differ first at step 0"),
    ],
)
def test_the_first_difference_is_named(change: dict[str, tuple[str, ...]], words: str) -> None:
    """Of all differences the first in the order of events is named, with its prompt."""
    other = replace(TRACE, request=1)
    changed = replace(other, **change)  # type: ignore[arg-type]
    assert first_difference([TRACE, changed], [TRACE, other]) == f"prompt 2: {words}"
    assert first_difference([TRACE, other], [TRACE, other]) is None


def test_hashes_see_every_bit(tiny: Model) -> None:
    """K and V of each layer have a hash of their own, and one flipped bit changes that one alone."""
    tokens = tiny.tokenizer.encode("hello")
    cache = new_cache(tiny.config, 8)
    prefill(tiny, tokens, cache)
    before = kv_hashes(cache, len(tokens))
    assert len(before) == 2 * tiny.config.layers
    cache.values(1, len(tokens)).view(np.uint32)[2, 1, 3] ^= 1
    after = kv_hashes(cache, len(tokens))
    assert [index for index in range(len(before)) if before[index] != after[index]] == [3]


def test_logits_hash() -> None:
    """Equal logits have equal hashes, others have not; minus zero is not zero."""
    one = np.array([0.0, 1.0], dtype=np.float32)
    assert logits_hash(one) == logits_hash(one.copy())
    assert logits_hash(one) != logits_hash(np.array([-0.0, 1.0], dtype=np.float32))
