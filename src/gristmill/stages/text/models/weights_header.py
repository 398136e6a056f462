"""Checks the header of a safetensors file against the file: exactly the declared tensors must be present."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from gristmill.errors import ModelLoadError

_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000
_DTYPE_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_METADATA = "__metadata__"


def check_weights(path: Path) -> None:
    """Reject a safetensors file whose header is inconsistent; only the header is read.

    Raises:
        ModelLoadError: It is; the error names the file, the tensor and the field.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_LENGTH_BYTES)
        if len(start) < _LENGTH_BYTES:
            raise _lie(path, f"it has {size} bytes and no header")
        length = struct.unpack("<Q", start)[0]
        if length > min(_LONGEST_HEADER, size - _LENGTH_BYTES):
            raise _lie(path, f"the length of its header is {length:,} bytes, but the file has {size:,}")
        content = file.read(length)
    try:
        header = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _lie(path, f"its header is not JSON ({type(error).__name__})") from error
    if not isinstance(header, dict):
        raise _lie(path, f"its header is a {type(header).__name__} instead of tensors by name")
    header.pop(_METADATA, None)
    spans = [(*_span(path, name, tensor), name) for name, tensor in header.items()]
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at:
            raise _lie(path, f"data_offsets of {name!r} begin at {begin:,}, expected {at:,}")
        at = end
    if at != size - _LENGTH_BYTES - length:
        raise _lie(path, f"data_offsets end at {at:,}, but there are {size - _LENGTH_BYTES - length:,} bytes of data")


def _span(path: Path, name: str, tensor: Any) -> tuple[int, int]:
    """Where the data of a tensor are, after checking its dtype and shape."""
    if not isinstance(tensor, dict):
        raise _lie(path, f"{name!r} is a {type(tensor).__name__} instead of a tensor")
    bits = _DTYPE_BITS.get(str(tensor.get("dtype")))
    shape: Any = tensor.get("shape")
    offsets: Any = tensor.get("data_offsets")
    if bits is None:
        raise _lie(path, f"dtype of {name!r} is {tensor.get('dtype')!s:.40}, which is unknown")
    if not _are_counts(shape):
        raise _lie(path, f"shape of {name!r} is {shape!s:.80}")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _lie(path, f"data_offsets of {name!r} are {offsets!s:.80}")
    needed = -(-math.prod(shape) * bits // 8)
    if needed != offsets[1] - offsets[0]:
        raise _lie(
            path,
            f"shape and dtype of {name!r} need {needed:,} bytes ({shape!s:.80} of {tensor['dtype']}), but its "
            f"data_offsets span {offsets[1] - offsets[0]:,}",
        )
    return offsets[0], offsets[1]


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _lie(path: Path, problem: str) -> ModelLoadError:
    return ModelLoadError(
        f"{path} cannot be used: {problem}. Download the model again, or pass another folder.",
        identifier=str(path.parent),
        path=str(path),
    )
