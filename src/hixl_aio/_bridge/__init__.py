"""Park and wake: what the library needs of an event loop, and one implementation for each kind of loop.

Does not know `hixl_aio._core`.
"""

__all__: tuple[str, ...] = ()
