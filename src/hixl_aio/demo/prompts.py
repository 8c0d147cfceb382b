"""Where prompts come from: three that are built in, a file, or standard input.

A file holds one prompt a line, in UTF-8; empty lines are skipped. Inside a line the two characters
``\\n`` stand for a line break and ``\\\\`` for a backslash, so that a prompt of several lines is written
on one.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterable
from typing import Final

from hixl_aio.demo.errors import PromptError
from hixl_aio.demo.notices import tell

__all__ = ("BUILT_IN", "PATIENCE", "STANDARD_INPUT", "parse_prompts", "read_prompts", "waiting_prompts")

STANDARD_INPUT: Final = "-"
PATIENCE: Final = 0.5  # seconds to wait for what may never come
_INPUT: Final = "standard input"
_MAX_BYTES: Final = 1 << 20
_MAX_PROMPTS: Final = 1000

_QUESTION: Final = "What is the capital of France, and what is the city known for?"
_CHINESE: Final = "请用一句话介绍北京。"
_ARTICLE: Final = """Read the following notes and answer the question at the end in two sentences.

A large language model answers in two phases that want different machines. In the first phase, called \
prefill, the whole prompt is run through every layer at once. The arithmetic units are busy, and the \
cost grows with the length of the prompt. What remains of it is the key and value vector of every token \
in every layer, which together are called the KV cache. In the second phase, called decode, the model \
writes one token at a time. Each step reads all weights and the whole cache to produce a single token, \
so the memory is busy and the arithmetic units mostly wait.

When both phases share a machine they get into each other's way: a long prompt that arrives makes \
everybody who is in the middle of an answer wait. Operators therefore run prefill on one group of \
machines and decode on another. The price is that the cache has to travel. For a prompt of one thousand \
tokens it may be tens or hundreds of megabytes, and the reader sees nothing until it has arrived. Two \
habits hide most of that time. The first is to send the cache of a layer as soon as the layer has \
computed it, while the next layers are still being computed. The second is to have two landing places at \
the receiver, so that the next prompt can be sent while the previous one is still being answered.

A transfer of this kind is best made one-sided: the sender writes straight into memory that the receiver \
has lent it, and the receiver is told by a signal when the last byte has landed. The receiver copies \
nothing, because the memory that was written is the very memory from which attention reads. When the \
answer is finished the receiver gives the landing place back, and only then may the sender write there \
again.

Question: why is the cache sent layer by layer, and why are there two landing places?"""

BUILT_IN: Final = (_QUESTION, _CHINESE, _ARTICLE)


def parse_prompts(lines: Iterable[str], source: str) -> tuple[str, ...]:
    """The prompts in these lines. ``source`` names them in errors."""
    prompts: list[str] = []
    for number, line in enumerate(lines, start=1):
        prompt = _unescape(line.rstrip("\r\n"), source, number)
        if prompt.strip():
            prompts.append(prompt)
        if len(prompts) > _MAX_PROMPTS:
            raise PromptError(source, f"there are more than {_MAX_PROMPTS}; take several runs")
    if not prompts:
        raise PromptError(source, "there is none; write one a line")
    return tuple(prompts)


def _unescape(line: str, source: str, number: int) -> str:
    pieces = line.split("\\\\")
    for piece in pieces:
        if "\\" in piece.replace("\\n", ""):
            wrong = f"line {number} has a backslash; write \\n for a line break and \\\\ for a backslash"
            raise PromptError(source, wrong)
    return "\\".join(piece.replace("\\n", "\n") for piece in pieces)


def read_prompts(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The prompts of a file, or of standard input, to its end, for ``-``."""
    name = os.fspath(path)
    if name == STANDARD_INPUT:
        return _decode(_read_input(patience=None), _INPUT)
    try:
        with open(name, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise PromptError(name, error.strerror or str(error)) from error
    return _decode(data, name)


def waiting_prompts() -> tuple[str, ...] | None:
    """The prompts that somebody sends to standard input without having said so; None if nobody does.

    A file that is redirected counts as sent, and a pipe or socket that says something within
    :data:`PATIENCE` seconds. A terminal, ``/dev/null`` and silence do not. What begins must also end: a
    longer silence after that is an error, for this may be the input of somebody who never closes it.
    """
    descriptor = _input()
    if descriptor is None:
        return None
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return None
    if not _speaks(descriptor, PATIENCE):
        tell("standard input is silent: taking the built-in prompts (--prompts - would wait for it)")
        return None
    data = _read_input(PATIENCE)
    return _decode(data, _INPUT) if data.strip() else None


def _input() -> int | None:
    """The descriptor of standard input, if there is one."""
    try:
        return None if sys.stdin is None else sys.stdin.fileno()
    except (OSError, ValueError):
        return None


def _speaks(descriptor: int, patience: float | None) -> bool:
    """Wait for the next piece or the end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if patience is None else patience * 1000))


def _read_input(patience: float | None) -> bytes:
    """Standard input to its end, which may not be longer off than ``patience`` seconds of silence."""
    descriptor, data = _input(), bytearray()
    if descriptor is None:
        raise PromptError(_INPUT, "it is closed; give --prompt or a file")
    try:
        while len(data) <= _MAX_BYTES:
            if not _speaks(descriptor, patience):
                wrong = f"no end after {patience:g} s of silence; close it, or wait with --prompts -"
                raise PromptError(_INPUT, wrong)
            if not (piece := os.read(descriptor, 1 << 16)):
                break
            data += piece
    except OSError as error:
        raise PromptError(_INPUT, error.strerror or str(error)) from error
    return bytes(data)


def _decode(data: bytes, source: str) -> tuple[str, ...]:
    if len(data) > _MAX_BYTES:
        raise PromptError(source, f"there are more than {_MAX_BYTES} bytes; take several runs")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(source, f"byte {error.start} is not UTF-8; save it as UTF-8") from error
    return parse_prompts(text.split("\n"), source)
