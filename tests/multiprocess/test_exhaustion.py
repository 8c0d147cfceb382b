"""Too little memory, a full file system, a limit: an error of a call or of an operation, never a signal."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hixl_aio import Access, Engine, EngineOptions, NotRegisteredError, PeerLostError, TransferFailedError
from hixl_aio.testing import ProcessFailedError, child_process

from . import children

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
    async with (
        Engine() as engine,
        child_process(children.serve_with_small_dev_shm, address="", nbytes=NBYTES) as owner,
    ):
        heard = await owner.hear()
        assert heard["free"] <= 1
        peer = await engine.connect(heard["address"])
        source = await engine.allocate(NBYTES)
        source.view()[:] = b"\x5a" * NBYTES
        await engine.put(source, peer.region("inbox"))
        assert "shm" in {link.name for link in peer.route}
        await owner.say({"do": "digest"})
        assert (await owner.hear())["digest"] == hashlib.blake2b(source.view()).hexdigest()


@pytest.mark.asyncio
@needs_mount
@pytest.mark.parametrize("links", [("cma",), ("cooperative",)], ids=lambda links: str(links[0]))
async def test_a_file_that_has_no_room_fails_the_put_and_not_the_process(links: tuple[str, ...]) -> None:
    """SharedMemory larger than its /dev/shm: what reaches the missing part fails, the owner goes on."""
    async with (
        Engine(options=EngineOptions(links=links)) as engine,
        child_process(children.serve_file_without_room, address="", nbytes=NBYTES) as owner,
    ):
        peer = await engine.connect((await owner.hear())["address"])
        source = await engine.allocate(NBYTES)
        source.view()[:] = b"\x5a" * NBYTES
        inbox = peer.region("inbox")
        await engine.put(source[:4096], inbox[:4096])
        with pytest.raises(TransferFailedError):
            await engine.put(source, inbox)
        await owner.say({"do": "look"})
        assert (await owner.hear())["head"] == "5a5a5a5a"
        await engine.put(source[:64], inbox[:64])


@pytest.mark.asyncio
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter names x86-64 system calls")
async def test_a_mapped_file_is_refused_where_it_could_not_be_copied_safely() -> None:
    """Behind a filter that forbids process_vm even on oneself: the error names file, cause and ways out."""
    async with child_process(children.register_file_behind_filter, address="") as process:
        heard = await process.hear()
    assert heard["error"] == "UnsupportedError"
    for word in ("file", "process_vm_readv", "Operation not permitted", "allocate()", "seccomp"):
        assert word in heard["text"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("limit", "value", "refused"),
    [
        ("RLIMIT_AS", 128 << 20, {"LOCAL", "WRITE"}),
        ("RLIMIT_DATA", 64 << 20, {"LOCAL"}),
        ("RLIMIT_FSIZE", 64 << 20, {"WRITE"}),
    ],
)
async def test_a_limit_is_an_error_of_allocate(limit: str, value: int, refused: set[str]) -> None:
    """What it forbids raises with the numbers; what not is there to the last page; little still works."""
    async with child_process(children.allocate_within, address="", limit=limit, value=value) as process:
        heard = [await process.hear() for _ in range(2)]
        assert (await process.hear())["done"]
    assert {each["access"] for each in heard if each["error"] == "ResourceExhaustedError"} == refused
    for each in heard:
        assert each["error"] is None or str(256 << 20) in each["text"]


@pytest.mark.asyncio
@pytest.mark.parametrize(("limit", "value"), [("RLIMIT_FSIZE", 3 << 20), ("RLIMIT_NOFILE", 0)])
async def test_a_region_that_cannot_be_made_leaves_nothing_and_the_others_whole(
    limit: str, value: int
) -> None:
    """The second of three fails in native code: its peer sees the first and the third, and writes both; the
    label is free for another attempt."""
    async with (
        Engine() as engine,
        child_process(children.own_three_but_one, address=engine.address, limit=limit, value=value) as owner,
    ):
        peer = await engine.accept()
        heard = await owner.hear()
        assert (heard["left"], heard["regions"]) == (0, 2)
        assert "cannot reserve 4194304 bytes" in heard["error"] or "ulimit -n" in heard["error"]
        await peer.refresh()
        with pytest.raises(NotRegisteredError):
            peer.region("second")
        source = await engine.allocate(4 << 20)
        for byte, label in ((b"\x01", "first"), (b"\x03", "third")):
            source.view()[:] = byte * (4 << 20)
            await engine.put(source[: 2 << 20], peer.region(label))
        await owner.say({})
        expected = [bytes([byte]) * (nbytes << 20) for byte, nbytes in ((1, 2), (3, 2), (0, 4))]
        digests = [hashlib.blake2b(content).hexdigest() for content in expected]
        assert (await owner.hear())["digests"] == digests
        await peer.refresh()
        await engine.put(source, peer.region("second"))
        await owner.say({})
        assert (await owner.hear())["second"] == hashlib.blake2b(b"\x03" * (4 << 20)).hexdigest()


@pytest.mark.asyncio
@pytest.mark.parametrize("links", [[], ["shm"]], ids=["all", "shm"])
async def test_a_peer_that_cannot_map_our_memory_harms_neither(links: list[str]) -> None:
    """Its address space has no room: it goes by another link, or its put is refused; what fits is written."""
    nbytes = 512 << 20
    async with Engine() as engine:
        large = await engine.allocate(nbytes, label="large", access=Access.READ_WRITE)
        small = await engine.allocate(8192, label="small", access=Access.READ_WRITE)
        large.view()[:4096] = b"\x11" * 4096
        async with child_process(
            children.put_without_room_to_map, address=engine.address, links=links, nbytes=nbytes
        ) as attacher:
            for _ in range(2):
                heard = await attacher.hear()
                assert heard["small"] is None
                assert (heard["large"] or "").startswith("UnsupportedError" if links else "")
        assert bytes(small.view()) == b"\x33" * 4096 + bytes(4096)
        assert bytes(large.view()[:8192]) == (b"\x11" if links else b"\x33") * 4096 + bytes(4096)


MIB = 1 << 20
LIMIT = 192 * MIB


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group below our own, with a limit; who writes its number to `cgroup.procs` is in it."""
    group = own_memory_group() / f"hixl-aio-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a memory control group here: {error}")
    try:
        limit = group / "memory.max"
        if not limit.exists():
            limit = group / "memory.limit_in_bytes"
        if not limit.exists():
            pytest.skip("the memory controller is not given on to groups below ours")
        limit.write_text(str(LIMIT))
        swap = group / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        yield group
    finally:
        group.rmdir()


