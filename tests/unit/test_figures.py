"""Numbers as people read and write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.figures import duration, format_size, parse_size, plural, rate, share


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (-1, "0.00 s"),
        (0, "0.00 s"),
        (9.994, "9.99 s"),
        (10, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3599.9, "1 h"),
        (7322, "2 h 2 min"),
        (48 * 3600, "2 d"),
        (50 * 3600, "2 d 2 h"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("part", "text"),
    [(None, "–"), (0.0, "0 %"), (1e-9, "<0.1 %"), (0.5, "50.0 %"), (0.99999, ">99.9 %"), (1.0, "100 %")],
)
def test_a_share_is_not_rounded_to_nothing_or_all(part: float | None, text: str) -> None:
    assert share(part) == text


def test_counts_and_rates() -> None:
    assert plural(1234567, "row") == "1,234,567 rows"
    assert plural(1, "row") == "1 row"
    assert plural(0, "row") == "0 rows"
    assert rate(0) == "0/s"
    assert rate(0.25) == "0.2/s"
    assert rate(1234.5) == "1,234/s"
