"""Status codes of the native core, by the names they have there.

The values repeat `native/include/hixl_aio/status.h`; a test compares the two, so that neither can drift.
"""

import enum

__all__ = ("Status",)


class Status(enum.IntEnum):
    """What a native call, record or event says about how something ended."""

    OK = 0
    WOULD_BLOCK = 1
    STOPPED = 2
    FAILED = 3
    LOST = 4
    PEER_LOST = 5
    PEER_CLOSED = 6
    NOT_CONNECTED = 7
    STALE_REGION = 8
    ACCESS_DENIED = 9
    OUT_OF_BOUNDS = 10
    NO_LINK = 11
    QUEUE_FULL = 12
    SIGNAL_QUEUE_FULL = 13
    INVALID_ARGUMENT = 14
    UNSUPPORTED = 15
    CLOSED = 16
    RESOURCE_EXHAUSTED = 17
    TIMED_OUT = 18
    HANDSHAKE_REFUSED = 19
    PERMISSION_DENIED = 20
    ADDRESS_IN_USE = 21
    CONNECT_FAILED = 22
    NOT_REGISTERED = 23
    REGION_BUSY = 24
    INTERNAL = 25
    AUTHENTICATION_FAILED = 26
