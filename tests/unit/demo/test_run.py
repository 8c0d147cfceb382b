"""The demo as a person meets it: real processes, real engines, the tiny model."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hixl_aio.demo.errors import PromptError
from hixl_aio.demo.options import DemoOptions
from hixl_aio.demo.process import child_environment
from hixl_aio.demo.run import _Screen

MAIN = "import sys\nfrom hixl_aio.demo.run import DemoOptions, run_demo\nsys.exit(run_demo({}))"
LONG = DemoOptions(model="tiny", prompts=("one", "two", "three"), max_tokens=8000)
SHORT = DemoOptions(model="tiny", prompts=("one", "zwei", "三", "four"), max_tokens=6)
LIMIT = 2.0


def command(options: DemoOptions) -> list[str]:
    return [sys.executable, "-c", MAIN.format(repr(options))]


def finished(options: DemoOptions) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(options), capture_output=True, text=True, check=False, env=child_environment()
    )


def children(pid: int) -> dict[str, int]:
    """The running children by role."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        arguments = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        found[arguments[-2].rpartition(".")[2]] = int(child)
    return found


@contextlib.contextmanager
def under_way(options: DemoOptions) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, int]]]:
    """A run that has begun to speak; afterwards none of its processes is left."""
    before = set(os.listdir("/dev/shm"))
    with subprocess.Popen(
        command(options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=child_environment()
    ) as parent:
        descriptors = {}
        try:
            assert parent.stdout is not None
            assert parent.stdout.read(40)
            running = children(parent.pid)
            assert sorted(running) == ["decode", "prefill"]
            descriptors = {role: os.pidfd_open(pid) for role, pid in running.items()}
            yield parent, running
            for descriptor in descriptors.values():
                assert select.select([descriptor], [], [], LIMIT)[0], "a process is left"
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)
            parent.kill()
    assert set(os.listdir("/dev/shm")) <= before


def end_of(parent: subprocess.Popen[bytes], since: float) -> tuple[int, str]:
    """Its exit status and its messages; it had two seconds."""
    _, messages = parent.communicate(timeout=20)
    assert time.monotonic() - since < LIMIT
    return parent.returncode, messages.decode()


def test_text_and_table() -> None:
    """The answers stream under their prompts, and a table and the route follow."""
    done = finished(SHORT)
    assert done.returncode == 0, done.stderr
    for number, prompt in enumerate(SHORT.prompts or (), start=1):
        assert f"[{number}/4] {prompt}\n" in done.stdout
    assert "prefill" in done.stdout
    assert "Route: " in done.stdout
    assert done.stderr == ""


def test_json_alone_on_standard_output() -> None:
    """With json standard output is one JSON object whose figures fit together."""
    done = finished(DemoOptions(model="tiny", prompts=("one", "two"), max_tokens=6, json=True, verify=True))
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert body["verified"] is True
    assert body["route"]
    for request in body["requests"]:
        assert request["kv_nbytes"] == request["prompt_tokens"] * 1024
        assert request["new_tokens"] == 6
        assert len(request["text"]) == 6
        assert 0 < request["prefill"] <= request["first_token"]
        assert 0 <= request["hidden"] <= request["transfer"]


def test_verification_passes() -> None:
    """Two processes and one compute the same KV bytes, logits and tokens, over more prompts than slots."""
    prompts = ("1", "22", "333", "4444", "5" * 300)
    done = finished(DemoOptions(model="tiny", prompts=prompts, max_tokens=20, verify=True))
    assert done.returncode == 0, done.stderr
    assert "Verified" in done.stdout


@pytest.mark.timeout(180)
def test_the_real_model(smollm2_path: Path) -> None:
    """The real model answers across two processes, bit for bit as in one."""
    done = finished(DemoOptions(prompts=("What is the capital of France?",), max_tokens=12, verify=True))
    assert done.returncode == 0, done.stderr
    assert "The capital of France is Paris." in done.stdout
    assert "Verified" in done.stdout


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_killing_a_child_ends_the_run(role: str) -> None:
    """When either process is killed the run ends in two seconds, says which it was, and leaves nothing."""
    with under_way(LONG) as (parent, running):
        since = time.monotonic()
        os.kill(running[role], signal.SIGKILL)
        status, messages = end_of(parent, since)
        assert status == 1
        assert f"the {role} process was ended by SIGKILL" in messages
        assert "Traceback" not in messages


def test_interrupting_ends_the_run() -> None:
    """Ctrl-C ends everything within two seconds with status 130 and a message."""
    with under_way(LONG) as (parent, _):
        since = time.monotonic()
        parent.send_signal(signal.SIGINT)
        status, messages = end_of(parent, since)
        assert status == 130
        assert messages == "hixl-aio demo: interrupted; both processes were ended\n"


def test_killing_the_parent_ends_its_children() -> None:
    """A parent that is killed outright takes its children with it."""
    with under_way(LONG) as (parent, _):
        parent.kill()


def test_a_reader_that_leaves_ends_the_run() -> None:
    """When nobody reads standard output any more the run ends with a message, not a traceback."""
    with under_way(LONG) as (parent, _):
        assert parent.stdout is not None
        assert parent.stderr is not None
        parent.stdout.close()
        assert b"nobody reads the output" in parent.stderr.read()
        assert parent.wait(20) == 1


def test_impossible_options_are_refused() -> None:
    """No prompt at all, or answers of no token, are refused before anything starts."""
    with pytest.raises(PromptError, match="there is none"):
        DemoOptions(prompts=())
    with pytest.raises(PromptError, match="at least 1"):
        DemoOptions(max_tokens=0)


def test_a_failure_in_a_child_is_told() -> None:
    """An error inside a child arrives as a message with its reason and status 1."""
    done = finished(DemoOptions(model="tiny", prompts=("x" * 9000,), max_tokens=5))
    assert done.returncode == 1
    assert "exceed the model's context" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_answers_come_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Text that comes early waits for its turn; control characters never reach the terminal."""
    screen = _Screen(("first\nprompt", "second"), quiet=False)
    screen.add(1, "early")
    assert capsys.readouterr().out == ""
    screen.add(0, "a\x1b[2J")
    assert capsys.readouterr().out == "[1/2] first prompt\na\ufffd[2J"
    screen.end(1)
    screen.add(0, "b\n")
    screen.end(0)
    assert capsys.readouterr().out == "b\n\n\n[2/2] second\nearly\n\n"


def test_empty_answers_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A prompt without an answer has its heading all the same."""
    screen = _Screen(("first", "second"), quiet=False)
    screen.end(0)
    screen.end(1)
    assert capsys.readouterr().out == "[1/2] first\n\n\n[2/2] second\n\n\n"
