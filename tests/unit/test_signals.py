"""Names and payloads of signals, before they go anywhere."""

from __future__ import annotations

from typing import Any

import pytest

from hixl_aio import InvalidArgumentError, Signal, SignalError
from hixl_aio._native import NativeError, maker
from hixl_aio.signals import check_payload, encode_name, make_signal, received_name


def test_what_fits_is_taken() -> None:
    """Text of 1 to 1024 bytes, and bytes of any kind up to 1024."""
    assert encode_name("\N{SNOWMAN}") == "\N{SNOWMAN}".encode()
    assert len(encode_name("x" * 1024)) == 1024
    for payload in (b"", b"x" * 1024, bytearray(b"ab"), memoryview(b"ab")):
        assert check_payload(payload) == bytes(payload)


@pytest.mark.parametrize("name", ["", "x" * 1025, "\N{SNOWMAN}" * 342, b"bytes", None, 3])
def test_names_that_do_not_fit_are_refused(name: Any) -> None:
    """With the limit in the message."""
    with pytest.raises(InvalidArgumentError):
        encode_name(name)


def test_a_backend_may_take_less() -> None:
    """The message says how much."""
    assert check_payload(b"x" * 9, 9) == b"x" * 9
    with pytest.raises(InvalidArgumentError, match="at most 9 bytes"):
        check_payload(b"x" * 10, 9)


@pytest.mark.parametrize("payload", [b"x" * 1025, "text", None, [1]])
def test_payloads_that_do_not_fit_are_refused(payload: Any) -> None:
    """Larger data belongs into a region."""
    with pytest.raises(InvalidArgumentError):
        check_payload(payload)


def test_a_signal_that_native_code_makes_is_like_any_other() -> None:
    """Equal to one from its constructor, with the same repr and hash, and as frozen."""
    error = SignalError(name="n", peer="p")
    peer: Any = "a peer"
    made = make_signal("n", b"x", peer, 7, error, 8, 9)
    plain = Signal("n", b"x", peer, 7, error, 8, 9)
    assert made == plain
    assert (repr(made), hash(made)) == (repr(plain), hash(plain))
    assert (made.error, made.arrival, made.source) == (error, 8, 9)
    with pytest.raises(AttributeError):
        made.sequence = 8  # type: ignore[misc]


def test_makers_refuse_what_they_cannot_make() -> None:
    """Too few values, values by name, and names that are no slots."""
    with pytest.raises(TypeError, match="7 values"):
        make_signal("n")
    with pytest.raises(TypeError):
        make_signal("n", b"x", None, 7, None, 8, source=9)
    for cls, name in ((Signal, "__eq__"), (int, "real")):
        with pytest.raises(NativeError, match="is no slot"):
            maker(cls, (name,))
    with pytest.raises(AttributeError):
        maker(Signal, ("nothing",))


@pytest.mark.parametrize("name", ["ascii", "\N{SNOWMAN}", "\udc80"])
def test_a_name_is_waited_for_as_it_arrives(name: str) -> None:
    """Also one that is no text by the rules: the receiver sees escapes in its place."""
    assert received_name(name) == encode_name(name).decode("utf-8", "backslashreplace")
