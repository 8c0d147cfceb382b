"""For test suites of programs that use this library: faults on demand.

Nothing in here is needed in production, and nothing outside imports it.
"""

from __future__ import annotations

from hixl_aio.testing._faults import Fault, FaultPlan, Hold, HoldPoint

__all__ = ("Fault", "FaultPlan", "Hold", "HoldPoint")
