"""Every test here runs on the asyncio loops of the conformance suite."""

from __future__ import annotations

from tests.conformance.conftest import pytest_asyncio_loop_factories

__all__ = ("pytest_asyncio_loop_factories",)
