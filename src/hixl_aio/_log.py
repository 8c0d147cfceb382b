"""Events of the slow path: connect, region, peer lost, abandoned. Silent unless somebody configures logging.

structlog wraps a stdlib logger with a NullHandler and its own chain of processors, so that neither a user's
structlog configuration nor ours touches the other's. Nothing is set up before the first event.
"""

from __future__ import annotations

import contextlib
import logging
from functools import cache
from typing import Any

__all__ = ("is_heard", "log", "prepare", "send_to_stderr")

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
    """Say what happened. Never on the data path, and never a failure of its own."""
    if logging.getLogger(LOGGER_NAME).isEnabledFor(logging.getLevelName(level.upper())) and is_heard():
        # The first event imports structlog, which needs a descriptor; handlers are the user's.
        with contextlib.suppress(Exception):
            getattr(_logger(), level)(event, **fields)


def is_heard() -> bool:
    """Would anybody see an event? If not, structlog is not even imported: that takes a tenth of a second."""
    logger: logging.Logger | None = logging.getLogger(LOGGER_NAME)
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def prepare() -> None:
    """An engine opens: import now what the first event would import in the middle of work."""
    if is_heard():
        with contextlib.suppress(Exception):
            _logger()


@cache
def send_to_stderr(level: str) -> None:
    """HIXL_AIO_LOG was set: write our events to standard error, from that level on."""
    logger = logging.getLogger(LOGGER_NAME)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
