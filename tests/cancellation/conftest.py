"""Every test here runs on the asyncio loops of the conformance suite."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from ..loops import ASYNCIO_LOOPS


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops."""
    return ASYNCIO_LOOPS
