"""Machine operations that kernels need and numba does not offer: unaligned eight-byte loads and bit counts."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_WORD = ir.IntType(64)


@intrinsic
def load8(typing_context: Any, data: Any, index: Any) -> Any:
    """The eight bytes from `data[index]` on as one little-endian number; the caller keeps inside the array."""
    if not (isinstance(data, types.Array) and data.dtype == types.uint8 and isinstance(index, types.Integer)):
        return None
    signature = types.uint64(data, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(array.data, [arguments[1]])
        pointer = builder.bitcast(pointer, _WORD.as_pointer())
        return builder.load(pointer, align=1)

    return signature, generate


@intrinsic
def bit_count(typing_context: Any, value: Any) -> Any:
    """How many bits of the number are set."""
    signature = types.int64(types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return signature, generate


@intrinsic
def trailing_zeros(typing_context: Any, value: Any) -> Any:
    """How many zero bits lie below the lowest set bit (64 for zero)."""
    signature = types.int64(types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return signature, generate
