"""Sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.storage.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1GB", 10**9),
        ("2GiB", 2**31),
        ("128 mb", 128 * 10**6),
        ("1.5KiB", 1536),
        (".5k", 500),
        ("7", 7),
        ("7B", 7),
        (4096, 4096),
        (0, 0),
        ("3TB", 3 * 10**12),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("value", ["", "GB", "1XB", "-1", -1, "1 000", 1.5, True, None, "1e3", "1GB2"])
def test_everything_else_is_refused_with_the_name(value):
    with pytest.raises(UsageError, match="blocksize="):
        parse_size(value, name="blocksize")


@given(st.integers(0, 10**17))
def test_what_is_shown_is_near_what_it_is(size):
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.06)
