"""Two processes: the child offers memory, the parent writes into it, a signal says when it is there."""

import subprocess
import sys

import hixl_aio
from hixl_aio import Access, Engine


async def target() -> None:
    async with Engine() as engine:
        inbox = await engine.allocate(1 << 20, label="inbox", access=Access.WRITE)
        print(engine.address, flush=True)  # how the parent learns where to connect
        signal = await engine.wait_signal("landed")  # the bytes are there, and nobody polled
        print(f"{signal.payload.decode()}: {bytes(inbox.view()[:12])!r}", flush=True)


async def initiator(address: str) -> None:
    async with Engine() as engine:
        peer = await engine.connect(address)
        source = await engine.register(bytearray(b"Hello, peer!"))
        await engine.put(source, peer.region("inbox")[: source.nbytes], signal="landed", payload=b"first put")
        print("route:", ", ".join(link.name for link in peer.route), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["target"]:
        hixl_aio.run(target())
    else:
        child = subprocess.Popen([sys.executable, __file__, "target"], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        hixl_aio.run(initiator(child.stdout.readline().strip()))
        print("target:", child.communicate()[0].strip())
        sys.exit(child.returncode)
