"""The tree of errors: its shape, its messages, its pickles, and the registry of statuses."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hixl_aio import _failures, _native, errors
from hixl_aio.errors import HixlAioError, InvalidArgumentError, StaleRegionError, Status, TransferTimeoutError

CLASSES = [
    cls
    for name in errors.__all__
    if isinstance(cls := getattr(errors, name), type) and issubclass(cls, HixlAioError)
]
STATUS_H = Path(__file__).parents[2] / "native" / "include" / "hixl_aio" / "status.h"


def make(cls: type[HixlAioError]) -> HixlAioError:
    """One with as many fields as it has."""
    about = _failures.About(
        op="put",
        peer="127.0.0.1:5",
        nbytes=7,
        label="kv",
        generation=3,
        granted="READ",
        needed="WRITE",
        name="s",
    )
    for status in _failures.REGISTRY.statuses():
        error = _failures.REGISTRY.build(status, "what was said", about)
        if type(error) is cls:
            return error
    return cls("what was said")


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_pickles_with_its_fields(cls: type[HixlAioError]) -> None:
    """Class, message and fields survive pickle and copy."""
    error = make(cls)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is cls
        assert str(again) == str(error)
        assert vars(again) == vars(error)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_message_ends_with_what_to_do(cls: type[HixlAioError]) -> None:
    """The hint is the end of the message, and it is never empty."""
    error = make(cls)
    assert error.hint
    assert str(error).endswith(error.hint)
    assert "what was said" in str(error)
    assert cls.__module__ == "hixl_aio.errors"
    assert cls.__doc__


def test_the_tree_is_the_one_that_is_drawn() -> None:
    """The docstring of the module names each class, under its parent."""
    drawn = errors.__doc__ or ""
    for cls in CLASSES:
        assert re.search(rf"\b{cls.__name__}\b", drawn), f"{cls.__name__} is not drawn"
    families = (
        errors.UsageError,
        errors.TransferError,
        errors.PeerError,
        errors.EngineError,
        errors.ResourceExhaustedError,
        errors.InternalError,
    )
    for cls in CLASSES:
        assert cls is HixlAioError or sum(issubclass(cls, family) for family in families) == 1


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.InvalidArgumentError, ValueError),
        (errors.TransferTimeoutError, TimeoutError),
        (errors.ConnectTimeoutError, TimeoutError),
        (errors.PeerError, ConnectionError),
        (errors.UnsupportedError, NotImplementedError),
        (errors.UnclosedResourceWarning, ResourceWarning),
    ],
)
def test_builtin_kin(cls: type[BaseException], builtin: type[BaseException]) -> None:
    """Who catches the builtin catches ours."""
    assert issubclass(cls, builtin)


def test_messages_name_both_values() -> None:
    """What was found and what was expected, composed from the fields."""
    error = InvalidArgumentError(argument="nbytes", value=9, expected="at most 8", hint="Slice it.")
    assert str(error) == "nbytes is 9, expected at most 8. Slice it."
    stale = StaleRegionError(label="kv", generation=3, current=4)
    assert "generation 3" in str(stale)
    assert "generation 4" in str(stale)
    late = TransferTimeoutError(timeout=0.5, op="put", peer="a:1", nbytes=8, backend="host")
    assert (late.op, late.peer, late.nbytes, late.status, late.backend) == (
        "put",
        "a:1",
        8,
        Status.TIMED_OUT,
        "host",
    )
    assert "0.5 s" in str(late)
    assert InvalidArgumentError(argument="x", value=[1], expected="y").value == "[1]"


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if issubclass(cls, errors.TransferError)])
def test_a_signal_of_its_own_that_failed_is_not_said_to_have_bytes(cls: type[errors.TransferError]) -> None:
    """Neither their number nor that they are undefined; what to do is to send it again."""
    said = str(cls(op="signal", peer="a:1", backend="host"))
    assert said.startswith("signal with peer a:1 ")
    assert said.endswith("send it again if the peer still waits for it.")
    assert "0 bytes" not in said
    assert "undefined" not in said
    assert str(cls(op="signal", hint="Do this.")).endswith("Do this.")
    put = str(cls(op="put", peer="a:1", nbytes=8, backend="host"))
    assert put.startswith("put of 8 bytes with peer a:1 ")
    assert "send it again" not in put


@pytest.mark.parametrize(
    "make_error",
    [
        lambda label: StaleRegionError(label=label, generation=3),
        lambda label: errors.RegionBusyError(label=label, pins=1),
        lambda label: errors.AccessDeniedError(label=label, granted="READ", needed="WRITE"),
    ],
)
def test_a_region_without_a_label_is_called_that(make_error: Callable[[str], HixlAioError]) -> None:
    """Not ''; one with a label is called by it."""
    assert str(make_error("")).startswith("an unlabelled region ")
    assert str(make_error("kv")).startswith("region 'kv' ")


def test_statuses_are_those_of_the_native_core() -> None:
    """By name and value, in the header and in the built extension."""
    found = re.findall(r"^\s+(\w+) = (\d+),", STATUS_H.read_text(), re.MULTILINE)
    ours = {status.name.lower(): int(status) for status in Status}
    assert {name: int(value) for name, value in found} == ours
    assert ours == _native.STATUS


def test_every_status_has_exactly_one_class() -> None:
    """The registry covers all but `ok`, and refuses a second entry."""
    assert _failures.REGISTRY.statuses() == set(Status) - {Status.OK}
    with pytest.raises(ValueError, match="already"):
        _failures.REGISTRY.add(Status.FAILED, errors.TransferFailedError)


def test_native_codes_become_exceptions() -> None:
    """Positive, negative and unknown ones, and NativeError."""
    assert isinstance(_failures.from_status(Status.PEER_LOST), errors.PeerLostError)
    assert isinstance(_failures.from_status(-Status.STALE_REGION), errors.StaleRegionError)
    unknown = _failures.from_status(-999, "hm")
    assert isinstance(unknown, errors.InternalError)
    assert "-999" in str(unknown)
    assert isinstance(_failures.from_status(0), errors.InternalError)
    native = _native.NativeError("x")
    native.status, native.text = int(Status.ADDRESS_IN_USE), "port 5 is taken"
    error = _failures.from_native(native)
    assert isinstance(error, errors.EngineError)
    assert error.status is Status.ADDRESS_IN_USE
    assert "port 5" in str(error)
    hinted = _failures.from_status(Status.FAILED, "", _failures.About(hint="Do this."))
    assert str(hinted).endswith("Do this.")
