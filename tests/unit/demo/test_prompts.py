"""Where prompts come from."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from hixl_aio.demo.errors import PromptError
from hixl_aio.demo.models import Model
from hixl_aio.demo.prompts import BUILT_IN, parse_prompts, read_prompts


def test_built_in_prompts(smollm2: Model) -> None:
    """Three are built in: one is Chinese and one has more than 300 tokens."""
    assert len(BUILT_IN) == 3
    assert any("\u4e00" <= character <= "\u9fff" for character in BUILT_IN[1])
    assert len(smollm2.tokenizer.encode(BUILT_IN[2])) > 300


def test_one_prompt_a_line(tmp_path: Path) -> None:
    """A file gives one prompt a line, whatever its line ends and byte order mark, and skips empty lines."""
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufefffirst\r\n\n  \nzweite Zeile\n第三".encode())
    assert read_prompts(path) == ("first", "zweite Zeile", "第三")


def test_line_breaks_inside_a_prompt() -> None:
    """Backslash-n is a line break and a doubled backslash a single one, also before an n."""
    assert parse_prompts(["a\\nb", "c\\\\nd", "e\\\\\\nf"], "x") == ("a\nb", "c\\nd", "e\\\nf")


def test_other_escapes_are_refused() -> None:
    """Any other backslash is an error that names the line."""
    with pytest.raises(PromptError, match="line 2 has a backslash"):
        parse_prompts(["fine", "C:\\temp"], "x")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash reads standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert read_prompts("-") == ("one", "two")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "there is none"), (b"\n \n", "there is none"), (b"ok\n\xff", "byte 3 is not UTF-8")],
)
def test_unusable_files_are_named(tmp_path: Path, content: bytes, reason: str) -> None:
    """An empty file or one that is not UTF-8 is a PromptError that says so."""
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    with pytest.raises(PromptError, match=reason):
        read_prompts(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there is a PromptError with its name."""
    with pytest.raises(PromptError, match=r"absent\.txt: No such file"):
        read_prompts(tmp_path / "absent.txt")


def test_limits(tmp_path: Path) -> None:
    """A file of a mebibyte and a thousand prompts are the most."""
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"x" * (1 << 20) + b"y")
    with pytest.raises(PromptError, match="more than 1048576 bytes"):
        read_prompts(path)
    path.write_bytes(b"x\n" * 1001)
    with pytest.raises(PromptError, match="more than 1000 prompts"):
        read_prompts(path)
