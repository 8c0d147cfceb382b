"""The plain records that cross the extension's boundary, for `_native.pyi` and its readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ("CompletionTuple", "EventTuple", "PartTuple", "PeerTuple", "RegionTuple", "SignalTuple")

CompletionTuple: TypeAlias = tuple[int, int, int, bool, bytes | None]
"""(token, status, nbytes moved, quiescent, states of the parts of a batch that did not complete or None)"""

SignalTuple: TypeAlias = tuple[int, int, int, str, bytes]
"""(peer, sequence, status, name, payload)"""

RegionTuple: TypeAlias = tuple[int, int, int, int, int, int, str]
"""(region, generation, nbytes, address, kind, access, label)"""

EventTuple: TypeAlias = tuple[int, int, int, int, str, RegionTuple | None]
"""(kind, token, peer, status, text, region or None)"""

PeerTuple: TypeAlias = tuple[str, str, str, int, int, tuple[tuple[str, str], ...]]
"""(name, address, incarnation, pid, state, ((link, reason), ...))"""

PartTuple: TypeAlias = "tuple[int, int, int, int, int, int, int, Buffer | None, Buffer | None, int | Buffer]"
"""(kind, local address, local length, region, generation, remote offset, remote length, local offsets or
None, remote offsets or None, block length: one int or an int64 array)"""