def own_memory_group() -> Path:
    """Of version 1 where the memory controller is there, else of version 2."""
    found = Path("/nonexistent")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
        if not controllers:
            found = Path("/sys/fs/cgroup") / path.lstrip("/")
    return found


@pytest.mark.asyncio
async def test_a_control_group_limits_allocate_before_the_killer_comes(memory_group: Path) -> None:
    """More than the group has left is an error with the number; what it has is there to the last page."""
    async with child_process(children.allocate_within_group, address="", group=str(memory_group)) as process:
        heard = {each["nbytes"]: each for each in [await process.hear() for _ in range(4)]}
    assert {nbytes: each["error"] for nbytes, each in heard.items()} == {
        64 * MIB: None,
        256 * MIB: "ResourceExhaustedError",
    }
    assert str(256 * MIB) in heard[256 * MIB]["text"]


@pytest.mark.asyncio
async def test_a_peer_that_the_out_of_memory_killer_takes_is_lost_like_any_other(memory_group: Path) -> None:
    """In the middle of puts to it: they fail, a waiter hears within a second, and our memory is free."""
    nbytes = 16 * MIB
    async with (
        child_process(children.serve_in_group, address="", group=str(memory_group), nbytes=nbytes) as victim,
        Engine() as engine,
    ):
        peer = await engine.connect((await victim.hear())["address"])
        source = await engine.allocate(nbytes)
        waiting = engine.wait_signal("never", peer=peer)
        await victim.say({"do": "eat"})
        puts = [engine.put(source, peer.region("inbox")) for _ in range(100)]
        with pytest.raises(PeerLostError):
            await waiting
        heard = time.monotonic()
        for put in puts:
            await put.settled()
        assert time.monotonic() - heard < 1.0
        assert not source.busy
        with pytest.raises(ProcessFailedError, match="killed by SIGKILL"):
            await victim.result()
