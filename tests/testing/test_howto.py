"""What the documentation of the testing tools shows is a suite that passes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
HOWTO = ROOT / "docs" / "howto" / "testing.md"


@pytest.mark.timeout(120)
def test_the_examples_of_the_howto_pass(pytester: pytest.Pytester) -> None:
    """All its code, in order, in one file; every test in it runs and passes with warnings as errors."""
    code = "\n\n".join(re.findall(r"```python\n(.*?)```", HOWTO.read_text(), re.DOTALL))
    pytester.makepyfile(test_howto_inner=code)
    ignored = "ignore:Module already imported so cannot be rewritten; _editable_skbc"
    outcome = pytester.runpytest_subprocess(
        "-W", "error", "-W", ignored, "-o", "asyncio_default_fixture_loop_scope=function"
    )
    outcome.assert_outcomes(passed=code.count("async def test_"))
    assert code.count("async def test_") == 3


def test_the_howto_names_every_fixture_and_every_setting() -> None:
    """Nothing that the plugin offers is missing from the page."""
    import pytest_hixl_aio

    text = HOWTO.read_text()
    for name in (*pytest_hixl_aio.__all__, "hixl_aio_quiescence", "hixl_aio_patience"):
        assert f"`{name}`" in text, name
