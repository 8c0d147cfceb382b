"""Events of the slow path: connect, region, peer lost, abandoned. Silent unless somebody configures logging.

structlog wraps a stdlib logger with a NullHandler and its own chain of processors, so that neither a user's
structlog configuration nor ours touches the other's. Nothing is set up before the first event.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

__all__ = ("log", "send_to_stderr")

LOGGER_NAME = "hixl_aio"


@cache
def _logger() -> Any:
    import structlog

    stdlib = logging.getLogger(LOGGER_NAME)
    stdlib.addHandler(logging.NullHandler())
    return structlog.wrap_logger(
        stdlib,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
    )


def log(level: str, event: str, **fields: object) -> None:
    """Say what happened. Never on the data path."""
    if logging.getLogger(LOGGER_NAME).isEnabledFor(logging.getLevelName(level.upper())):
        getattr(_logger(), level)(event, **fields)


@cache
def send_to_stderr(level: str) -> None:
    """HIXL_AIO_LOG was set: write our events to standard error, from that level on."""
    logger = logging.getLogger(LOGGER_NAME)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
