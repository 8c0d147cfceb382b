"""Byte-level BPE with the "smollm" pre-tokenisation, a detokeniser for streams, and SmolLM2's chat format.

Text is split in two steps, in this order: every single digit stands alone, then GPT-2's pattern cuts what
lies between the digits. The second step sees each piece by itself, which is why the two are not one
pattern.
"""

from __future__ import annotations

import codecs
import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import regex  # type: ignore[import-untyped]

from hixl_aio.demo.errors import TokenizerError
from hixl_aio.demo.gguf import GgufFile

__all__ = ("CHAT_TEMPLATE", "SYSTEM_PROMPT", "Detokenizer", "Tokenizer", "byte_alphabet", "pre_tokenise")

SYSTEM_PROMPT: Final = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
# The template that `Tokenizer.chat` follows by hand. A file with another one is refused rather than misread.
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n" + SYSTEM_PROMPT + "<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_START: Final = "<|im_start|>"
_END: Final = "<|im_end|>"
_CONTROL: Final = 3  # GGUF's token type of control tokens
_CACHE_LIMIT: Final = 1 << 16

_DIGIT: Final = regex.compile(r"(\p{N})")
_GPT2: Final = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
)


def byte_alphabet() -> dict[int, str]:
    """GPT-2's mapping of every byte to one printable character."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def pre_tokenise(text: str) -> Iterator[str]:
    """The pieces of the text that BPE works on; joined, they are the text."""
    for piece in _DIGIT.split(text):
        if piece:
            yield from _GPT2.findall(piece)


class Tokenizer:
    """Text to token ids and back."""

    def __init__(self, tokens: Sequence[str], merges: Sequence[str], control: Iterable[int]) -> None:
        self._ids = {token: index for index, token in enumerate(tokens)}
        if len(self._ids) != len(tokens):
            raise TokenizerError("the vocabulary names a token twice")
        self._tokens = tuple(tokens)
        self._control = frozenset(control)
        self._byte_of = {character: byte for byte, character in byte_alphabet().items()}
        self._byte_ids = [self._ids.get(character) for _, character in sorted(byte_alphabet().items())]
        self._merges = self._read_merges(merges)
        self._cache: dict[str, tuple[int, ...]] = {}
        self._start, self.end_token = self._control_id(_START), self._control_id(_END)

    @classmethod
    def from_gguf(cls, file: GgufFile) -> Tokenizer:
        for key, wanted in (("model", "gpt2"), ("pre", "smollm")):
            found = file.get(f"tokenizer.ggml.{key}", str)
            if found != wanted:
                raise TokenizerError(f"the file's {key} is {found!r}, not {wanted!r}")
        if file.get("tokenizer.chat_template", str) != CHAT_TEMPLATE:
            raise TokenizerError("the file has another chat template than SmolLM2-135M-Instruct")
        tokens = file.get_list("tokenizer.ggml.tokens", str)
        types = file.get_list("tokenizer.ggml.token_type", int)
        if len(types) != len(tokens):
            raise TokenizerError(f"{len(tokens)} tokens but {len(types)} token types")
        control = (index for index, kind in enumerate(types) if kind == _CONTROL)
        return cls(tokens, file.get_list("tokenizer.ggml.merges", str), control)

    def _control_id(self, token: str) -> int:
        found = self._ids.get(token)
        if found is None or found not in self._control:
            raise TokenizerError(f"the vocabulary has no control token {token}")
        return found

    def _read_merges(self, merges: Sequence[str]) -> dict[tuple[int, int], tuple[int, int]]:
        table: dict[tuple[int, int], tuple[int, int]] = {}
        ids = self._ids
        try:
            for rank, merge in enumerate(merges):
                left, right = merge.split(" ")
                table.setdefault((ids[left], ids[right]), (rank, ids[left + right]))
        except (KeyError, ValueError):
            raise TokenizerError(f"merge {rank}, {merge!r}, does not name tokens of the vocabulary") from None
        return table

    def __len__(self) -> int:
        return len(self._tokens)

    def encode(self, text: str) -> list[int]:
        """The ids of the text, in which control tokens are ordinary characters: a prompt cannot forge one.

        Bytes the vocabulary lacks are dropped, as the original tokenizer does (SmolLM2: U+0004, U+0006,
        U+0013, U+0014, U+0016, U+001D and the unassigned planes from U+40000). Lone surrogates become
        U+FFFD.
        """
        ids: list[int] = []
        for piece in pre_tokenise(text):
            known = self._cache.get(piece)
            if known is None:
                known = tuple(self._merge(piece))
                if len(self._cache) < _CACHE_LIMIT:
                    self._cache[piece] = known
            ids.extend(known)
        return ids

    def _merge(self, piece: str) -> list[int]:
        """Merge neighbours, lowest rank first and leftmost among equals, over a linked list of bytes."""
        data = piece.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode("utf-8")
        ids = [found for byte in data if (found := self._byte_ids[byte]) is not None]
        following = [*range(1, len(ids)), -1]
        preceding = list(range(-1, len(ids) - 1))
        heap: list[tuple[int, int, int, int, int]] = []

        def offer(left: int) -> None:
            right = following[left] if left >= 0 else -1
            if right >= 0 and (found := self._merges.get((ids[left], ids[right]))):
                heapq.heappush(heap, (found[0], left, found[1], ids[left], ids[right]))

        for left in range(len(ids) - 1):
            offer(left)
        while heap:
            _, left, merged, left_id, right_id = heapq.heappop(heap)
            right = following[left]
            if ids[left] != left_id or right < 0 or ids[right] != right_id:
                continue  # one of the two has been merged since
            ids[left], ids[right] = merged, -1
            following[left] = following[right]
            if following[left] >= 0:
                preceding[following[left]] = left
            offer(left)
            offer(preceding[left])
        return [found for found in ids if found >= 0]

    def token_bytes(self, token: int) -> bytes:
        """The bytes the token stands for; none for a control token."""
        if token in self._control:
            return b""
        return bytes(self._byte_of[character] for character in self._tokens[token])

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of the tokens. Control tokens vanish; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self)

    def chat(self, prompt: str, *, system: str = SYSTEM_PROMPT) -> list[int]:
        """The ids of one question to the assistant, up to where its answer begins."""
        return [
            *self._message("system", system),
            *self._message("user", prompt),
            self._start,
            *self.encode("assistant\n"),
        ]

    def _message(self, role: str, content: str) -> list[int]:
        return [self._start, *self.encode(f"{role}\n{content}"), self.end_token, *self.encode("\n")]


class Detokenizer:
    """Text out of a stream of tokens: a character appears once all its bytes have come, never torn."""

    __slots__ = ("_decoder", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The characters that this token completes; may be empty."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """What an unfinished character at the end leaves behind: U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)
