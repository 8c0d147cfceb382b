"""A request's blocks and tokens: what callers say of them, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from hixl_aio.kv._runs import Ints
from hixl_aio.kv.errors import KVMismatchError, KVOverlapError, KVRangeError
from hixl_aio.kv.layout import KVLayout

__all__ = ("SIDES", "BlockTable", "Blocks", "check_blocks", "check_once", "table_of", "tokens_of")

SIDES: Final = ("source", "destination")

Blocks: TypeAlias = Any
"""Numbers of blocks in the order of a request's tokens: a NumPy array, a list, or a :class:`BlockTable`."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockTable:
    """The blocks of a request, where they do not begin with its first token.

    Attributes:
        blocks: their numbers.
        first_token: which token of the request is the first of the first block.
    """

    blocks: Blocks
    first_token: int = 0


def table_of(given: Blocks) -> BlockTable:
    table = given if isinstance(given, BlockTable) else BlockTable(given)
    blocks = np.asarray(table.blocks)
    if not blocks.size:
        blocks = blocks.astype(np.int64).reshape(-1)
    if blocks.dtype.kind not in "iu" or blocks.ndim != 1:
        found = f"{blocks.dtype} of {blocks.ndim} dimensions"
        raise KVRangeError(argument="blocks", value=found, expected="whole numbers in one dimension")
    if type(table.first_token) is not int or table.first_token < 0:
        raise KVRangeError(argument="first_token", value=table.first_token, expected="an int, zero or more")
    return BlockTable(blocks.astype(np.int64, copy=False), table.first_token)


def tokens_of(given: range | None, held: Sequence[range], sides: Sequence[KVLayout]) -> range:
    if given is None:
        if held[0] != held[1]:
            raise KVMismatchError(
                "say which tokens",
                field="the blocks' tokens",
                source=held[0],
                destination=held[1],
                hint="Give tokens=, or blocks for the same tokens at both sides.",
            )
        given = held[0]
    if not isinstance(given, range) or given.step != 1:
        raise KVRangeError(argument="tokens", value=given, expected="a range without steps")
    if not given:
        return given
    for name, tokens, side in zip(SIDES, held, sides, strict=True):
        if given.start < tokens.start or given.stop > tokens.stop:
            expected = f"within {tokens}, which the blocks of the {name} hold"
            raise KVRangeError(argument="tokens", value=str(given), expected=expected)
        if side.window is not None and len(given) > side.window:
            expected = f"at most {side.window} of them, the window of the {name}"
            raise KVRangeError(argument="tokens", value=f"{given}, {len(given)} of them", expected=expected)
    return given


def check_blocks(blocks: Ints, name: str, limit: int) -> None:
    if int(blocks.min()) < 0 or int(blocks.max()) >= limit:
        place = int(np.flatnonzero((blocks < 0) | (blocks >= limit))[0])
        expected = f"below {limit}, the blocks of the {name}"
        raise KVRangeError(argument=f"blocks of the {name}", value=int(blocks[place]), expected=expected)


def check_once(blocks: Ints) -> None:
    """No block of the destination is written twice."""
    lowest = int(blocks.min())
    if int(blocks.max()) - lowest < 16 * len(blocks):
        counts = np.bincount(blocks - lowest)
        if int(counts.max()) <= 1:
            return
        twice = int(np.argmax(counts > 1)) + lowest
    else:
        ordered = np.sort(blocks)
        same = ordered[1:] == ordered[:-1]
        if not bool(same.any()):
            return
        twice = int(ordered[1:][same][0])
    first, second = (int(each) for each in np.flatnonzero(blocks == twice)[:2])
    expected = f"once at the destination, not at places {first} and {second}"
    raise KVOverlapError(argument="block", value=twice, expected=expected)
