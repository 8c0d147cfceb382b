"""Several caches that one request spans: full attention beside a sliding window, latents beside keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hixl_aio.kv.errors import KVLayoutError
from hixl_aio.kv.layout import KVLayout, KVMismatch, why_not

__all__ = ("KVGroups",)

_MOST = 64  # groups that a peer may describe


@dataclass(frozen=True, slots=True)
class KVGroups:
    """Layouts by name. Each group has its own tensors, layers and blocks; a request has tokens in all.

    Attributes:
        groups: names and layouts.

    Raises:
        KVLayoutError: no group, or a name that is empty or there twice.
    """

    groups: tuple[tuple[str, KVLayout], ...]

    def __post_init__(self) -> None:
        if type(self.groups) is not tuple or not 0 < len(self.groups) <= _MOST:
            raise KVLayoutError(
                argument="groups", value=str(self.groups), expected=f"1 to {_MOST}, as a tuple"
            )
        for name, layout in self.groups:
            if not isinstance(name, str) or not 0 < len(name) <= 100 or not isinstance(layout, KVLayout):
                found = f"{name!r}: {type(layout).__name__}"
                raise KVLayoutError(
                    argument="groups", value=found, expected="names of 1 to 100 characters, and KVLayouts"
                )
        if len(set(self.names)) < len(self.names):
            raise KVLayoutError(argument="groups", value=", ".join(self.names), expected="each name once")

    @classmethod
    def of(cls, groups: Mapping[str, KVLayout]) -> KVGroups:
        """From a mapping."""
        return cls(tuple(groups.items()))

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(name for name, _ in self.groups)

    def __getitem__(self, name: str) -> KVLayout:
        for each, layout in self.groups:
            if each == name:
                return layout
        raise KeyError(name)

    def describe(self) -> dict[str, Any]:
        """The groups as values that JSON knows; :meth:`from_description` reads it."""
        return {name: layout.describe() for name, layout in self.groups}

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> KVGroups:
        """The groups that a peer described; nothing in the description is trusted.

        Raises:
            KVLayoutError: it is not a description of groups.
        """
        if not isinstance(description, Mapping) or len(description) > _MOST:
            found = f"{type(description).__name__}"
            raise KVLayoutError(
                argument="description", value=found, expected=f"a mapping of up to {_MOST} groups"
            )
        return cls(tuple((name, KVLayout.from_description(each)) for name, each in description.items()))

    def why_not(self, theirs: KVGroups) -> KVMismatch | None:
        """The first thing in which the two differ and that no conversion covers; None if there is none."""
        if set(self.names) != set(theirs.names):
            return KVMismatch("groups", ", ".join(sorted(self.names)), ", ".join(sorted(theirs.names)))
        for name, layout in self.groups:
            reason = why_not(layout, theirs[name])
            if reason is not None:
                return KVMismatch(f"{reason.field} of group {name}", reason.mine, reason.theirs)
        return None
