"""Run as a script: the first lines of a second process. Nothing but the standard library until the parent has
said where to import from.

It dies with its parent. The parent's *thread* is what counts for the kernel; that is the one that runs the
loop, and it outlives the process because the process ends with a context manager on that loop.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys

__all__ = ("main",)


def _first_line(connected: socket.socket) -> bytes:
    """What follows the line stays in the socket."""
    line = bytearray()
    while not line.endswith(b"\n"):
        seen = connected.recv(1 << 16, socket.MSG_PEEK)
        if not seen:
            raise EOFError("the parent closed the socket before it had said what to run")
        end = seen.find(b"\n") + 1
        line += connected.recv(end or len(seen))
    return bytes(line)


def main() -> None:
    """Read the order, then be what it says. Arguments: the number of the socket, the parent's process id."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)  # it died before the call above
    connected = socket.socket(fileno=int(sys.argv[1]))
    connected.set_inheritable(False)
    order = json.loads(_first_line(connected))
    sys.path[:] = order["path"]
    sys.argv[1:] = []
    from hixl_aio.testing._child import run

    run(connected, order)


if __name__ == "__main__":
    main()
