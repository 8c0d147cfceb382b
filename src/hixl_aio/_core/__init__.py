"""What an engine must remember: operations, credits, deadlines, regions, its own state.

Knows neither an event loop nor the public objects; `hixl_aio._bridge` does not know it. `hixl_aio._runtime`
joins the two.
"""

__all__: tuple[str, ...] = ()
