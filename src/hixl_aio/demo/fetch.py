"""The download process: sees that the checked model file is in the cache, and cleans up however it ends.

It is a process of its own because a parent that is killed cannot clean up what it has downloaded so far.
It does not die with its parent, therefore, but notices the end of its standard input.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from hixl_aio._program.process import outlive_parent
from hixl_aio.demo.child import claim_output
from hixl_aio.demo.errors import DownloadError
from hixl_aio.demo.messages import Done, Failed, Fetched, Message, encode_message
from hixl_aio.demo.weights import ensure, sweep

__all__ = ("main",)


def main() -> int:
    """Be the download process."""
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_watch_input, daemon=True).start()
    outlive_parent()
    output = claim_output()
    try:
        answer: tuple[Message, ...] = Fetched(str(ensure())), Done()
    except DownloadError as error:
        answer = (Failed("", str(error), consequence=False),)
    finally:
        sweep()  # in case we were told to end in the middle of cleaning up
    output.write(b"".join(map(encode_message, answer)))
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    """Leave from wherever we are; on the way out everything is cleaned up."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _watch_input() -> None:
    while os.read(0, 1):
        pass
    # A real signal to the main thread: it also ends a system call that waits there.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
