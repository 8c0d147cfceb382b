"""Names and payloads of signals, before they go anywhere."""

from __future__ import annotations

from typing import Any

import pytest

from hixl_aio import InvalidArgumentError
from hixl_aio.signals import check_payload, encode_name


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
