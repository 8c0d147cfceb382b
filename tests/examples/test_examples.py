"""Every example runs as a user would run it, warnings being errors, and says what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "first_put.py": ["target: first put: b'Hello, peer!'"],
    "double_buffer.py": ["round 7 arrived in slot 1", "8 rounds of 4 MiB through 2 slots"],
    "signals.py": ["block 1 will not come: SignalError", "heard news-2"],
}


def run(path: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "dev", "-W", "error", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_every_example_is_listed() -> None:
    """No example escapes this test."""
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_runs(name: str) -> None:
    """The example ends with status 0, an empty standard error, and the lines it promises."""
    done = run(ROOT / "examples" / name)
    assert (done.returncode, done.stderr) == (0, "")
    for line in EXPECTED[name]:
        assert line in done.stdout


def test_the_twenty_lines_of_the_readme_run(tmp_path: Path) -> None:
    """The README's program is a program."""
    text = (ROOT / "README.md").read_text()
    program = tmp_path / "readme.py"
    program.write_text(text.split("```python\n", 1)[1].split("```", 1)[0])
    done = run(program)
    assert (done.returncode, done.stderr) == (0, "")
    assert "keys and values" in done.stdout
