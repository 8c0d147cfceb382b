"""Too little memory, a full file system, a limit: an error of a call or of an operation, never a signal."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys

import pytest

from hixl_aio import Engine, EngineOptions, TransferFailedError

from .harness import child

NBYTES = 8 << 20


def may_mount() -> bool:
    """In a process of its own, because it cannot be taken back."""
    program = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x00020000) != 0)"
    return subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


needs_mount = pytest.mark.skipif(not may_mount(), reason="needs a mount namespace of its own (root)")


@pytest.mark.asyncio
@needs_mount
async def test_a_small_dev_shm_limits_nothing() -> None:
    """allocate() makes memfds: /dev/shm may have one page, and 8 MiB are there and written by a peer."""
    async with Engine() as engine, child("serve_with_small_dev_shm", address="", nbytes=NBYTES) as owner:
        heard = await owner.hear()
        assert heard["free"] <= 1
        peer = await engine.connect(heard["address"])
        source = await engine.allocate(NBYTES)
        source.view()[:] = b"\x5a" * NBYTES
        await engine.put(source, peer.region("inbox"))
        assert "shm" in {link.name for link in peer.route}
        owner.say(do="digest")
        assert (await owner.hear())["digest"] == hashlib.blake2b(source.view()).hexdigest()


@pytest.mark.asyncio
@needs_mount
@pytest.mark.parametrize("links", [("cma",), ("cooperative",)], ids=lambda links: str(links[0]))
async def test_a_file_that_has_no_room_fails_the_put_and_not_the_process(links: tuple[str, ...]) -> None:
    """SharedMemory larger than its /dev/shm: what reaches the missing part fails, the owner goes on."""
    async with (
        Engine(options=EngineOptions(links=links)) as engine,
        child("serve_file_without_room", address="", nbytes=NBYTES) as owner,
    ):
        peer = await engine.connect((await owner.hear())["address"])
        source = await engine.allocate(NBYTES)
        source.view()[:] = b"\x5a" * NBYTES
        inbox = peer.region("inbox")
        await engine.put(source[:4096], inbox[:4096])
        with pytest.raises(TransferFailedError):
            await engine.put(source, inbox)
        owner.say(do="look")
        assert (await owner.hear())["head"] == "5a5a5a5a"
        await engine.put(source[:64], inbox[:64])


@pytest.mark.asyncio
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter names x86-64 system calls")
async def test_a_mapped_file_is_refused_where_it_could_not_be_copied_safely() -> None:
    """Behind a filter that forbids process_vm even on oneself: the error names file, cause and ways out."""
    async with child("register_file_behind_filter", address="") as process:
        heard = await process.hear()
    assert heard["error"] == "UnsupportedError"
    for word in ("file", "process_vm_readv", "Operation not permitted", "allocate()", "seccomp"):
        assert word in heard["text"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("limit", "value", "refused"),
    [
        ("RLIMIT_AS", 128 << 20, {"LOCAL", "WRITE"}),
        ("RLIMIT_DATA", 1 << 20, {"LOCAL"}),
        ("RLIMIT_FSIZE", 64 << 20, {"WRITE"}),
    ],
)
async def test_a_limit_is_an_error_of_allocate(limit: str, value: int, refused: set[str]) -> None:
    """What it forbids raises with the numbers; what not is there to the last page; little still works."""
    async with child("allocate_within", address="", limit=limit, value=value) as process:
        heard = [await process.hear() for _ in range(2)]
        assert (await process.hear())["done"]
    assert {each["access"] for each in heard if each["error"] == "ResourceExhaustedError"} == refused
    for each in heard:
        assert each["error"] is None or str(256 << 20) in each["text"]
