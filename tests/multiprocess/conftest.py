"""Second processes are as strict as the first."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _warnings_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, too."""
    monkeypatch.setenv("PYTHONWARNINGS", "error")
