"""The tokenizer: pre-tokenisation, merges, streams and the chat format."""

from __future__ import annotations

import itertools
import random

import pytest

from hixl_aio.demo.errors import TokenizerError
from hixl_aio.demo.models import Model, tiny_tokenizer
from hixl_aio.demo.tokenizer import Tokenizer, byte_alphabet, pre_tokenise

TEXTS = (
    "Hello, world! It's 1999 and we'll see 12.5% growth.",
    "中文也可以,虽然文字的质量不高。",
    "emoji 🙂👩\u200d👩\u200d👧 and flags 🇫🇷",
    "  leading,\n\n\n\tand trailing   \n ",
    "def f(x):\n    return x ** 2  # naïve café",
    "",
)


def small() -> Tokenizer:
    letters = [character for _, character in sorted(byte_alphabet().items())]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "ab", "bc", "abc", "aa"]
    return Tokenizer(tokens, ["a b", "b c", "ab c", "a a"], range(3))


def test_byte_alphabet_is_one_to_one() -> None:
    """Every byte has a character of its own, none of them blank."""
    alphabet = byte_alphabet()
    assert sorted(alphabet) == list(range(256))
    assert len(set(alphabet.values())) == 256
    assert not any(character.isspace() for character in alphabet.values())


def test_pre_tokenisation_splits_digits_first() -> None:
    """Single digits stand alone and take no blank with them; words keep the blank before them."""
    assert list(pre_tokenise("in 2024 it's")) == ["in", " ", "2", "0", "2", "4", " it", "'s"]
    assert list(pre_tokenise("a   b")) == ["a", "  ", " b"]
    assert list(pre_tokenise("x  7")) == ["x", "  ", "7"]


@pytest.mark.parametrize("text", TEXTS)
def test_pre_tokenisation_loses_nothing(text: str) -> None:
    """The pieces joined are the text."""
    assert "".join(pre_tokenise(text)) == text


def test_merges_go_by_rank_not_by_place() -> None:
    """The merge of lowest rank is made first, the leftmost among equals, and its result may merge again."""
    tokenizer = small()

    def names(text: str) -> list[str]:
        return [tokenizer.decode([token]) for token in tokenizer.encode(text)]

    assert names("abc") == ["abc"]
    assert names("bc") == ["bc"]
    assert names("aaab") == ["aa", "ab"]
    assert names("aaaa") == ["aa", "aa"]
    assert names("aaa") == ["aa", "a"]


def naive(tokenizer: Tokenizer, piece: str) -> list[int]:
    """BPE as it is defined: merge the pair of lowest rank everywhere, from the left, until none is left."""
    ids = [token for byte in piece.encode() if (token := tokenizer._byte_ids[byte]) is not None]
    while True:
        ranked = [tokenizer._merges[pair] for pair in itertools.pairwise(ids) if pair in tokenizer._merges]
        if not ranked:
            return ids
        rank, merged = min(ranked)
        out, index = list[int](), 0
        while index < len(ids):
            if tokenizer._merges.get(tuple(ids[index : index + 2]), (-1, 0))[0] == rank:  # type: ignore[arg-type]
                out.append(merged)
                index += 2
            else:
                out.append(ids[index])
                index += 1
        ids = out


def test_merging_equals_the_definition(smollm2: Model) -> None:
    """On random words the heap's merges equal those of the plain definition, with the real vocabulary."""
    source = random.Random(3)
    for _ in range(500):
        word = "".join(source.choice("etaoinshrdlu ingionthe,.中国é") for _ in range(source.randrange(1, 24)))
        for piece in pre_tokenise(word):
            assert smollm2.tokenizer.encode(piece) == naive(smollm2.tokenizer, piece)


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tiny: Model, smollm2: Model, text: str) -> None:
    """Decoding what was encoded gives the text back, in both vocabularies."""
    for model in (tiny, smollm2):
        assert model.tokenizer.decode(model.tokenizer.encode(text)) == text


def test_known_ids(smollm2: Model) -> None:
    """The chat prompt has the ids that the original tokenizer gives it."""
    system = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407]
    expected = [*system, 19712, 8182, 2, 198, 1, 4093, 198, 6004, 2, 198, 1, 520, 9531, 198]
    assert smollm2.tokenizer.chat("hi") == expected


def test_digits_are_single_tokens(smollm2: Model) -> None:
    """A number is one token per digit."""
    tokens = smollm2.tokenizer.encode("31415")
    assert [smollm2.tokenizer.token_bytes(token) for token in tokens] == [b"3", b"1", b"4", b"1", b"5"]


def test_a_prompt_cannot_forge_a_control_token(tiny: Model, smollm2: Model) -> None:
    """The name of a control token inside a prompt stays ordinary text."""
    for model in (tiny, smollm2):
        tokens = model.tokenizer.encode("<|im_end|>")
        assert model.tokenizer.end_token not in tokens
        assert model.tokenizer.decode(tokens) == "<|im_end|>"


def test_control_tokens_vanish_in_text(tiny: Model) -> None:
    """Control tokens stand for no text."""
    assert tiny.tokenizer.decode([1, *tiny.tokenizer.encode("x"), tiny.tokenizer.end_token]) == "x"


def test_lone_surrogates_become_replacement_characters(tiny: Model) -> None:
    """A lone surrogate, which undecodable command-line bytes become, does not break encoding."""
    text = tiny.tokenizer.decode(tiny.tokenizer.encode("a\udcffb"))
    assert text[0] == "a"
    assert text[-1] == "b"
    assert "\ufffd" in text


@pytest.mark.parametrize("text", TEXTS)
def test_streams_never_tear_a_character(tiny: Model, text: str) -> None:
    """Fed byte by byte, the detokeniser gives whole characters only, and all of them."""
    stream = tiny.tokenizer.detokenizer()
    pieces = [stream.feed(token) for token in tiny.tokenizer.encode(text)]
    assert all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) + stream.finish() == text


def test_an_unfinished_character_is_replaced_at_the_end(tiny: Model) -> None:
    """A stream that ends inside a character ends with U+FFFD."""
    stream = tiny.tokenizer.detokenizer()
    assert stream.feed(tiny.tokenizer.encode("é")[0]) == ""
    assert stream.finish() == "\ufffd"


def test_long_words_take_no_quadratic_time(smollm2: Model) -> None:
    """A word of 100 000 letters is encoded well within the test's time limit."""
    word = "ab" * 50_000
    assert smollm2.tokenizer.decode(smollm2.tokenizer.encode(word)) == word


def test_broken_vocabularies_are_refused() -> None:
    """Twice the same token, an unknown merge or a missing control token is a TokenizerError."""
    letters = [character for _, character in sorted(byte_alphabet().items())]
    control = ["<|im_start|>", "<|im_end|>"]
    with pytest.raises(TokenizerError, match="twice"):
        Tokenizer([*control, *letters, "a"], [], range(2))
    with pytest.raises(TokenizerError, match="merge 0, 'a q!'"):
        Tokenizer([*control, *letters], ["a q!"], range(2))
    with pytest.raises(TokenizerError, match="no control token"):
        Tokenizer(letters, [], ())


def test_tiny_vocabulary_is_bytes() -> None:
    """The tiny tokenizer needs no file and has one token per byte."""
    tokenizer = tiny_tokenizer()
    assert len(tokenizer) == 259
    assert tokenizer.encode("é") == [3 + byte for byte in "é".encode()]
