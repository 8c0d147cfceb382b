"""What the demo says to a person on standard error, beside the results on standard output.

Importing this loads nothing that takes time.
"""

from __future__ import annotations

from hixl_aio._program import notices

__all__ = ("is_watched", "show_cursor", "tell")

is_watched = notices.is_watched
show_cursor = notices.show_cursor


def tell(message: str, *, after_key: bool = False) -> None:
    """Write a line. ``after_key``: the terminal may just have shown ``^C``, which shall have its own."""
    notices.tell("hixl-aio demo", message, after_key=after_key)
