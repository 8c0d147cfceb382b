"""For test suites of programs that use this library: faults on demand, connected engines, real second
processes, and a look at what a test leaves behind.

Nothing in here is needed in production, and nothing in here needs pytest. With pytest installed, the plugin
`pytest_hixl_aio` offers the same as fixtures; see `docs/howto/testing.md`.
"""

from hixl_aio.testing._errors import NotQuiescentError, ProcessFailedError
from hixl_aio.testing._faults import Fault, FaultPlan, Hold, HoldPoint
from hixl_aio.testing._pair import EnginePair, connected_engines
from hixl_aio.testing._parent import Parent
from hixl_aio.testing._peer import PeerProcess, running_peer
from hixl_aio.testing._process import ChildProcess, child_process
from hixl_aio.testing._quiescence import Resources, check_quiescent, unsettled
from hixl_aio.testing._rules import Which

__all__ = (
    "ChildProcess",
    "EnginePair",
    "Fault",
    "FaultPlan",
    "Hold",
    "HoldPoint",
    "NotQuiescentError",
    "Parent",
    "PeerProcess",
    "ProcessFailedError",
    "Resources",
    "Which",
    "check_quiescent",
    "child_process",
    "connected_engines",
    "running_peer",
    "unsettled",
)
