"""However the demo is ended, it ends in two seconds, says so, and leaves nothing: at many points of a run."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
from pathlib import Path
from typing import Final, TypeVar

import pytest

from hixl_aio.demo.weights import cached_path, is_intact

from .harness import Demo, command_line, tapped

# Every point is tried with some of the ways to end; with HIXL_AIO_TEST_THOROUGH set, with all of them.
THOROUGH: Final = bool(os.environ.get("HIXL_AIO_TEST_THOROUGH"))
Point = tuple[str, int]
T = TypeVar("T")

POINTS: Final = (
    ("decode starts", 1),
    ("prefill has imported", 1),
    ("decode loads", 1),
    ("decode says Listening", 1),
    ("prefill says Connected", 1),
    ("decode lends", 1),
    ("prefill computes", 1),
    ("prefill computes", 4),
    ("decode says Landed", 1),
    ("decode steps", 1),
    ("decode says Landed", 2),
    ("decode says Text", 20),
    ("decode says Generated", 1),
    ("decode lends", 3),
    ("prefill computes", 11),
    ("prefill says Done", 1),
    ("decode says Generated", 2),
    ("decode steps", 75),
)
VERIFYING: Final = (
    ("reference starts", 1),
    ("reference has imported", 1),
    ("reference computes", 1),
    ("reference steps", 10),
    ("reference says Trace", 2),
)
ENDED: Final = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


KILLINGS: Final = tuple(itertools.product((signal.SIGKILL, signal.SIGTERM), ("decode", "prefill")))


def spread(points: tuple[Point, ...], ways: tuple[T, ...]) -> list[tuple[Point, T]]:
    """Each point with one of the ways in turn, or with each."""
    if THOROUGH:
        return list(itertools.product(points, ways))
    return list(zip(points, itertools.cycle(ways), strict=False))


def without_progress(messages: list[str]) -> list[str]:
    return [line for line in messages if "verifying against" not in line]


@pytest.mark.parametrize(("point", "number"), spread(POINTS + VERIFYING, (signal.SIGINT, signal.SIGTERM)))
def test_a_signal_to_the_parent(tmp_path: Path, point: Point, number: signal.Signals) -> None:
    """Ctrl-C and a request to end: one line, and the status that belongs to the signal."""
    with Demo(tmp_path, tapped(verify=True)) as demo:
        demo.until(*point)
        status, messages = demo.ends_since(demo.kill("parent", number))
        said = f"hixl-aio demo: {ENDED[number]}; all processes were ended"
        assert without_progress(messages) == [said], messages
        assert status == 128 + number


@pytest.mark.parametrize("point", (POINTS + VERIFYING)[:: 1 if THOROUGH else 3])
def test_killing_the_parent(tmp_path: Path, point: Point) -> None:
    """A parent that is killed outright takes everything with it, in silence."""
    with Demo(tmp_path, tapped(verify=True)) as demo:
        demo.until(*point)
        status, messages = demo.ends_since(demo.kill("parent", signal.SIGKILL))
        assert without_progress(messages) == []
        assert status == -signal.SIGKILL


@pytest.mark.parametrize(("point", "killing"), spread(POINTS, KILLINGS))
def test_killing_a_process(tmp_path: Path, point: Point, killing: tuple[signal.Signals, str]) -> None:
    """When either process is killed, the run ends and one line says which it was."""
    number, role = killing
    with Demo(tmp_path, tapped()) as demo:
        demo.until(*point)
        demo.until(f"{role} starts")
        status, messages = demo.ends_since(demo.kill(role, number))
        assert len(messages) == 1, messages
        message = messages[0]
        assert f"the {role} process was ended by {number.name}; the others were ended too" in message
        assert status == 1


@pytest.mark.parametrize("point", VERIFYING[:: 1 if THOROUGH else 2])
def test_killing_the_verification(tmp_path: Path, point: Point) -> None:
    """The same holds for the single process that verifies."""
    with Demo(tmp_path, tapped(verify=True)) as demo:
        demo.until(*point)
        status, messages = demo.ends_since(demo.kill("reference", signal.SIGKILL))
        assert "the verification process was ended by SIGKILL" in messages[-1]
        assert status == 1


@pytest.mark.parametrize("imports", [1, 10, 40, 80, 160, 320, 640, 960])
def test_interrupting_imports(tmp_path: Path, imports: int) -> None:
    """While the command line imports what it needs, and then its children, Ctrl-C means the same."""
    command = command_line("demo", "--model", "tiny", "--prompt", "x", "--max-tokens", "8000")
    with Demo(tmp_path, command, {"PYTHONPROFILEIMPORTTIME": "1"}) as demo:
        demo.until("hixl_aio._program.interrupts\n")
        demo.until("import time:", demo.err.count("import time:") + imports)
        status, messages = demo.ends_since(demo.kill("parent", signal.SIGINT))
        assert len(messages) == 1, messages
        message = messages[0]
        assert message.startswith(("hixl-aio: interrupted", "hixl-aio demo: interrupted"))
        assert status == 130


def test_shared_memory_has_no_name(tmp_path: Path) -> None:
    """What the processes share are anonymous files, so that nothing can stay behind, however they end."""
    with Demo(tmp_path, tapped(max_tokens=8000, prompts=["x"])) as demo:
        demo.until("decode steps", 3)
        for role in ("decode", "prefill"):
            maps = Path(f"/proc/{demo.pid(role)}/maps").read_text().splitlines()
            writable = [line for line in maps if line.split()[1].startswith("rw-s")]
            assert any("/memfd:" in line for line in writable)
            assert not [line for line in writable if " /" in line and "/memfd:" not in line]
            opened = os.listdir(f"/proc/{demo.pid(role)}/fd")
            names = [os.readlink(f"/proc/{demo.pid(role)}/fd/{number}") for number in opened]
            assert not [name for name in names if name.startswith(("/dev/shm/", "/tmp/", str(tmp_path)))]
        demo.ends_since(demo.kill("parent", signal.SIGINT))


def test_interrupting_again_changes_nothing(tmp_path: Path) -> None:
    """A second and a third Ctrl-C are as good as the first."""
    with Demo(tmp_path, tapped(max_tokens=2000)) as demo:
        demo.until("decode steps", 5)
        since = demo.kill("parent", signal.SIGINT)
        for _ in range(20):
            demo.kill("parent", signal.SIGINT)
        status, messages = demo.ends_since(since)
        assert messages == ["hixl-aio demo: interrupted; all processes were ended"]
        assert status == 130


def test_the_key_on_a_terminal() -> None:
    """On a terminal the key reaches the parent alone, and its message has a line of its own."""
    ours, theirs = os.openpty()
    command = command_line("demo", "--model", "tiny", "--max-tokens", "8000", "--prompt", "x")
    with subprocess.Popen(["setsid", "--ctty", *command], stdin=theirs, stdout=theirs, stderr=theirs) as demo:
        os.close(theirs)
        shown = b""
        with open(ours, "r+b", buffering=0) as terminal, contextlib.suppress(OSError):  # it ends with EIO
            while b"[1/1] x\r\n" not in shown:
                shown += terminal.read(1 << 12)
            terminal.write(b"\x03")
            while piece := terminal.read(1 << 12):
                shown += piece
        assert b"^C" in shown
        assert shown.endswith(b"\r\nhixl-aio demo: interrupted; all processes were ended\r\n")
        assert b"loading the model into a prefill and a decode process ..." in shown
        assert demo.wait() == 130


def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    """Under nohup, or in the background of a script, the run goes on."""
    command = ["sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh", *tapped(prompts=["x"])]
    with Demo(tmp_path, command) as demo:
        demo.until("decode steps", 1)
        demo.kill("parent", signal.SIGHUP)
        demo.kill("parent", signal.SIGINT)
        assert demo.finish() == 0


def test_a_reader_that_stalls_stalls_nobody_else(tmp_path: Path) -> None:
    """With standard output full both processes go on to their end, and Ctrl-C ends the wait."""
    with Demo(tmp_path, tapped(), full=True) as demo:
        demo.until("prefill returns")
        demo.until("decode returns")
        status, messages = demo.ends_since(demo.kill("parent", signal.SIGINT))
        assert messages == ["hixl-aio demo: interrupted; all processes were ended"]
        assert status == 130


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_killing_a_process_while_the_reader_stalls(tmp_path: Path, role: str) -> None:
    """A full standard output does not hide that a process is gone."""
    with Demo(tmp_path, tapped(max_tokens=8000, prompts=["one"]), full=True) as demo:
        demo.until("decode says Text", 50)
        status, messages = demo.ends_since(demo.kill(role, signal.SIGKILL))
        assert f"the {role} process was ended by SIGKILL" in messages[0]
        assert status == 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "point", [("fetch fetches", 1), ("decode loads", 1), ("prefill computes", 20), ("decode steps", 3)]
)
def test_interrupting_the_real_model(tmp_path: Path, point: Point) -> None:
    """The real model takes longer to load and to compute, and is interrupted as fast."""
    if not is_intact(cached_path()):
        pytest.skip("SmolLM2 is not in the cache; `hixl-aio demo` fetches it")
    command = tapped(model="smollm2", prompts=["Why? " * 300])
    with Demo(tmp_path, command, {"HIXL_AIO_CACHE": str(cached_path().parent)}) as demo:
        demo.until(*point)
        status, messages = demo.ends_since(demo.kill("parent", signal.SIGINT))
        assert messages == ["hixl-aio demo: interrupted; all processes were ended"]
        assert status == 130
