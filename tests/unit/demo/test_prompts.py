"""Where prompts come from."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hixl_aio.demo.errors import PromptError
from hixl_aio.demo.models import Model
from hixl_aio.demo.prompts import BUILT_IN, parse_prompts, read_prompts, waiting_prompts


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


@contextlib.contextmanager
def standard_input(descriptor: int) -> Iterator[None]:
    """Have this descriptor, which is closed afterwards, as standard input."""
    with open(descriptor, encoding="utf-8") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        yield


@contextlib.contextmanager
def pipe_with(data: bytes, *, closed: bool = True) -> Iterator[None]:
    """Have a pipe with this in it as standard input."""
    reader, writer = os.pipe()
    os.write(writer, data)
    if closed:
        os.close(writer)
    with standard_input(reader):
        yield
    if not closed:
        os.close(writer)


def test_standard_input() -> None:
    """A dash reads standard input to its end."""
    with pipe_with(b"one\ntwo\n"):
        assert read_prompts("-") == ("one", "two")
    with pipe_with(b""), pytest.raises(PromptError, match="there is none"):
        read_prompts("-")


def test_what_is_sent_without_a_word_is_taken(tmp_path: Path) -> None:
    """A pipe, a socket and a redirected file give prompts though nobody said that they would."""
    with pipe_with(b"one\ntwo"):
        assert waiting_prompts() == ("one", "two")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"three\n")
        theirs.shutdown(socket.SHUT_WR)
        with standard_input(os.dup(ours.fileno())):
            assert waiting_prompts() == ("three",)
    path = tmp_path / "prompts.txt"
    path.write_text("four\n")
    with standard_input(os.open(path, os.O_RDONLY)):
        assert waiting_prompts() == ("four",)


def test_nothing_is_waited_for_that_was_not_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No standard input, /dev/null, a terminal, an empty file or pipe, and silence are no prompts."""
    (tmp_path / "empty").touch()
    for path in ("/dev/null", tmp_path / "empty"):
        with standard_input(os.open(path, os.O_RDONLY)):
            assert waiting_prompts() is None
    with pipe_with(b""):
        assert waiting_prompts() is None
    terminal, other = os.openpty()
    with standard_input(other):
        assert waiting_prompts() is None
    os.close(terminal)
    monkeypatch.setattr(sys, "stdin", None)
    assert waiting_prompts() is None
    assert capfd.readouterr().err == ""
    with pipe_with(b"", closed=False):
        assert waiting_prompts() is None
    assert "standard input is silent" in capfd.readouterr().err


def test_what_begins_must_end() -> None:
    """A pipe that has said something and stays open is an error after a moment, not a wait without end."""
    with (
        pipe_with(b"one\n", closed=False),
        pytest.raises(PromptError, match=r"no end after 0\.5 s of silence"),
    ):
        waiting_prompts()


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
    with pytest.raises(PromptError, match="more than 1000;"):
        read_prompts(path)
