"""KV caches: where keys and values lie in the memories of engines, and what to copy between two of them.

:class:`KVLayout` says which layers, heads and tokens an engine holds and where; :func:`plan` turns two
layouts and the blocks of a request into arrays for `PutBlocks` and `GetBlocks`. Neither touches memory or an
engine.
"""

try:
    import numpy as _numpy  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError('hixl_aio.kv needs NumPy: pip install "hixl-aio[kv]"', name="numpy") from _error

from hixl_aio.kv._matching import Layers
from hixl_aio.kv.blocks import Blocks, BlockTable
from hixl_aio.kv.errors import (
    KVError,
    KVLayoutError,
    KVMismatchError,
    KVMissingError,
    KVOverlapError,
    KVRangeError,
)
from hixl_aio.kv.groups import KVGroups
from hixl_aio.kv.layout import DTYPES, Kind, KVLayout, KVMismatch, KVPlane, why_not
from hixl_aio.kv.orders import (
    CacheOptions,
    TokenOrder,
    dense,
    flashinfer,
    huggingface,
    llm_datadist,
    lmcache,
    sglang,
    tensorrt_llm,
    vllm,
)
from hixl_aio.kv.plan import (
    Conversion,
    Move,
    Plan,
    Spans,
    plan,
    plan_groups,
    spans,
)
from hixl_aio.kv.sharding import Held, Holding, Share, assign, heads_of_rank, layers_of_stage
from hixl_aio.kv.tensors import KVTensors, from_pointer, from_tensors

__all__ = (
    "DTYPES",
    "BlockTable",
    "Blocks",
    "CacheOptions",
    "Conversion",
    "Held",
    "Holding",
    "KVError",
    "KVGroups",
    "KVLayout",
    "KVLayoutError",
    "KVMismatch",
    "KVMismatchError",
    "KVMissingError",
    "KVOverlapError",
    "KVPlane",
    "KVRangeError",
    "KVTensors",
    "Kind",
    "Layers",
    "Move",
    "Plan",
    "Share",
    "Spans",
    "TokenOrder",
    "assign",
    "dense",
    "flashinfer",
    "from_pointer",
    "from_tensors",
    "heads_of_rank",
    "huggingface",
    "layers_of_stage",
    "llm_datadist",
    "lmcache",
    "plan",
    "plan_groups",
    "sglang",
    "spans",
    "tensorrt_llm",
    "vllm",
    "why_not",
)
