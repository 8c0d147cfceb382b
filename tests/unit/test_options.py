"""Options, environment and the choice of a backend."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from hixl_aio import (
    DEFAULT,
    BackendUnavailableError,
    Engine,
    EngineOptions,
    InvalidArgumentError,
    UnsupportedError,
)
from hixl_aio.options import Environment, choose_backend


def test_defaults_are_those_of_the_design() -> None:
    """And they are valid."""
    options = EngineOptions()
    assert (options.credits_per_peer, options.line_capacity, options.signal_capacity) == (1024, 65536, 4096)
    assert (options.transfer_timeout, options.cancel_grace) == (30.0, 5.0)
    assert options.copy_threads is not None
    assert 1 <= options.copy_threads <= 4
    assert (options.links, options.timeout_policy, options.drain_limit) == ((), "drain", 256)
    assert repr(DEFAULT) == "DEFAULT"
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.drain_limit = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "bad",
    [
        {"transfer_timeout": -1},
        {"transfer_timeout": math.nan},
        {"transfer_timeout": "30"},
        {"transfer_timeout": True},
        {"cancel_grace": None},
        {"spin": None},
        {"spin": -1e-6},
        {"cancel_grace": math.inf},
        {"drain_timeout": -0.1},
        {"credits_per_peer": 0},
        {"line_capacity": 1.5},
        {"signal_capacity": 0},
        {"chunk_nbytes": 100},
        {"inline_nbytes": -1},
        {"stream_nbytes": -1},
        {"copy_threads": 0},
        {"copy_threads": True},
        {"drain_limit": 0},
        {"max_regions": 0},
        {"max_operations": 0},
        {"links": "shm"},
        {"links": ("shm", "rdma")},
        {"links": ("shm", "shm")},
        {"links": (1,)},
        {"timeout_policy": "retry"},
        {"allow_ptrace": 1},
        {"huge_pages": "yes"},
        {"populate": None},
    ],
    ids=lambda bad: "-".join(f"{name}={value}" for name, value in bad.items()),
)
def test_values_that_cannot_be_are_refused(bad: dict[str, Any]) -> None:
    """With the option's name, its value and what it may be."""
    with pytest.raises(InvalidArgumentError) as refused:
        EngineOptions(**bad)
    assert refused.value.argument == f"EngineOptions.{next(iter(bad))}"
    assert refused.value.expected


def test_values_that_may_be_none() -> None:
    """No deadline, no limit for draining."""
    options = EngineOptions(transfer_timeout=None, drain_timeout=None, links=["cma", "shm"])  # type: ignore[arg-type]
    assert options.links == ("cma", "shm")


def test_the_environment_is_read_and_checked() -> None:
    """Each variable, and refusal of values that mean nothing."""
    found = Environment.read(
        {
            "HIXL_AIO_DEBUG": "1",
            "HIXL_AIO_LOG": "Info",
            "HIXL_AIO_BACKEND": "HOST",
            "HIXL_AIO_KEY": "secret",
            "HIXL_AIO_HIXL_LIBRARY": "/opt/libhixl.so",
        }
    )
    assert found == Environment(
        debug=True, log="info", backend="host", key=b"secret", hixl_library="/opt/libhixl.so"
    )
    assert Environment.read({}) == Environment()
    assert not Environment.read({"HIXL_AIO_DEBUG": "off"}).debug
    for bad in ({"HIXL_AIO_DEBUG": "maybe"}, {"HIXL_AIO_LOG": "loud"}):
        with pytest.raises(InvalidArgumentError):
            Environment.read(bad)


def test_the_backend_is_chosen_by_code_then_by_the_environment() -> None:
    """`auto` asks the environment; what is not there says what it needs; a key is never ignored."""
    assert choose_backend("auto", None, Environment()) == "host"
    assert choose_backend("auto", None, Environment(backend="host")) == "host"
    assert choose_backend("host", None, Environment(backend="ucx")) == "host"
    for backend, environment in (
        ("hixl", Environment()),
        ("ucx", Environment()),
        ("auto", Environment(backend="hixl")),
    ):
        with pytest.raises(BackendUnavailableError) as missing:
            choose_backend(backend, None, environment)
        assert missing.value.missing in str(missing.value)
    for backend, environment in (("tcp", Environment()), ("auto", Environment(backend="tcp"))):
        with pytest.raises(InvalidArgumentError):
            choose_backend(backend, None, environment)
    for key, environment in ((b"k", Environment()), (None, Environment(key=b"k"))):
        with pytest.raises(UnsupportedError):
            choose_backend("host", key, environment)
    with pytest.raises(InvalidArgumentError):
        choose_backend("host", "text", Environment())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"address": ""}, InvalidArgumentError),
        ({"address": 5}, InvalidArgumentError),
        ({"name": ""}, InvalidArgumentError),
        ({"name": "x" * 256}, InvalidArgumentError),
        ({"options": {}}, InvalidArgumentError),
        ({"insecure": 1}, InvalidArgumentError),
        ({"backend": "hixl"}, BackendUnavailableError),
        ({"key": b"k"}, UnsupportedError),
    ],
)
def test_an_engine_checks_its_arguments_before_anything_is_opened(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    """Wrong arguments raise where they are written."""
    with pytest.raises(error):
        Engine(**arguments)


def test_the_reference_lists_every_option() -> None:
    """Each field of EngineOptions has its line, in the same order; no line is of a field that is gone."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "options.md"
    table = page.read_text().split("|---|---|---|")[1].split("\n\n")[0]
    listed = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert listed == [field.name for field in dataclasses.fields(EngineOptions)]
