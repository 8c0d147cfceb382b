"""What the second process of a test does: coroutine functions for `child_process`."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import importlib
import mmap
import os
import resource
import struct
import tempfile
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import hixl_aio
from hixl_aio import Access, Engine, EngineOptions, MemoryRegion
from hixl_aio.testing import Parent


def options(links: list[str]) -> EngineOptions:
    return EngineOptions(links=tuple(links))


async def make_region(engine: Engine, memory: str, nbytes: int, label: str, access: Access) -> MemoryRegion:
    if memory == "allocate":
        return await engine.allocate(nbytes, label=label, access=access)
    return await engine.register(mmap.mmap(-1, nbytes), label=label, access=access)


def digest(region: MemoryRegion) -> str:
    return hashlib.blake2b(region.view()).hexdigest()


async def serve(
    parent: Parent, links: list[str], memory: str, nbytes: int, address: str = "127.0.0.1:0"
) -> None:
    """A target with one region; answers commands until its input ends."""
    async with Engine(address, options=options(links)) as engine:
        region = await make_region(engine, memory, nbytes, "inbox", Access.READ_WRITE)
        await parent.say({"address": engine.address, "pid": os.getpid()})
        while (command := await parent.hear()) is not None:
            if command["do"] == "digest":
                await parent.say({"digest": digest(region)})
            elif command["do"] == "fill":
                region.view()[:] = bytes([command["byte"]]) * nbytes
                await parent.say({"filled": True})
            elif command["do"] == "signal":
                signal = await engine.wait_signal(command["name"])
                await parent.say(
                    {
                        "payload": signal.payload.decode(),
                        "error": signal.error is not None,
                        "digest": digest(region),
                    }
                )
            elif command["do"] == "stick":
                await stick(parent, command["fd_path"])
                await parent.say({"unstuck": True})
            elif command["do"] == "peers":
                await parent.say({"peers": sorted(engine.peers)})
            elif command["do"] == "close":
                await region.aclose()
                await parent.say({"closed": True})


async def stick(parent: Parent, path: str) -> None:
    """Block in a C call that keeps the GIL, until somebody opens and writes the fifo."""
    fd = os.open(path, os.O_RDWR)  # read-write: opening does not wait for the writer
    buffer = ctypes.create_string_buffer(1)
    await parent.say({"stuck": True})
    ctypes.PyDLL(None).read(fd, buffer, 1)  # PyDLL, not CDLL: the GIL is held
    os.close(fd)


async def visit(parent: Parent, address: str) -> None:
    """Connect, put with a bound signal, say good-bye, and end."""
    async with Engine() as engine:
        peer = await engine.connect(address)
        source = await engine.register(bytearray(b"result"))
        await engine.put(source, peer.region("inbox")[:6], signal="done", payload=b"1")
        await engine.signal(peer, "bye")


async def visit_nobody(parent: Parent, address: str) -> None:
    """Connect, map all that is there, and wait to be killed."""
    async with Engine() as engine:
        await parent.say({"regions": (await engine.connect(address)).region("inbox").nbytes})
        await asyncio.Event().wait()


async def put_for_ever(parent: Parent, address: str, links: list[str], nbytes: int) -> None:
    """An initiator that writes into the peer's inbox until it is killed."""
    async with Engine(options=options(links)) as engine:
        source = await engine.allocate(nbytes)
        peer = await engine.connect(address)
        inbox = peer.region("inbox")
        await engine.put(source, inbox)
        await parent.say({"started": True})
        while True:
            await engine.put(source, inbox)


async def storm(parent: Parent, address: str, links: list[str], memory: str, nbytes: int) -> None:
    """Everything at once for ever, to be killed at any moment.

    Puts, gets and batches of all sizes, each put with a signal, and regions that come and go; the test does
    the same to us.
    """
    async with Engine(options=options(links)) as engine:
        await make_region(engine, memory, nbytes, "storm", Access.READ_WRITE)
        source = await make_region(engine, memory, nbytes, "source", Access.LOCAL)
        peer = await engine.connect(address)
        inbox = peer.region("inbox")
        await parent.say({"started": True})

        async def move(size: int) -> None:
            while True:
                try:
                    await engine.put(source[:size], inbox[:size], signal="storm", payload=b"x" * 100)
                except hixl_aio.SignalQueueFullError:
                    await asyncio.sleep(0)  # the test is slower than we are
                await engine.get(inbox[:size], source[:size])
                await engine.batch(
                    [hixl_aio.Put(source[:size], inbox[nbytes - size :]), hixl_aio.Get(inbox[:1], source[:1])]
                )

        async def come_and_go() -> None:
            while True:
                region = await make_region(engine, memory, 4096, "passing", Access.READ_WRITE)
                await region.aclose()

        await asyncio.gather(move(1), move(100_000), move(nbytes), come_and_go())


