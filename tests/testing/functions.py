"""What second processes run in these tests."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any

from hixl_aio import Access, Engine, Peer
from hixl_aio.testing import Parent


async def echo(parent: Parent) -> int:
    """Say what is heard, until nothing more comes; return how often."""
    count = 0
    while (heard := await parent.hear()) is not None:
        await parent.say(heard)
        count += 1
    return count


async def give_back(parent: Parent, **arguments: Any) -> dict[str, Any]:
    """Return the arguments, having printed."""
    print("printed by the other process")
    return arguments


async def say_much(parent: Parent, nbytes: int) -> str:
    """Say and return more than a socket takes."""
    await parent.say("x" * nbytes)
    return "y" * nbytes


async def fail(parent: Parent) -> None:
    """Raise."""
    raise ValueError("wrong on purpose")


async def return_an_object(parent: Parent) -> object:
    """Return what JSON cannot carry."""
    return object()


async def leave(parent: Parent, how: str) -> None:
    """End without returning."""
    if how == "exit":
        os._exit(3)
    if how == "zero":
        os._exit(0)
    if how == "sys":
        sys.exit(4)
    os.kill(os.getpid(), signal.SIGSEGV)


async def stay(parent: Parent) -> None:
    """Never end by itself, whatever comes."""
    await parent.say("here")
    while True:
        signal.pause()


async def where(parent: Parent) -> dict[str, Any]:
    """What the process finds itself to be."""
    descriptors: list[str] = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists
            descriptors.append(os.readlink(f"/proc/self/fd/{number}"))
    argv = sys.argv[1:]
    return {"parent": os.getppid(), "session": os.getsid(0), "argv": argv, "descriptors": descriptors}


class Named:
    """A place for a function that is not at the top of a module, but has a name."""

    @staticmethod
    async def inside(parent: Parent) -> str:
        return "found"


async def serve(engine: Engine, peer: Peer, *, label: str) -> str:
    """As a peer: a region, until told to stop."""
    await engine.allocate(4096, label=label, access=Access.READ_WRITE)
    await engine.signal(peer, "ready")
    return (await engine.wait_signal("stop", peer=peer)).payload.decode()


async def fail_as_a_peer(engine: Engine, peer: Peer) -> None:
    """As a peer: raise at once."""
    raise ValueError("wrong on purpose")
