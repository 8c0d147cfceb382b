"""What a person sees: answers in order, and an output that nobody waits for."""

from __future__ import annotations

import asyncio
import os

import pytest

from hixl_aio.demo.errors import OutputError
from hixl_aio.demo.screen import Answers, Output


def test_answers_come_in_order() -> None:
    """Text that comes early waits for its turn; control characters never reach the terminal."""
    shown: list[str] = []
    answers = Answers(("first\nprompt\x1b", "second"), shown.append)
    answers.add(1, "early")
    assert shown == []
    answers.add(0, "a\x1b[2J")
    assert "".join(shown) == "[1/2] first prompt\ufffd\na\ufffd[2J"
    shown.clear()
    answers.end(1)
    answers.add(0, "b\n")
    answers.end(0)
    assert "".join(shown) == "b\n\n\n[2/2] second\nearly\n\n"


def test_empty_answers_are_shown() -> None:
    """A prompt without an answer has its heading all the same."""
    shown: list[str] = []
    answers = Answers(("first", "second"), shown.append)
    answers.end(0)
    answers.end(1)
    assert "".join(shown) == "[1/2] first\n\n\n[2/2] second\n\n\n"


def test_long_prompts_are_cut() -> None:
    """A heading has at most 72 characters of the prompt."""
    shown: list[str] = []
    Answers(("x" * 101,), shown.append).end(0)
    assert shown[0] == f"[1/1] {'x' * 68} ...\n"


def read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_stalled_reader_delays_nobody(encoding: str) -> None:
    """Writing returns at once though the pipe is full; all of it arrives when somebody reads."""
    reader, writer = os.pipe()
    text = "中文 " * 100_000

    async def write() -> bytes:
        output = Output(writer, encoding)
        output.write(text)
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(output.drain())
            output.write("end")
            output.end()
            await asyncio.sleep(0)
            assert not draining.done()
            draining.add_done_callback(lambda _: os.close(writer))
            return await asyncio.to_thread(read_all, reader)

    assert asyncio.run(write()) == (text + "end").encode(encoding, "replace")


def test_waiting_for_a_reader_can_be_cancelled() -> None:
    """A full pipe holds up no cancellation."""
    reader, writer = os.pipe()

    async def write() -> None:
        output = Output(writer, "utf-8")
        output.write("x" * 1_000_000)
        async with asyncio.timeout(0.01):
            await output.drain()

    with pytest.raises(TimeoutError):
        asyncio.run(write())
    os.close(reader)
    os.close(writer)


def test_a_reader_that_left_is_an_error() -> None:
    """A closed pipe and a full disk are errors that say what is wrong."""
    reader, writer = os.pipe()
    os.close(reader)

    async def write(descriptor: int) -> None:
        output = Output(descriptor, "utf-8")
        output.write("x")
        await output.drain()

    with pytest.raises(OutputError, match="nobody reads it any more"):
        asyncio.run(write(writer))
    os.close(writer)
    with open("/dev/full", "wb") as full, pytest.raises(OutputError, match="No space left"):
        asyncio.run(write(full.fileno()))
