"""Converts rows of activations before and after an 8-bit multiplication, each in one pass.

Before it, a row becomes bytes, `value = low + step * byte`, with the finest step for its values. After a multiplication
by 8-bit weights, a row is `step * product + low * shift[0] + shift[1]`, where the first row of `shift` has the sums of
the weights, and the second one the bias. The bytes of a row with a non-finite value are meaningless: `sums` has the sum
of each row, which reveals such rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.kernels.compiler import finite_leaf, float_kernel

_ONE, _HALF, _HIGHEST, _TINY = np.float32(1), np.float32(0.5), np.float32(255), np.float32(1e-12)
# z * P(z²) / Q(z²) is the error function within 2e-6 up to this z, from where on it is nearly 1. Fitted for GELU, whose
# error stays below 4e-6.
_ERF_END = np.float32(3.6)
_P0, _P1, _P2 = np.float32(1.1284477023562296), np.float32(0.1585676898705712), np.float32(0.047842463018831945)
_P3, _P4 = np.float32(0.0011288067321433982), np.float32(-4.874312330466807e-06)
_Q1, _Q2 = np.float32(0.47423022744935556), np.float32(0.09971169330838726)
_Q3 = np.float32(0.011414109174077529)
_ROOT_HALF = np.float32(0.7071067811865476)


@finite_leaf
def _to_bytes(row: Any, out: Any) -> Any:
    """Round one row; its step and its lowest value."""
    low = row[0]
    high = row[0]
    for place in range(len(row)):
        low = min(low, row[place])
        high = max(high, row[place])
    step = max((high - low) / _HIGHEST, _TINY)
    factor = _ONE / step
    # Nothing is negative then, so that truncation rounds to the nearest.
    offset = _HALF - low * factor
    for place in range(len(row)):
        out[place] = np.uint8(np.int32(row[place] * factor + offset))
    return step, low


@float_kernel
def rows_to_bytes(rows: Any, out: Any, steps: Any, lows: Any, sums: Any) -> None:
    """Round each row to bytes; its step, its lowest value and its sum are written, too."""
    for number in range(len(rows)):
        row = rows[number]
        total = np.float32(0)
        for place in range(len(row)):
            total += row[place]
        sums[number] = total
        steps[number], lows[number] = _to_bytes(row, out[number])


@float_kernel
def product_to_rows(product: Any, steps: Any, lows: Any, shift: Any) -> None:
    """Scale and shift the rows of a product in place."""
    for number in range(len(product)):
        step, low = steps[number], lows[number]
        for place in range(product.shape[1]):
            product[number, place] = product[number, place] * step + (low * shift[0, place] + shift[1, place])


@float_kernel
def product_to_gelu_bytes(
    product: Any, steps: Any, lows: Any, shift: Any, out: Any, new_steps: Any, new_lows: Any, sums: Any
) -> None:
    """Scale and shift the rows of a product, apply GELU, and round to bytes as `rows_to_bytes` does."""
    width = product.shape[1]
    row = np.empty(width, np.float32)
    for number in range(len(product)):
        step, low = steps[number], lows[number]
        total = np.float32(0)
        for place in range(width):
            value = product[number, place] * step + (low * shift[0, place] + shift[1, place])
            end = value * _ROOT_HALF
            end = max(-_ERF_END, min(_ERF_END, end))
            square = end * end
            above = (((_P4 * square + _P3) * square + _P2) * square + _P1) * square + _P0
            below = ((_Q3 * square + _Q2) * square + _Q1) * square + _ONE
            result = _HALF * value * (_ONE + end * above / below)
            total += result
            row[place] = result
        sums[number] = total
        new_steps[number], new_lows[number] = _to_bytes(row, out[number])


@float_kernel
def product_to_norm(
    product: Any, steps: Any, lows: Any, shift: Any, residual: Any, weight: Any, bias: Any, epsilon: float, out: Any
) -> None:
    """Scale and shift the rows of a product, add those of `residual`, and normalise each row (Ba et al., 2016)."""
    width = product.shape[1]
    row = np.empty(width, np.float32)
    count = np.float32(width)
    for number in range(len(product)):
        step, low = steps[number], lows[number]
        total = np.float32(0)
        for place in range(width):
            value = product[number, place] * step + (low * shift[0, place] + shift[1, place]) + residual[number, place]
            row[place] = value
            total += value
        mean = total / count
        squares = np.float32(0)
        for place in range(width):
            apart = row[place] - mean
            squares += apart * apart
        scale = _ONE / np.sqrt(squares / count + np.float32(epsilon))
        for place in range(width):
            out[number, place] = (row[place] - mean) * scale * weight[place] + bias[place]


def compile_all() -> None:
    """Load these kernels from the cache on disk, or compile them."""
    matrix, row = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
    values, shift = np.zeros((1, 1), np.uint8), np.zeros((2, 1), np.float32)
    rows_to_bytes(matrix, values, row, row.copy(), row.copy())
    product_to_rows(matrix, row, row, shift)
    product_to_gelu_bytes(matrix, row, row, shift, values, row.copy(), row.copy(), row.copy())
    product_to_norm(matrix, row, row, shift, matrix.copy(), row, row, 1e-5, matrix)