async def write_generations(parent: Parent, address: str, links: list[str], nbytes: int) -> None:
    """Write 0x57 into whatever is called "inbox" at the moment, until told to stop; count what came of it."""
    written = stale = absent = 0
    async with Engine(options=options(links)) as engine:
        source = await engine.allocate(nbytes)
        source.view()[:] = b"\x57" * nbytes
        peer = await engine.connect(address)
        ended = asyncio.ensure_future(parent.hear())
        await parent.say({"started": True})
        while not ended.done():
            try:
                await engine.put(source, peer.region("inbox"))
                written += 1
            except hixl_aio.StaleRegionError:
                stale += 1
            except hixl_aio.NotRegisteredError:
                absent += 1
            await asyncio.sleep(0)
        await parent.say({"written": written, "stale": stale, "absent": absent})


async def write_with_kept_key(parent: Parent, address: str, links: list[str], nbytes: int) -> None:
    """Write 0x57 under one key until that is stale, and three times more; when told, take the next one."""
    async with Engine(options=options(links)) as engine:
        source = await engine.allocate(nbytes)
        source.view()[:] = b"\x57" * nbytes
        peer = await engine.connect(address)

        async def refresh_for_ever() -> None:
            while True:
                await peer.refresh()

        refreshing = asyncio.ensure_future(refresh_for_ever())
        while (await engine.wait_signal("go on", peer=peer)).payload != b"end":
            await peer.refresh()
            inbox = peer.region("inbox")
            stale = 0
            while stale < 4:
                try:
                    await engine.put(source, inbox)
                except hixl_aio.StaleRegionError:
                    stale += 1
            await engine.signal(peer, "stale")
        refreshing.cancel()


async def forbid_process_vm(parent: Parent, address: str) -> None:
    """Connect from behind a seccomp filter that refuses process_vm_readv and process_vm_writev, and put."""
    refuse_system_calls((310, 311))
    async with Engine() as engine:
        source = await engine.register(bytearray(range(256)) * 4096)
        peer = await engine.connect(address)
        await engine.put(source, peer.region("inbox"))
        await parent.say(
            {"route": [[link.name, link.reason] for link in peer.route], "digest": digest(source)}
        )


