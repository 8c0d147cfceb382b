"""Logging: silent, ours alone, and to standard error where the environment asks for it."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import structlog

from hixl_aio._log import log


def test_events_reach_a_stdlib_logger(caplog: pytest.LogCaptureFixture) -> None:
    """With their fields, through a chain of our own: structlog's global configuration is not touched."""
    before = structlog.get_config()
    with caplog.at_level(logging.INFO, logger="hixl_aio"):
        log("debug", "too low", peer="a")
        log("info", "peer connected", peer="127.0.0.1:5")
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "peer connected" in caplog.text
    assert "127.0.0.1:5" in caplog.text
    assert structlog.get_config() == before
    assert not structlog.is_configured()


def test_without_a_handler_nothing_is_even_imported() -> None:
    """structlog takes a tenth of a second; somebody must be listening for it."""
    code = (
        SCRIPT
        + """
import sys, logging
assert "structlog" not in sys.modules
logging.getLogger("hixl_aio").addHandler(logging.NullHandler())
asyncio.run(main())
assert "structlog" not in sys.modules
logging.basicConfig(level="CRITICAL")
asyncio.run(main())
assert "structlog" in sys.modules
"""
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


SCRIPT = """
import asyncio, hixl_aio
async def main():
    async with hixl_aio.Engine() as engine:
        await engine.allocate(8, label="kv")
asyncio.run(main())
"""


@pytest.mark.parametrize(("level", "words"), [("", False), ("info", True), ("error", False)])
def test_the_environment_turns_it_on(level: str, words: bool) -> None:
    """HIXL_AIO_LOG names a level; without it not a word."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        env={"HIXL_AIO_LOG": level, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == ""
    assert ("engine opened" in result.stderr and "'kv'" in result.stderr) == words
    assert words or result.stderr == ""
