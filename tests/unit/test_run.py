"""`hixl_aio.run`."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

import hixl_aio


async def loop_module() -> str:
    """Whose loop runs."""
    return type(asyncio.get_running_loop()).__module__


async def is_debug() -> bool:
    """Does it run in debug mode?"""
    return asyncio.get_running_loop().get_debug()


def test_it_runs_on_uvloop_where_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And on asyncio's own loop where it is not; the result is the coroutine's."""
    assert hixl_aio.run(loop_module()).startswith("uvloop")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert hixl_aio.run(loop_module()).startswith("asyncio")


def test_debug_is_passed_on() -> None:
    """As for asyncio.run."""
    assert hixl_aio.run(is_debug(), debug=True)
    assert not hixl_aio.run(is_debug(), debug=False)
