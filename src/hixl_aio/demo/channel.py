"""Messages between the parent and a child, over two pipes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import IO

from hixl_aio.demo.messages import MAX_LINE, Message, decode_message, encode_message

__all__ = ("Channel",)


class Channel:
    """One end of both pipes, on the running loop."""

    def __init__(
        self, reader: asyncio.StreamReader, source: asyncio.BaseTransport, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._source = source
        self._writer = writer

    @classmethod
    async def open(cls, source: IO[bytes], sink: IO[bytes]) -> Channel:
        """Take over two unbuffered pipe ends: one to read from, one to write to."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(MAX_LINE)
        incoming, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
        outgoing, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), sink
        )
        return cls(reader, incoming, asyncio.StreamWriter(outgoing, protocol, None, loop))

    async def send(self, message: Message) -> None:
        """Raises :class:`ConnectionError` when nobody reads any more."""
        self._writer.write(encode_message(message))
        await self._writer.drain()

    async def messages(self) -> AsyncIterator[Message]:
        """What the other side says, until it closes its end or is gone."""
        while line := await self._reader.readline():
            yield decode_message(line)

    def finish(self) -> None:
        """Close our writing end, which the other side will see once it has read everything."""
        self._writer.close()

    async def close(self) -> None:
        """Close both pipes, once the other side has taken everything or is gone."""
        self._source.close()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
