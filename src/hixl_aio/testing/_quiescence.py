"""Has everything come to rest? What a test may leave behind, and how it is found."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from hixl_aio._core.lifecycle import LifeState
from hixl_aio._runtime import _open_runtimes
from hixl_aio.testing._errors import NotQuiescentError

if TYPE_CHECKING:
    from hixl_aio._runtime import Runtime
    from hixl_aio.engine import Engine

__all__ = ("Resources", "check_quiescent", "unsettled")

# Workers that belong to an event loop, which may outlive a test, or to a process-wide cache.
_LOOP_WORKERS: Final = ("thread asyncio_", "thread AnyIO worker thread", "thread Trio thread ")
_JOINED: Final = 1.0  # seconds until what a joined thread leaves in /proc must be gone
_ZERO_WHEN_CLOSED: Final = ("in_flight", "regions", "busy_regions", "peers", "unread_signals")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Resources:
    """Engines, descriptors, threads and child processes of this process, at one moment.

    Attributes:
        engines: those that are not closed, or closed with something left, in words.
        descriptors: numbers and what they lead to.
        threads: numbers and names. Python's and those of engines count; libraries of mathematics have their
            own, and keep them.
        children: process ids.
    """

    engines: frozenset[str]
    descriptors: Mapping[str, str]
    threads: Mapping[int, str]
    children: frozenset[str]

    @classmethod
    def now(cls) -> Resources:
        """Look."""
        return cls(frozenset(_engines()), dict(_descriptors()), dict(_threads()), frozenset(_children()))

    def added_since(
        self, before: Resources, *, only_engines: bool = False, patience: float = 1.0
    ) -> list[str]:
        """What is here, was not there, and does not go by itself, in words.

        Args:
            before: an earlier look.
            only_engines: do not look at descriptors, threads and child processes.
            patience: seconds for descriptors to go: a peer that stays open closes its own end a moment later.
        """
        left = sorted(self.engines - before.engines)
        if only_engines:
            return left
        opened = self.descriptors.items() - before.descriptors.items()
        opened = {(number, kind) for number, kind in opened if not kind.startswith("/proc/")}
        kept = _settled(lambda: opened & set(_descriptors()), patience)
        left += [f"descriptor {number} to {kind}" for number, kind in sorted(kept)]
        children = (self.children - before.children) & set(_children())
        left += [f"child process {pid} ({_command(pid)})" for pid in sorted(children)]
        # By number: a thread that has just been started may not have taken its name yet.
        started = self.threads.keys() - before.threads.keys()
        threads = _settled(lambda: {t for t in _threads() if t[0] in started and _matters(t[1])}, _JOINED)
        return left + [f"{name} ({number})" for number, name in sorted(threads)]


def _descriptors() -> Iterator[tuple[str, str]]:
    for name in os.listdir("/proc/self/fd"):
        if name in ("0", "1", "2"):
            continue  # whoever captures output redirects them
        try:
            yield name, os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the one that listed the directory


def _threads() -> Iterator[tuple[int, str]]:
    ours = {thread.native_id: f"thread {thread.name}" for thread in threading.enumerate()}
    for task in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            native = Path(f"/proc/self/task/{task}/comm").read_text().strip()
            yield task, ours.get(task, f"native thread {native}")


def _matters(name: str) -> bool:
    """Python's threads, but not the workers of loops; and those of engines."""
    return name.startswith(("thread ", "native thread hixl")) and not name.startswith(_LOOP_WORKERS)


def _children() -> Iterator[str]:
    for task in os.listdir("/proc/self/task"):
        try:
            yield from Path(f"/proc/self/task/{task}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


def _settled(look: Callable[[], Set[_T]], patience: float) -> Set[_T]:
    limit = time.monotonic() + patience
    while (left := look()) and time.monotonic() < limit:
        time.sleep(0.001)
    return left


# ---- engines


def _engines() -> Iterator[str]:
    for runtime in list(_open_runtimes):
        match runtime.life.state:
            case LifeState.FORKED:
                continue
            case LifeState.CLOSED:
                yield from _counted(runtime)
            case state:
                yield f"engine {runtime.name} is {state.value}"


def _counted(runtime: Runtime) -> Iterator[str]:
    counts = runtime.statistics()
    for name in _ZERO_WHEN_CLOSED:
        if value := getattr(counts, name):
            yield f"engine {runtime.name} is closed with {name} = {value}"
    if len(runtime.requests):
        yield f"engine {runtime.name} is closed with {len(runtime.requests)} unanswered requests"


async def unsettled(engine: Engine, *, patience: float = 1.0) -> list[str]:
    """What an open engine still has under way or unread, in words; empty when it is at rest.

    Args:
        engine: the engine.
        patience: seconds for what is under way to settle: a transfer may be dropped and still end well.
    """
    runtime = engine._runtime
    if not runtime.is_open:
        return []
    gate = runtime.ops.table.empty_gate(runtime.bridge.wake)
    if gate is not None:
        _, cancelled = await runtime.bridge.hold(gate, patience, patient=False)
        if cancelled is not None:
            raise cancelled
    runtime.on_readable()  # what has arrived counts as unread
    name = runtime.name
    operations: Counter[str] = Counter()
    for operation in runtime.ops.table:
        peer, state = operation.line.address, operation.state.name.lower()
        operations[f"{operation.kind.value} with {peer}, {state}"] += 1
    left = [f"engine {name}: {text} ({count})" for text, count in operations.items()]
    regions = [record.label for record in runtime.regions.records.values() if record.pins]
    left += [f"engine {name}: region {label!r} is busy" for label in regions]
    unread = runtime.mail.inbox.names()
    return left + [f"engine {name}: signal {text!r} is unread ({count})" for text, count in unread.items()]


async def check_quiescent(engine: Engine, *, patience: float = 1.0) -> None:
    """Nothing of an open engine is in flight, abandoned, quarantined, busy or unread.

    Args:
        engine: the engine.
        patience: seconds for what is under way to settle.

    Raises:
        NotQuiescentError: something is; lists what.
    """
    left = await unsettled(engine, patience=patience)
    if left:
        raise NotQuiescentError(left)
