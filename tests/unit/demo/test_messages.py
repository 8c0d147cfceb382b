"""The lines between the parent and its children."""

from __future__ import annotations

import pytest

from hixl_aio.demo.errors import HandoffError
from hixl_aio.demo.messages import (
    Done,
    Failed,
    Fetched,
    Generated,
    Message,
    Setup,
    Text,
    Trace,
    decode_message,
    encode_message,
)


@pytest.mark.parametrize(
    "message",
    [
        Setup("tiny", None, ("a\nb", "中文", "\udcff"), 5, True, "auto", ("shm",)),
        Text(3, "line\u2028break\r\n"),
        Generated(1, (1, 2, 3), False, 2, 0.25),
        Trace(0, (), ("ab",), ()),
        Fetched("/a/b"),
        Failed("OSError", "x", consequence=True),
        Done(),
    ],
)
def test_round_trip(message: Message) -> None:
    """Every message is one line and comes back equal."""
    line = encode_message(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_message(line) == message


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"noise\n",
        b"[]\n",
        b"{}\n",
        b'{"kind": "Nothing"}\n',
        b'{"kind": "Text"}\n',
        b'{"kind": "Done", "x": 1}\n',
    ],
)
def test_anything_else_is_refused(line: bytes) -> None:
    """A line that is no message is a HandoffError, whatever is wrong with it."""
    with pytest.raises(HandoffError, match="is no message"):
        decode_message(line)
