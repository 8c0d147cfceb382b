"""Every error of the library: whose fault, and how much is broken.

::

    HixlAioError UsageError              the call was wrong; nothing moved InvalidArgumentError(ValueError)
      ClosedError  WrongLoopError  EngineForkedError  NotRegisteredError StaleRegionError  RegionBusyError
      NotContiguousError  AccessDeniedError TransferError           one operation is broken   .op .peer
      .nbytes .status .backend TransferFailedError  TransferTimeoutError(TimeoutError)  TransferStoppedError
      TransferLostError  BatchError PeerError(ConnectionError)   one peer is broken   .peer .status
      PeerNotConnectedError  ConnectTimeoutError(TimeoutError)  PeerAlreadyConnectedError  PeerLostError
      PeerRestartedError  HandshakeError  AuthenticationError  SignalError EngineError             the engine
      cannot do this here BackendUnavailableError  UnsupportedError(NotImplementedError)
      ResourceExhaustedError  a limit was reached   .retryable TransferQueueFullError  SignalQueueFullError
      InternalError           an invariant broke: please report

Errors carry fields; the message is composed from them and ends with what to do next (`hint`). All of them
pickle. `hixl_aio._failures` is the one place that turns native codes into these classes.
"""

from hixl_aio._status import Status
from hixl_aio._usage_errors import (
    AccessDeniedError,
    ClosedError,
    EngineForkedError,
    HixlAioError,
    InvalidArgumentError,
    NotContiguousError,
    NotRegisteredError,
    RegionBusyError,
    StaleRegionError,
    UsageError,
    WrongLoopError,
)
from hixl_aio._world_errors import (
    AbandonedTransferWarning,
    AuthenticationError,
    BackendUnavailableError,
    BatchError,
    ConnectTimeoutError,
    EngineError,
    HandshakeError,
    InternalError,
    PeerAlreadyConnectedError,
    PeerError,
    PeerLostError,
    PeerNotConnectedError,
    PeerRestartedError,
    ResourceExhaustedError,
    SignalError,
    SignalQueueFullError,
    TransferError,
    TransferFailedError,
    TransferLostError,
    TransferQueueFullError,
    TransferStoppedError,
    TransferTimeoutError,
    UnclosedResourceWarning,
    UnsupportedError,
)

__all__ = (
    "AbandonedTransferWarning",
    "AccessDeniedError",
    "AuthenticationError",
    "BackendUnavailableError",
    "BatchError",
    "ClosedError",
    "ConnectTimeoutError",
    "EngineError",
    "EngineForkedError",
    "HandshakeError",
    "HixlAioError",
    "InternalError",
    "InvalidArgumentError",
    "NotContiguousError",
    "NotRegisteredError",
    "PeerAlreadyConnectedError",
    "PeerError",
    "PeerLostError",
    "PeerNotConnectedError",
    "PeerRestartedError",
    "RegionBusyError",
    "ResourceExhaustedError",
    "SignalError",
    "SignalQueueFullError",
    "StaleRegionError",
    "Status",
    "TransferError",
    "TransferFailedError",
    "TransferLostError",
    "TransferQueueFullError",
    "TransferStoppedError",
    "TransferTimeoutError",
    "UnclosedResourceWarning",
    "UnsupportedError",
    "UsageError",
    "WrongLoopError",
)

# Tracebacks and pickles name the public module.
for _class in [globals()[_name] for _name in __all__]:
    _class.__module__ = __name__
del _class
