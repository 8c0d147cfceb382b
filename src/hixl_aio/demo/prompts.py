"""Where prompts come from: three that are built in, a file, or standard input.

A file holds one prompt a line, in UTF-8; empty lines are skipped. Inside a line the two characters
``\\n`` stand for a line break and ``\\\\`` for a backslash, so that a prompt of several lines is written
on one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hixl_aio.demo.errors import PromptError

__all__ = ("BUILT_IN", "STANDARD_INPUT", "parse_prompts", "read_prompts")

STANDARD_INPUT: Final = "-"
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
            raise PromptError(source, f"more than {_MAX_PROMPTS} prompts")
    if not prompts:
        raise PromptError(source, "there is none")
    return tuple(prompts)


def _unescape(line: str, source: str, number: int) -> str:
    pieces = line.split("\\\\")
    for piece in pieces:
        if "\\" in piece.replace("\\n", ""):
            raise PromptError(source, f"line {number} has a backslash that is neither \\n nor \\\\")
    return "\\".join(piece.replace("\\n", "\n") for piece in pieces)


def read_prompts(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The prompts of a file, or of standard input for ``-``."""
    name = os.fspath(path)
    source = "standard input" if name == STANDARD_INPUT else name
    try:
        if name == STANDARD_INPUT:
            data = sys.stdin.buffer.read(_MAX_BYTES + 1)
        else:
            with open(Path(name), "rb") as file:
                data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise PromptError(source, error.strerror or str(error)) from error
    if len(data) > _MAX_BYTES:
        raise PromptError(source, f"more than {_MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(source, f"byte {error.start} is not UTF-8") from error
    return parse_prompts(text.split("\n"), source)
