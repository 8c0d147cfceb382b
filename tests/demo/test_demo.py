"""The demo as a person meets it: real processes, real engines, the tiny model, SmolLM2 where it is cached."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from hixl_aio.demo.errors import PromptError
from hixl_aio.demo.options import DemoOptions
from hixl_aio.demo.weights import cached_path, is_intact

from .harness import Demo, command_line

TINY: Final = ("demo", "--model", "tiny", "--max-tokens", "6")


def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """`hixl-aio` to its end; without a text it has no standard input to speak of."""
    command = command_line(*arguments)
    if stdin is None:
        return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return subprocess.run(command, capture_output=True, text=True, check=False, input=stdin)


def test_text_and_table() -> None:
    """The answers stream under their prompts; a table, the route and what the figures mean follow."""
    done = run(*TINY, "--prompt", "one", "--prompt", "zwei", "--prompt", "三", "--prompt", "four")
    assert done.returncode == 0, done.stderr
    for number, prompt in enumerate(("one", "zwei", "三", "four"), start=1):
        assert f"[{number}/4] {prompt}\n" in done.stdout
    for word in ("prefill", "transfer", "hidden", "Route: ", "includes waiting for the loop"):
        assert word in done.stdout
    assert done.stderr == ""


def test_json_alone_on_standard_output() -> None:
    """With --json standard output is one JSON object whose figures fit together."""
    done = run(*TINY, "--prompt", "one", "--prompt", "two", "--json", "--verify")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    body = json.loads(done.stdout)
    assert body["verified"] is True
    assert body["route"]
    for request in body["requests"]:
        assert request["kv_nbytes"] == request["prompt_tokens"] * 1024
        assert request["new_tokens"] == 6
        assert len(request["text"]) == 6
        assert 0 < request["prefill"] <= request["first_token"]
        assert 0 <= request["hidden"] <= request["transfer"]


@pytest.mark.parametrize("link", ["shm", "cma", "cooperative"])
def test_every_link_gives_the_same_bits(link: str) -> None:
    """Over each kind of link two processes compute what one does, over more prompts than slots."""
    prompts = [f"--prompt={prompt}" for prompt in ("1", "22", "333", "4444", "5" * 300)]
    done = run("demo", "--model", "tiny", "--max-tokens", "20", "--verify", "--link", link, *prompts)
    assert done.returncode == 0, done.stderr
    assert "Verified" in done.stdout
    assert f"Route: {link} (" in done.stdout


def test_prompts_from_a_file_and_from_standard_input(tmp_path: Path) -> None:
    """A file, a dash, and text that is simply piped in give the same prompts."""
    lines = "first\\nline\n\nsecond\n"
    path = tmp_path / "prompts"
    path.write_text(lines)
    for done in (
        run(*TINY, "--prompts", str(path)),
        run(*TINY, "--prompts", "-", stdin=lines),
        run(*TINY, stdin=lines),
    ):
        assert done.returncode == 0, done.stderr
        assert "[1/2] first line\n" in done.stdout
        assert "[2/2] second\n" in done.stdout


def test_without_any_prompt_the_three_are_taken() -> None:
    """No prompt anywhere: those that are built in."""
    done = run(*TINY, stdin="")
    assert done.returncode == 0, done.stderr
    assert "[3/3] Read the following notes" in done.stdout
    assert done.stderr == ""


def test_an_input_that_says_nothing_is_not_waited_for() -> None:
    """A standard input that stays open and silent, as some build machines have it, holds nothing up."""
    with subprocess.Popen(
        command_line(*TINY), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as silent:
        assert silent.stdout is not None
        assert silent.stderr is not None
        assert "[3/3] Read the following notes" in silent.stdout.read()
        assert "standard input is silent" in silent.stderr.read()
        assert silent.wait() == 0


def test_impossible_options_are_refused() -> None:
    """No prompt at all, or answers of no token, are refused before anything starts."""
    with pytest.raises(PromptError, match="there is none"):
        DemoOptions(prompts=())
    with pytest.raises(PromptError, match="at least 1"):
        DemoOptions(max_tokens=0)


def test_a_failure_in_a_child_is_told() -> None:
    """What a child refuses arrives as one line that says why, with status 1."""
    done = run(*TINY, "--prompt", "x" * 9000)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "exceed the model's context of 8192" in line
    assert done.stdout == ""


def test_an_engine_that_refuses_is_told() -> None:
    """An error of the library inside a child is told with its type and the child's name."""
    done = run(*TINY, "--prompt", "x", "--backend", "hixl")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "process failed: BackendUnavailableError" in line


def test_a_package_that_is_missing_is_named(tmp_path: Path) -> None:
    """Without what only the children import, one line says what to install."""
    code = (
        "import importlib.util as u, sys\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'numpy' else find(name, *a)\n"
        "from hixl_aio.cli import main\n"
        "main()"
    )
    with Demo(tmp_path, [sys.executable, "-c", code, *TINY]) as demo:
        assert demo.finish() == 1
        assert demo.messages() == ["hixl-aio demo: numpy is not installed; pip install 'hixl-aio[demo]'"]


def test_a_reader_that_leaves_ends_the_run(tmp_path: Path) -> None:
    """When nobody reads standard output any more the run ends with a line that says so."""
    with Demo(
        tmp_path, command_line("demo", "--model", "tiny", "--max-tokens", "8000", "--prompt", "x")
    ) as demo:
        demo.until("[1/1]", stream="out")
        demo.close_output()
        assert demo.finish() == 1
        assert demo.messages() == [
            "hixl-aio demo: standard output: nobody reads it any more; all processes were ended"
        ]


@pytest.mark.timeout(180)
def test_the_real_model() -> None:
    """The real model answers across two processes, bit for bit as in one."""
    if not is_intact(cached_path()):
        pytest.skip("SmolLM2 is not in the cache; `hixl-aio demo` fetches it")
    prompt = "What is the capital of France?"
    done = run("demo", "--prompt", prompt, "--max-tokens", "12", "--verify")
    assert done.returncode == 0, done.stderr
    assert "The capital of France is Paris." in done.stdout
    assert "Verified" in done.stdout