def refuse_system_calls(numbers: tuple[int, ...]) -> None:
    """A seccomp filter (x86-64) that answers EPERM to these and allows the rest."""
    load_number = struct.pack("HBBI", 0x20, 0, 0, 0)
    allow = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
    refuse = struct.pack("HBBI", 0x06, 0, 0, 0x00050000 | 1)
    program = load_number
    for index, number in enumerate(numbers):
        program += struct.pack("HBBI", 0x15, len(numbers) - index, 0, number)
    program += allow + refuse
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    pr_set_no_new_privs, pr_set_seccomp, filter_mode = 38, 22, 2
    if libc.prctl(pr_set_no_new_privs, 1, 0, 0, 0) or libc.prctl(pr_set_seccomp, filter_mode, header, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


async def serve_as_nobody(parent: Parent, links: list[str], dumpable: bool) -> None:
    """A target without privileges, closed to process_vm if not dumpable; told to, it closes itself later."""
    become_nobody(dumpable=dumpable)
    async with Engine(options=options(links)) as engine:
        inbox = await engine.register(mmap.mmap(-1, NOBODYS_NBYTES), label="inbox", access=Access.READ_WRITE)
        shared = await engine.allocate(NOBODYS_NBYTES, label="shared", access=Access.READ_WRITE)
        await parent.say({"address": engine.address})
        while (command := await parent.hear()) is not None:
            if command["do"] == "lock":
                set_dumpable(False)
            await parent.say({"inbox": digest(inbox), "shared": digest(shared)})


NOBODYS_NBYTES = 300 * 4096


async def put_as_nobody(parent: Parent, address: str, links: list[str]) -> None:
    """Connect without a privilege and put what is asked for; say how that went."""
    become_nobody(dumpable=True)
    async with Engine(options=options(links)) as engine:
        source = await engine.register(bytearray(range(256)) * (NOBODYS_NBYTES // 256))
        try:
            peer = await engine.connect(address)
        except hixl_aio.HixlAioError as error:
            await parent.say({"error": type(error).__name__, "text": str(error)})
            return
        await parent.say(
            {"route": [[link.name, link.reason] for link in peer.route], "digest": digest(source)}
        )
        while (command := await parent.hear()) is not None:
            try:
                await engine.put(source, peer.region(command["into"]))
                await parent.say({"error": None})
            except hixl_aio.HixlAioError as error:
                await parent.say({"error": type(error).__name__, "text": str(error), "busy": source.busy})


def become_nobody(*, dumpable: bool) -> None:
    """Change to a user without privileges, after which a process is dumpable only if it says so."""
    for module in ("anyio._core._sockets", "anyio._backends._asyncio"):
        importlib.import_module(module)  # anyio does so late, when files may be out of reach
    os.setgid(65534)
    os.setuid(65534)
    set_dumpable(dumpable)


def set_dumpable(dumpable: bool) -> None:
    pr_set_dumpable = 4
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_dumpable, int(dumpable), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


async def serve_with_small_dev_shm(parent: Parent, address: str, nbytes: int) -> None:
    """In a mount namespace where /dev/shm has one page: allocate, and be written to."""
    mount_small_tmpfs("/dev/shm", 4096)
    async with Engine() as engine:
        region = await engine.allocate(nbytes, label="inbox", access=Access.READ_WRITE)
        await parent.say({"address": engine.address, "free": os.statvfs("/dev/shm").f_bavail})
        while await parent.hear() is not None:
            await parent.say({"digest": digest(region)})


async def serve_file_without_room(parent: Parent, address: str, nbytes: int) -> None:
    """Register a sparse file on a file system that has room for less, as SharedMemory makes it."""
    mount_small_tmpfs("/dev/shm", nbytes // 2)
    async with Engine() as engine:
        memory = SharedMemory(create=True, size=nbytes)  # says nothing of the missing room
        assert memory.buf is not None
        region = await engine.register(memory.buf, label="inbox", access=Access.READ_WRITE)
        await parent.say({"address": engine.address})
        while await parent.hear() is not None:
            await parent.say({"head": bytes(region.view()[:4]).hex()})
        await region.aclose()
        memory.unlink()
        memory.close()


def mount_small_tmpfs(path: str, nbytes: int) -> None:
    """Only this process sees it."""
    clone_newns, ms_rec, ms_private = 0x00020000, 0x4000, 1 << 18
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.unshare(clone_newns)
        or libc.mount(None, b"/", None, ms_rec | ms_private, None)
        or libc.mount(b"tmpfs", path.encode(), b"tmpfs", 0, f"size={nbytes}".encode())
    ):
        raise OSError(ctypes.get_errno(), "mount")


async def register_file_behind_filter(parent: Parent, address: str) -> None:
    """Register a mapped file where process_vm is refused, and memory of our own beside it."""
    refuse_system_calls((310, 311))
    async with Engine() as engine:
        with tempfile.TemporaryFile() as file:
            file.truncate(4096)
            try:
                await engine.register(mmap.mmap(file.fileno(), 4096))
            except hixl_aio.HixlAioError as error:
                await parent.say({"error": type(error).__name__, "text": str(error)})
        await (await engine.register(bytearray(4096))).aclose()


async def allocate_within(parent: Parent, address: str, limit: str, value: int) -> None:
    """Allocate more than a resource limit allows, then little; say what came of both."""
    async with Engine() as engine:
        await (
            await engine.allocate(1 << 20, access=Access.WRITE)
        ).aclose()  # threads and arenas are there now
        value += used_of(limit)
        resource.setrlimit(getattr(resource, limit), (value, value))
        for access in (Access.LOCAL, Access.WRITE):
            try:
                region = await engine.allocate(256 << 20, access=access)
            except hixl_aio.ResourceExhaustedError as error:
                await parent.say({"access": access.name, "error": type(error).__name__, "text": str(error)})
            else:
                region.view()[:: mmap.PAGESIZE] = b"\x01" * (region.nbytes // mmap.PAGESIZE)
                await region.aclose()
                await parent.say({"access": access.name, "error": None})
        async with await engine.allocate(4096, access=Access.WRITE) as small:
            small.view()[:] = b"\x02" * 4096
        await parent.say({"done": True})


async def put_without_room_to_map(parent: Parent, address: str, links: list[str], nbytes: int) -> None:
    """Connect and put where the peer's memory does not fit into our address space; then where it does."""
    async with Engine(options=options(links)) as engine:
        source = await engine.register(bytearray(b"\x33" * 4096))
        await (await engine.allocate(4096, access=Access.WRITE)).aclose()  # threads and arenas are there now
        room = used_of("RLIMIT_AS") + nbytes // 2
        resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
        peer = await engine.connect(address)
        for limit in (room, resource.RLIM_INFINITY):
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            said: dict[str, object] = {"route": [link.name for link in peer.route]}
            for label in ("large", "small"):
                try:
                    await engine.put(source, peer.region(label)[:4096])
                    said[label] = None
                except hixl_aio.HixlAioError as error:
                    said[label] = f"{type(error).__name__}: {error}"
            await parent.say(said)


async def own_three_but_one(parent: Parent, address: str, limit: str, value: int) -> None:
    """Three regions, the second of which a resource limit forbids; then it may be made after all."""
    async with Engine() as engine:
        await engine.connect(address)
        kept = [await engine.allocate(2 << 20, label="first", access=Access.READ_WRITE)]
        which = getattr(resource, limit)
        old, before, said = resource.getrlimit(which), len(os.listdir("/proc/self/fd")), ""
        resource.setrlimit(which, (value, old[1]))
        try:
            await engine.allocate(4 << 20, label="second", access=Access.READ_WRITE)
        except hixl_aio.ResourceExhaustedError as error:
            said = str(error)
        resource.setrlimit(which, old)
        left = len(os.listdir("/proc/self/fd")) - before
        kept.append(await engine.allocate(2 << 20, label="third", access=Access.READ_WRITE))
        await parent.say({"error": said, "left": left, "regions": engine.statistics().regions})
        await parent.hear()
        kept.append(await engine.allocate(4 << 20, label="second", access=Access.READ_WRITE))
        await parent.say({"digests": [digest(region) for region in kept]})
        await parent.hear()
        await parent.say({"second": digest(kept[2])})


def used_of(limit: str) -> int:
    """What this process has of it already: below that, not even glibc survives."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    field = {"RLIMIT_AS": "VmSize", "RLIMIT_DATA": "VmData"}.get(limit)
    return 0 if field is None else int(status[field].split()[0]) * 1024


def join_group(group: str) -> None:
    Path(group, "cgroup.procs").write_text(str(os.getpid()))


async def allocate_within_group(parent: Parent, address: str, group: str) -> None:
    """Less and more than a memory control group has left, as memory of ours and as memory for peers."""
    join_group(group)
    async with Engine() as engine:
        for nbytes in (64 << 20, 256 << 20):
            for access in (Access.LOCAL, Access.WRITE):
                try:
                    region = await engine.allocate(nbytes, access=access)
                except hixl_aio.ResourceExhaustedError as error:
                    await parent.say({"nbytes": nbytes, "error": type(error).__name__, "text": str(error)})
                else:
                    region.view()[:: mmap.PAGESIZE] = b"\x01" * (region.nbytes // mmap.PAGESIZE)
                    await region.aclose()
                    await parent.say({"nbytes": nbytes, "error": None})


async def serve_in_group(parent: Parent, address: str, group: str, nbytes: int) -> None:
    """Own an inbox within a memory control group, then use memory until the kernel ends this process."""
    join_group(group)
    async with Engine() as engine, await engine.allocate(nbytes, label="inbox", access=Access.WRITE):
        await parent.say({"address": engine.address})
        await parent.hear()
        eaten = []
        while True:
            eaten.append(bytearray(os.urandom(1 << 20)))


async def connect_as_nobody(parent: Parent, address: str) -> None:
    """Connect to an engine of another user."""
    os.setgid(65534)
    os.setuid(65534)
    async with Engine() as engine:
        try:
            await engine.connect(address)
        except hixl_aio.HixlAioError as error:
            await parent.say({"error": type(error).__name__, "text": str(error)})
        else:
            await parent.say({"error": None})


async def meet(parent: Parent, go: str) -> None:
    """Connect to an address that is told, at the moment it is told."""
    async with Engine(name=go) as engine:
        await parent.say({"address": engine.address})
        while (command := await parent.hear()) is not None:
            peer = await engine.connect(command["address"])
            await parent.say({"peers": [p.address for p in engine.peers.values()], "name": peer.name})
