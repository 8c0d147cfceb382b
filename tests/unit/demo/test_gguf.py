"""The GGUF reader: what it reads is right, and what is malformed is refused by name."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from hixl_aio.demo.errors import GgufError
from hixl_aio.demo.gguf import GgufFile, dequantise_q4_1, dequantise_q8_0

HEADER = struct.Struct("<4sIQQ")


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, dimensions: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)


def build(pairs: list[bytes], tensors: list[bytes], data: bytes = b"", version: int = 3) -> bytes:
    head = HEADER.pack(b"GGUF", version, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return path


def test_metadata_of_every_kind(tmp_path: Path) -> None:
    """Scalars, strings and arrays come back as the Python values they stand for."""
    pairs = [
        pair("u32", 4, struct.pack("<I", 7)),
        pair("i64", 11, struct.pack("<q", -(2**40))),
        pair("f32", 6, struct.pack("<f", 0.5)),
        pair("bool", 7, b"\x01"),
        pair("string", 8, text("héllo")),
        pair("numbers", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
        pair("strings", 9, struct.pack("<IQ", 8, 2) + text("a") + text("")),
    ]
    with GgufFile(write(tmp_path, build(pairs, []))) as file:
        assert file.metadata == {
            "u32": 7,
            "i64": -(2**40),
            "f32": 0.5,
            "bool": True,
            "string": "héllo",
            "numbers": [1, -2, 3],
            "strings": ["a", ""],
        }
        assert file.get("u32", int) == 7
        assert file.get_list("strings", str) == ["a", ""]


def test_tensors_are_dequantised_in_numpy_order(tmp_path: Path) -> None:
    """A file's dimensions are reversed into rows first, and F32 values come back bit for bit."""
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    path = write(tmp_path, build([], [tensor("t", (3, 2), 0, 0)], values.tobytes()))
    with GgufFile(path) as file:
        read = file.tensor("t")
    assert read.shape == (2, 3)
    assert np.array_equal(read, values)


def test_q4_1_against_the_definition() -> None:
    """Q4_1 blocks equal a value-by-value evaluation of nibble · scale + minimum."""
    random = np.random.default_rng(1)
    raw, expected = bytearray(), list[float]()
    for _ in range(5):
        scale, minimum = (np.float16(x) for x in random.standard_normal(2))
        nibbles = random.integers(0, 256, 16, dtype=np.uint8)
        raw += scale.tobytes() + minimum.tobytes() + nibbles.tobytes()
        halves = [int(n) & 15 for n in nibbles] + [int(n) >> 4 for n in nibbles]
        expected += [float(np.float32(n) * np.float32(scale) + np.float32(minimum)) for n in halves]
    out = np.empty(160, dtype=np.float32)
    dequantise_q4_1(bytes(raw), out)
    assert out.tolist() == expected


def test_q8_0_against_the_definition() -> None:
    """Q8_0 blocks equal a value-by-value evaluation of signed byte · scale."""
    random = np.random.default_rng(2)
    raw, expected = bytearray(), list[float]()
    for _ in range(5):
        scale = np.float16(random.standard_normal())
        values = random.integers(-128, 128, 32, dtype=np.int8)
        raw += scale.tobytes() + values.tobytes()
        expected += [float(np.float32(v) * np.float32(scale)) for v in values]
    out = np.empty((5, 32), dtype=np.float32)
    dequantise_q8_0(bytes(raw), out)
    assert out.ravel().tolist() == expected


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "0 bytes"),
        (b"NOPE" + bytes(40), "not a GGUF file"),
        (build([], [], version=99), "version 99"),
        (HEADER.pack(b"GGUF", 3, 0, 2**60), "wanted"),
        (HEADER.pack(b"GGUF", 3, 2**60, 0), "wanted"),
        (HEADER.pack(b"GGUF", 3, 0, 1) + struct.pack("<Q", 2**63), "wanted"),
        (build([pair("k", 99, b"")], []), "metadata type 99"),
        (build([pair("k", 9, struct.pack("<IQ", 9, 1))], []), "nested"),
        (build([pair("k", 9, struct.pack("<IQ", 5, 2**61))], []), "does not fit"),
        (build([pair("k", 9, struct.pack("<IQ", 8, 2**61))], []), "does not fit"),
        (build([pair("k", 8, struct.pack("<Q", 2) + b"\xff\xff")], []), "not UTF-8"),
        (build([pair("k", 4, bytes(4)), pair("k", 4, bytes(4))], []), "twice"),
        (build([pair("general.alignment", 4, struct.pack("<I", 3))], []), "alignment 3"),
        (build([], [tensor("t", (32,), 2, 0)], bytes(200)), "type 2"),
        (build([], [tensor("t", (33,), 3, 0)], bytes(200)), "whole blocks"),
        (build([], [tensor("t", (1, 1, 1, 1, 1), 0, 0)], bytes(200)), "5 dimensions"),
        (build([], [tensor("t", (2**40, 2**40), 0, 0)], bytes(200)), "past the end"),
        (build([], [tensor("t", (32,), 0, 128)], bytes(200)), "past the end"),
        (build([], [tensor("t", (4,), 0, 4)], bytes(200)), "not aligned"),
        (build([], [tensor("t", (4,), 0, 0), tensor("t", (4,), 0, 32)], bytes(200)), "twice"),
    ],
)
def test_malformed_files_are_named(tmp_path: Path, content: bytes, reason: str) -> None:
    """Every kind of damage is a GgufError that says what is wrong, never a crash or a giant allocation."""
    with pytest.raises(GgufError, match=reason):
        GgufFile(write(tmp_path, content))


def test_truncation_anywhere_is_an_error(tmp_path: Path) -> None:
    """A file cut at any byte is refused."""
    whole = build([pair("name", 8, text("x")), pair("n", 4, bytes(4))], [tensor("t", (8,), 0, 0)], bytes(32))
    for length in range(len(whole)):
        with pytest.raises(GgufError):
            GgufFile(write(tmp_path, whole[:length]))


def test_wrong_questions_are_named(tmp_path: Path) -> None:
    """Asking for a missing key, another type, a missing tensor or a wrong shape is a GgufError."""
    pairs = [pair("n", 4, bytes(4)), pair("mixed", 9, struct.pack("<IQ", 8, 1) + text("a"))]
    with GgufFile(write(tmp_path, build(pairs, [tensor("t", (8,), 0, 0)], bytes(32)))) as file:
        with pytest.raises(GgufError, match="'absent' is NoneType, not int"):
            file.get("absent", int)
        with pytest.raises(GgufError, match="'n' is int, not str"):
            file.get("n", str)
        with pytest.raises(GgufError, match="not an array of int"):
            file.get_list("mixed", int)
        with pytest.raises(GgufError, match="no tensor 'u'"):
            file.tensor("u")
        with pytest.raises(GgufError, match="has shape"):
            file.tensor("t", np.empty(9, dtype=np.float32))


def test_smollm2_file(smollm2_path: Path) -> None:
    """The real file has the tensors and the shape that the demo is written for, all finite."""
    with GgufFile(smollm2_path) as file:
        kinds = [info.type for info in file.tensors.values()]
        assert (kinds.count(3), kinds.count(8), kinds.count(0)) == (210, 1, 61)
        assert file.get("llama.block_count", int) == 30
        query = file.tensor("blk.0.attn_q.weight")
        assert query.shape == (576, 576)
        assert np.isfinite(query).all()
        assert 0.01 < float(query.std()) < 1.0
