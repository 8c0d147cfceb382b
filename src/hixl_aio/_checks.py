"""Checks that several calls share. Each refuses with the name and the value of the argument."""

from __future__ import annotations

import math
from typing import Final, overload

from hixl_aio.errors import InvalidArgumentError

__all__ = ("MAX_SECONDS", "check_seconds", "check_text")

MAX_SECONDS: Final = 1e9
"""About thirty years; event loops and the kernel take no more."""


@overload
def check_seconds(argument: str, value: object, *, positive: bool = ..., optional: bool) -> float | None: ...


@overload
def check_seconds(argument: str, value: object, *, positive: bool = ...) -> float: ...


def check_seconds(
    argument: str, value: object, *, positive: bool = False, optional: bool = False
) -> float | None:
    """A number of seconds.

    Raises:
        InvalidArgumentError: no number, negative, infinite, or too large for a clock.
    """
    if value is None and optional:
        return None
    if not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value < math.inf:
        if positive and not value:
            raise InvalidArgumentError(argument=argument, value=value, expected="seconds, more than 0")
        return float(min(value, MAX_SECONDS))
    expected = f"seconds, {'more than 0' if positive else '0 or more'}{', or None' if optional else ''}"
    raise InvalidArgumentError(argument=argument, value=value, expected=expected)


def check_text(argument: str, value: object, expected: str, limit: int | None = None) -> str:
    """A text that is not empty, that UTF-8 can encode, and that has at most `limit` bytes then.

    Raises:
        InvalidArgumentError: it is none.
    """
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(argument=argument, value=value, expected=expected)
    try:
        nbytes = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            str(error), argument=argument, value=ascii(value), expected="text that UTF-8 can encode"
        ) from None
    if limit is not None and nbytes > limit:
        raise InvalidArgumentError(
            argument=f"the length of {argument}", value=nbytes, expected=f"at most {limit} bytes of UTF-8"
        )
    return value
