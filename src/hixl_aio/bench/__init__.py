"""`hixl-aio bench`: what transfers cost between two processes, each measured beside what the machine can do.

Nothing here is imported by the library. A result is a ratio to a *floor* of the same run: a memcpy into the
same memory, a bare wake-up, a system call. Ratios can be compared between runs and machines; seconds cannot.
"""

from __future__ import annotations

__all__ = ()
