"""The form that the errors of our programs have.

Importing this loads nothing that takes time.
"""

from __future__ import annotations

__all__ = ("ProgramError",)


class ProgramError(Exception):
    """Base of what a program raises on purpose. Its positional fields make up message and pickle."""

    template = "{0}"

    def __str__(self) -> str:
        return self.template.format(*self.args)
