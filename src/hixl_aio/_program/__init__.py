"""What our programs (demo, bench) share: children that die with them, signals to end, words on stderr,
the form of errors.

The library does not use it. Importing it loads nothing that takes time.
"""

from __future__ import annotations

__all__ = ()
