"""The command line: options reach the demo, and what is missing is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hixl_aio
from hixl_aio.cli import app as cli
from hixl_aio.cli import main

runner = CliRunner()


def run(*arguments: str, stdin: str | int | None = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    """`hixl-aio` in a process of its own."""
    code = "from hixl_aio.cli import main; main()"
    given: dict[str, object] = {"input": stdin} if isinstance(stdin, str) else {"stdin": stdin}
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, **given
    )


def test_the_version_is_the_packages() -> None:
    """`hixl-aio --version` prints one line."""
    result = runner.invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"hixl-aio {hixl_aio.__version__}\n"


def test_prompts_come_from_one_place(tmp_path: Path) -> None:
    """--prompt and --prompts together, and a file that is not there, end with status and message."""
    result = runner.invoke(cli.app, ["demo", "--prompt", "a", "--prompts", "b"])
    assert result.exit_code == 2
    assert "not both" in result.output
    result = runner.invoke(cli.app, ["demo", "--prompts", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert "none" in result.output


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without typer the command says what to install, and leaves with status 1."""
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "hixl_aio.cli.app", raising=False)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    assert "hixl-aio[cli]" in capsys.readouterr().err


@pytest.mark.timeout(120)
def test_the_tiny_demo_runs_and_verifies() -> None:
    """The whole run with small random weights: status 0 and one JSON object."""
    result = run("demo", "--model", "tiny", "--max-tokens", "4", "--prompt", "Hello", "--verify", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)
