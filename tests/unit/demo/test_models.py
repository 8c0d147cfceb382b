"""The two models behind one interface."""

from __future__ import annotations

import numpy as np
import pytest

from hixl_aio.demo.errors import DownloadError
from hixl_aio.demo.models import TINY_CONFIG, Model, load_model, tiny_weights

from .support import say


def test_tiny_is_the_same_every_time() -> None:
    """Two builds of the tiny model have the same bits; another seed has others."""
    one, two, other = tiny_weights(), tiny_weights(), tiny_weights(seed=1)
    assert np.array_equal(one.embedding, two.embedding)
    assert all(np.array_equal(a.qkv, b.qkv) for a, b in zip(one.layers, two.layers, strict=True))
    assert not np.array_equal(one.embedding, other.embedding)


def test_tiny_speaks_printable_noise(tiny: Model) -> None:
    """The tiny model answers in printable characters, without end, and not always the same one."""
    answer = say(tiny, "anything", 80)
    assert len(answer) == 80
    assert answer.isprintable()
    assert len(set(answer)) > 10


def test_tiny_reads_its_prompt(tiny: Model) -> None:
    """Another prompt gives another answer."""
    assert say(tiny, "one", 20) != say(tiny, "two", 20)


def test_both_have_the_same_interface(tiny: Model, smollm2: Model) -> None:
    """Both know their shape, their vocabulary and their end token."""
    assert tiny.config == TINY_CONFIG
    for model in (tiny, smollm2):
        assert len(model.tokenizer) == model.config.vocabulary
        assert model.tokenizer.end_token == 2
    assert smollm2.config.kv_bytes_per_token == 46_080


def test_smollm2_without_a_file_is_a_clear_error() -> None:
    """Loading the real model without its file says how to go on without it."""
    with pytest.raises(DownloadError, match="--model tiny"):
        load_model("smollm2")
