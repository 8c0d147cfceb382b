"""A layout that contradicts itself is refused by name, whoever says it."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields, replace
from typing import Any

import pytest

from hixl_aio import InvalidArgumentError
from hixl_aio.kv import (
    KVError,
    KVGroups,
    KVLayout,
    KVLayoutError,
    KVMismatch,
    KVMismatchError,
    KVMissingError,
    KVOverlapError,
    KVPlane,
    dense,
    vllm,
    why_not,
)


def small(**changes: Any) -> KVLayout:
    """Two layers, two heads of four float16 values, three blocks of two tokens."""
    options: dict[str, Any] = {"layers": 2, "heads": 2, "head_dim": 4, "dtype": "float16", "block_size": 2}
    return dense(changes.pop("order", "L|CNTHD"), **{**options, "num_blocks": 3, **changes})


ANY: Any = "scale"
PLANE = KVPlane(0, "latent", 0, 0, 16, 8, 8)
ONE = KVLayout(
    planes=(PLANE,), tensor_nbytes=(48,), heads=(0,), head_dim=4, dtype="float16", block_size=2, num_blocks=3
)


@pytest.mark.parametrize(
    ("field", "value", "named", "said"),
    [
        ("dtype", "float12", "dtype", "'float12'"),
        ("dtype", 2, "dtype", "2"),
        ("head_dim", 0, "head_dim", "0"),
        ("head_dim", 2.0, "head_dim", "2.0"),
        ("block_size", True, "block_size", "True"),
        ("num_blocks", -3, "num_blocks", "-3"),
        ("num_blocks", 1 << 70, "num_blocks", str(1 << 70)),
        ("paged", 1, "paged", "1"),
        ("window", 0, "window", "0"),
        ("quantization", None, "quantization", "None"),
        ("quantization", "x" * 101, "quantization", "at most 100"),
        ("heads", (), "heads", "0 of them"),
        ("heads", (0, 0), "heads", "each head once"),
        ("heads", (-1,), "heads", "-1"),
        ("heads", [0], "heads", "list"),
        ("heads", (0, 1), "heads", "a latent has no heads"),
        ("total_heads", 0, "total_heads", "0"),
        ("value_head_dim", 4, "value_head_dim", "None"),
        ("planes", (), "planes", "0 of them"),
        ("planes", ((0, "latent", 0, 0, 16, 8, 8),), "planes", "KVPlane"),
        ("planes", (replace(PLANE, tensor=1),), "tensor", "below 1"),
        ("planes", (replace(PLANE, offset=-8),), "offset", "-8"),
        ("planes", (replace(PLANE, offset=8),), "end of latent of layer 0", "at most 48"),
        ("planes", (replace(PLANE, kind="key"),), "kinds of layer 0", "key, value"),
        ("planes", (replace(PLANE, kind=ANY),), "kind", "'scale'"),
        ("planes", (PLANE, replace(PLANE, layer=1, kind="key")), "kinds of layer 1", "latent"),
        ("planes", (PLANE, PLANE), "kinds of layer 0", "latent, latent"),
        ("tensor_nbytes", (47,), "end of latent of layer 0", "at most 47"),
        ("tensor_nbytes", (0,), "tensor_nbytes", "0"),
    ],
)
def test_what_contradicts_itself_is_refused(field: str, value: Any, named: str, said: str) -> None:
    """The error names the field, what it is, and what would be right."""
    with pytest.raises(KVLayoutError) as caught:
        replace(ONE, **{field: value})
    assert caught.value.argument == named
    assert said in str(caught.value)
    assert isinstance(caught.value, KVError)
    assert isinstance(caught.value, InvalidArgumentError)


def test_numbers_of_the_whole_model_are_bounds() -> None:
    """A rank cannot hold a head or a layer that the model has not."""
    with pytest.raises(KVLayoutError, match=r"heads is 5, expected below total_heads, 4"):
        small(heads=(4, 5), total_heads=4)
    with pytest.raises(KVLayoutError, match=r"layers is 7, expected below total_layers, 7"):
        small(layers=(6, 7), total_layers=7)


@pytest.mark.parametrize(
    "changes",
    [
        {"token_stride": 0},
        {"token_stride": 7},
        {"block_stride": 8},
        {"block_stride": 15},
    ],
)
def test_rows_that_share_bytes_are_refused(changes: dict[str, Any]) -> None:
    """Writing one would change the other."""
    with pytest.raises(KVOverlapError, match="in tensor 0"):
        replace(ONE, planes=(replace(PLANE, **changes),))


def test_planes_that_share_bytes_are_refused() -> None:
    """Also where they only touch in the last row, and where they alternate with too small a step."""
    apart = replace(ONE, planes=(PLANE, replace(PLANE, layer=1, offset=48)), tensor_nbytes=(96,))
    assert apart.layers == (0, 1)
    with pytest.raises(KVOverlapError, match="latent of layer 0"):
        replace(apart, planes=(PLANE, replace(PLANE, layer=1, offset=47)))
    wide = replace(PLANE, block_stride=32)
    replace(apart, planes=(wide, replace(wide, layer=1, offset=16)))
    for offset in (15, 17):
        with pytest.raises(KVOverlapError):
            replace(apart, planes=(wide, replace(wide, layer=1, offset=offset)), tensor_nbytes=(200,))


def test_order_of_planes_does_not_matter() -> None:
    """Equal layouts are equal, and have one hash."""
    layout = small()
    again = replace(layout, planes=tuple(reversed(layout.planes)))
    assert again == layout
    assert hash(again) == hash(layout)
    assert layout.layers == (0, 1)
    assert layout.kinds == ("key", "value")
    assert layout.capacity == 6
    assert layout.token_nbytes == 2 * 2 * 2 * 8


def test_a_layout_is_a_plain_value() -> None:
    """It pickles, cannot be changed, and its description is JSON."""
    layout = small(window=5, total_heads=8, total_layers=4, quantization="kv8", value_head_dim=2)
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert KVLayout.from_description(json.loads(json.dumps(layout.describe()))) == layout
    with pytest.raises(AttributeError):
        layout.dtype = "int8"  # type: ignore[misc]
    groups = KVGroups.of({"full": layout, "window": small(window=4)})
    assert KVGroups.from_description(json.loads(json.dumps(groups.describe()))) == groups


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 2}, "version"),
        ({"version": None}, "version"),
        ({"more": 1}, "description"),
        ({"planes": 3}, "planes"),
        ({"planes": [[0, "key"]]}, "planes"),
        ({"planes": [[0, ["key"], 0, 0, 1, 1, 1]]}, "kind"),
        ({"planes": [["0", "key", 0, 0, 1, 1, 1]]}, "layer"),
        ({"heads": "01"}, "heads"),
        ({"heads": [[0]]}, "heads"),
        ({"heads": list(range(70_000))}, "heads"),
        ({"tensor_nbytes": {}}, "tensor_nbytes"),
        ({"tensor_nbytes": [1e9, 1e9]}, "tensor_nbytes"),
        ({"dtype": ["float16"]}, "dtype"),
        ({"head_dim": "4"}, "head_dim"),
        ({"paged": None}, "paged"),
        ({"num_blocks": 1 << 80}, "num_blocks"),
    ],
)
def test_descriptions_of_strangers_are_checked(change: dict[str, Any], named: str) -> None:
    """Whatever a peer sends, it is a layout or an error that names the field (INV-12)."""
    with pytest.raises(KVLayoutError) as caught:
        KVLayout.from_description({**small().describe(), **change})
    assert caught.value.argument == named


def test_every_field_is_needed_in_a_description() -> None:
    """One that lacks is named."""
    for field in fields(KVLayout):
        described = small().describe()
        del described[field.name]
        with pytest.raises(KVLayoutError, match=field.name):
            KVLayout.from_description(described)
    with pytest.raises(KVLayoutError, match="list"):
        KVLayout.from_description([])  # type: ignore[arg-type]
    with pytest.raises(KVLayoutError, match="list"):
        KVGroups.from_description([])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("theirs", "mismatch"),
    [
        ({"dtype": "bfloat16"}, KVMismatch("dtype", "float16", "bfloat16")),
        ({"head_dim": 8}, KVMismatch("head_dim", "4", "8")),
        ({"value_head_dim": 2}, KVMismatch("value_head_dim", "4", "2")),
        ({"quantization": "fp8-per-token"}, KVMismatch("quantization", "none", "fp8-per-token")),
        ({"latent": True, "heads": 1}, KVMismatch("kinds", "key and value", "latent")),
        ({"total_layers": 9}, KVMismatch("total_layers", "4", "9")),
        ({"total_heads": 9}, KVMismatch("total_heads", "8", "9")),
        ({"dtype": "int8", "head_dim": 8}, KVMismatch("dtype", "float16", "int8")),
    ],
)
def test_why_not_names_the_field_and_both_values(theirs: dict[str, Any], mismatch: KVMismatch) -> None:
    """The first thing that no conversion covers; what a handshake says."""
    mine, other = small(total_layers=4, total_heads=8), small(**theirs)
    assert why_not(mine, other) == mismatch
    assert str(mismatch) == f"{mismatch.field} is {mismatch.mine} here and {mismatch.theirs} there"
    assert why_not(other, mine) == KVMismatch(mismatch.field, mismatch.theirs, mismatch.mine)


@pytest.mark.parametrize(
    "theirs",
    [
        {"order": "|NLCHTD"},
        {"block_size": 64, "num_blocks": 9},
        {"heads": (6, 7)},
        {"layers": (2, 3)},
        {"window": 3},
        {"paged": False},
        {"value_head_dim": 4},
        {"align": {"N": 64}},
    ],
)
def test_why_not_is_silent_where_plans_convert(theirs: dict[str, Any]) -> None:
    """Orders, block sizes, padding, and who holds what are no mismatch."""
    assert why_not(small(total_layers=4, total_heads=8), small(**theirs)) is None


def test_groups_differ_by_name_and_within() -> None:
    """And one that is there twice, or nameless, is no group."""
    full, window = small(), small(window=4)
    groups = KVGroups.of({"full": full, "window": window})
    assert groups.why_not(groups) is None
    assert groups.why_not(KVGroups.of({"full": full})) == KVMismatch("groups", "full, window", "full")
    other = KVGroups.of({"window": small(dtype="int8"), "full": full})
    assert groups.why_not(other) == KVMismatch("dtype of group window", "float16", "int8")
    assert groups.names == ("full", "window")
    assert groups["window"] is window
    with pytest.raises(KeyError):
        groups["none"]
    wrong: list[Any] = [(), [("a", full)], (("", full),), (("a", full), ("a", full)), (("a", 3),)]
    for each in wrong:
        with pytest.raises(KVLayoutError, match="groups"):
            KVGroups(each)


def test_errors_pickle_with_their_fields() -> None:
    """As all errors do."""
    errors: list[KVError] = [
        KVMismatchError(field="dtype", source="int8", destination="uint8"),
        KVMissingError(argument="heads", side="source", wanted="0-3", held="0"),
        KVOverlapError(argument="block", value=3, expected="once"),
    ]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
    assert str(errors[0]).startswith("dtype is int8 at the source and uint8 at the destination. ")
    assert str(errors[1]).startswith("heads wanted: 0-3; held by the source: 0. ")


def test_a_large_layout_is_checked_without_looking_at_rows() -> None:
    """126 layers in one tensor, where heads and layers alternate: the check looks at strides, not at rows."""
    layout = vllm(
        "HND",
        one_tensor=True,
        block_size=16,
        num_blocks=1 << 20,
        layers=126,
        heads=8,
        head_dim=128,
        dtype="bfloat16",
    )
    assert len(layout.planes) == 252
    assert layout.tensor_nbytes == (126 * 2 * 16 * 8 * 256 << 20,)
