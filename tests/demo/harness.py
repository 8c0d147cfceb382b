"""Runs of the demo in processes of their own, watched from outside."""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final

__all__ = ("LIMIT", "Demo", "command_line", "options", "tapped")

LIMIT: Final = 2.0  # seconds that everything has to end in
_ROOT: Final = Path(__file__).parents[2]
_MARK: Final = "HIXL_AIO_TEST_RUN"
_PATIENCE: Final = 40.0  # seconds until something that must happen is missed


def command_line(*arguments: str) -> list[str]:
    """`hixl-aio` with these arguments."""
    return [sys.executable, "-c", "from hixl_aio.cli import main; main()", *arguments]


def options(**values: Any) -> str:
    """Options for the tiny model, as `tests.demo.parent` takes them."""
    return json.dumps({"model": "tiny", "prompts": ["one", "zwei", "三"], "max_tokens": 30} | values)


def tapped(**values: Any) -> list[str]:
    """The demo whose children tell on standard error what they do."""
    return [sys.executable, "-m", "tests.demo.parent", options(**values), "tests.demo.tapped"]


class Demo:
    """One run. Leaving the block checks that nothing of it is left."""

    def __init__(
        self,
        directory: Path,
        command: list[str],
        environment: Mapping[str, str] = MappingProxyType({}),
        *,
        full: bool = False,
    ) -> None:
        """With `full` its standard output is a pipe without room, from which nobody reads."""
        self.out = self.err = ""
        self._mark = uuid.uuid4().hex
        self._directory = directory
        for name in ("tmp", "cache"):
            (directory / name).mkdir(exist_ok=True)
        self._before = self._files()
        self._environment = os.environ | {
            _MARK: self._mark,
            "PYTHONPATH": str(_ROOT),
            "TMPDIR": str(directory / "tmp"),
            "HIXL_AIO_CACHE": str(directory / "cache"),
            **environment,
        }
        self._command = command
        self._full = full
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Demo:
        reader, writer = os.pipe()
        if self._full:
            os.write(writer, bytes(fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)))
        self._out = open(reader, "rb", buffering=0)
        self.process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.PIPE,
            env=self._environment,
            cwd=self._directory,
        )
        os.close(writer)
        assert self.process.stderr is not None
        self._selector.register(self.process.stderr, selectors.EVENT_READ, "err")
        if not self._full:
            self._selector.register(self._out, selectors.EVENT_READ, "out")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._selector.close()
        try:
            if kind is None:
                self._check_nothing_is_left()
        finally:
            for pid in self._processes():
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
            assert self.process.stderr is not None
            self.process.stderr.close()
            self._out.close()

    def _read(self, deadline: float) -> bool:
        """Take in what comes next; False if all is said."""
        if not self._selector.get_map():
            return False
        ready = self._selector.select(max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing came for too long after\n{self.out}\n{self.err}"
        for key, _ in ready:
            data = os.read(key.fd, 1 << 16)
            if not data:
                self._selector.unregister(key.fileobj)
            text = data.decode("utf-8", "replace")
            setattr(self, key.data, getattr(self, key.data) + text)
        return True

    def until(self, text: str, count: int = 1, *, stream: str = "err") -> None:
        """Read on until this has come that many times."""
        deadline = time.monotonic() + _PATIENCE
        while getattr(self, stream).count(text) < count:
            assert self._read(deadline), f"{text!r} never came:\n{self.out}\n{self.err}"

    def close_output(self) -> None:
        """Close our end of its standard output."""
        self._selector.unregister(self._out)
        self._out.close()

    def events(self, role: str) -> list[str]:
        """What this child has told so far."""
        lines = (line.split(" ", 3) for line in self.err.splitlines() if line.startswith("EVENT "))
        return [parts[3] for parts in lines if parts[2] == role]

    def pid(self, role: str) -> int:
        """The process id of this child, which has told something already."""
        lines = (line.split(" ", 3) for line in self.err.splitlines() if line.startswith("EVENT "))
        return next(int(parts[1]) for parts in lines if parts[2] == role)

    def kill(self, role: str, number: int) -> float:
        """Send a signal to the parent or a child; returns when that was."""
        os.kill(self.process.pid if role == "parent" else self.pid(role), number)
        return time.monotonic()

    def finish(self) -> int:
        """Read everything there is; returns the exit status."""
        deadline = time.monotonic() + _PATIENCE
        while self._read(deadline):
            pass
        return self.process.wait(_PATIENCE)

    def ends_since(self, since: float) -> tuple[int, list[str]]:
        """The exit status and the messages of an end that was due; every process is gone in time."""
        status = self.process.wait(LIMIT)
        while self._processes():
            assert time.monotonic() - since < LIMIT, "a process is left"
            time.sleep(0.005)
        assert time.monotonic() - since < LIMIT, "it took too long"
        self.finish()
        return status, self.messages()

    def messages(self) -> list[str]:
        """Lines on standard error, without those that the test has asked for."""
        ours = ("EVENT ", "import time:")
        return [line for line in self.err.splitlines() if not line.startswith(ours)]

    def _processes(self) -> set[int]:
        """Running processes of this run, by what they have inherited."""
        found = set()
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == self.process.pid:
                continue
            try:
                environment = Path(f"/proc/{entry}/environ").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if f"{_MARK}={self._mark}".encode() in environment:
                found.add(int(entry))
        return found

    def _files(self) -> set[str]:
        places = (self._directory / "tmp", self._directory / "cache")
        return {str(path) for place in places for path in place.rglob("*")}

    def _check_nothing_is_left(self) -> None:
        assert not self._processes(), "a process is left"
        model = {path for path in self._files() if path.endswith(".gguf")}
        left = self._files() - self._before - model
        assert not left, f"files are left: {left}"
