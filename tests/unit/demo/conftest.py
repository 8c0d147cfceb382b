"""Models for the tests of the demo: the tiny one always, the real one if cached or to be fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from hixl_aio.demo.errors import DownloadError
from hixl_aio.demo.models import Model, load_model
from hixl_aio.demo.weights import ensure


@pytest.fixture(scope="package")
def tiny() -> Model:
    return load_model("tiny")


@pytest.fixture(scope="package")
def smollm2_path() -> Path:
    try:
        return ensure()
    except DownloadError as error:
        pytest.skip(f"SmolLM2 is neither cached nor to be had: {error}")


@pytest.fixture(scope="package")
def smollm2(smollm2_path: Path) -> Model:
    return load_model("smollm2", smollm2_path)
