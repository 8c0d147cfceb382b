"""The machine without the library: native/bench/floors.cc. The caller vouches for addresses."""

from typing import final

GONE: int
"""A counter this high on an eventfd says that the other process is gone."""

def can_stream() -> bool:
    """Are there stores that go past the caches?"""

def nothing() -> None:
    """An empty call."""

def copy(to: int, source: int, nbytes: int, /) -> None:
    """One memcpy, with the GIL held: for small sizes."""

def copy_between(to: object, to_offset: int, source: object, source_offset: int, nbytes: int, /) -> None:
    """One memcpy between two buffers, checked, with the GIL held."""

def copy_many(to: int, source: int, nbytes: int, repetitions: int, threads: int, streaming: bool, /) -> None:
    """A memcpy shared by threads that begin each repetition together."""

@final
class Crew:
    """Threads that sleep until there is something to copy, and ring an eventfd when it is done."""

    def __init__(self, threads: int, /) -> None: ...
    def fileno(self) -> int: ...
    def copy(self, to: int, source: int, nbytes: int, streaming: bool, /) -> None:
        """Begin a memcpy; wait for the ring before the next one."""

def copy_blocks(
    to: int, source: int, to_offsets: object, source_offsets: object, nbytes: int, repetitions: int, /
) -> None:
    """One memcpy for each block; offsets are int64."""

def write_process(pid: int, remote: int, local: int, nbytes: int, repetitions: int, threads: int, /) -> None:
    """process_vm_writev."""

def read_process(pid: int, remote: int, local: int, nbytes: int, repetitions: int, threads: int, /) -> None:
    """process_vm_readv."""

def ping(out: int, into: int, rounds: int, /) -> bool:
    """Write one eventfd and read another, blocking. False if the other process is gone."""

def pong(into: int, out: int, /) -> None:
    """Answer pings until the counter says that the other process is gone."""

def start_threads(threads: int, repetitions: int, /) -> None:
    """Start threads that do nothing, and join them."""
