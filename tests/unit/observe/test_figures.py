"""Numbers as people read them."""

from __future__ import annotations

import pytest

from gristmill.observe.figures import count, duration, plural, rate, share


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
    assert count(1234567) == "1,234,567"
    assert plural(1, "row") == "1 row"
    assert plural(0, "row") == "0 rows"
    assert rate(0) == "0/s"
    assert rate(0.25) == "0.2/s"
    assert rate(1234.5) == "1,234/s"
