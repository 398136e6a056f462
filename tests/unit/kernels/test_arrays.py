"""Copies and sorts inside kernels, and that no kernel uses the slices that take numba seconds to compile."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gristmill.kernels
from gristmill.kernels.arrays import copy_items, grown, sort_items

COMPILED = {"kernel", "float_kernel", "leaf", "finite_leaf", "inlined", "routine"}
numbers = st.lists(st.integers(0, 2**64 - 1), max_size=200)


@given(numbers, st.integers(0, 200))
def test_items_are_copied_grown_and_sorted(values: list[int], count: int) -> None:
    items, count = np.array(values, np.uint64), min(count, len(values))
    target = np.zeros(len(values) + 7, np.uint64)
    copy_items(target, 7, items, count)
    assert target.tolist() == [0] * 7 + values[:count] + [0] * (len(values) - count)
    assert grown(items, 2 * len(items) + 1)[: len(items)].tolist() == values
    sort_items(items, count)
    assert items.tolist() == sorted(values[:count]) + values[count:]


def test_many_items_are_sorted() -> None:
    items = np.random.default_rng(0).integers(0, 2**64, 100_000, np.uint64)
    expected = np.sort(items)
    sort_items(items, len(items))
    assert np.array_equal(items, expected)


def slice_copies(source: str) -> Iterator[int]:
    """The lines of compiled functions that assign an array to a slice; constants have names in capitals."""
    for function in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
        if not COMPILED & {one.id for one in function.decorator_list if isinstance(one, ast.Name)}:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                targets = [one for target in node.targets for one in getattr(target, "elts", [target])]
                values = getattr(node.value, "elts", [node.value] * len(targets))
                for target, value in zip(targets, values, strict=True):
                    is_slice = isinstance(target, ast.Subscript) and any(
                        isinstance(one, ast.Slice) for one in ast.walk(target.slice)
                    )
                    is_number = isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id.isupper())
                    if is_slice and not is_number:
                        yield node.lineno


@pytest.mark.parametrize("line", ["a[:n] = b[:n]", "a[:n], c[1:] = b, d", "a[:, 0] = b"])
def test_slice_copies_are_found(line: str) -> None:
    assert list(slice_copies(f"@kernel\ndef f(a, b, c, d, n):\n    a[:n] = 0\n    a[:] = _LARGEST\n    {line}\n"))


def test_no_kernel_assigns_an_array_to_a_slice() -> None:
    found = [
        f"{path.name}:{line}: use `copy_items` or `grown` of kernels/arrays.py"
        for folder in gristmill.kernels.__path__
        for path in sorted(Path(folder).glob("*.py"))
        for line in slice_copies(path.read_text(encoding="utf-8"))
    ]
    assert not found
