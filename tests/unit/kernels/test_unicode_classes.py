"""The character classes equal Python's own, for every code point."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.kernels import unicode_classes as classes

POINTS = np.arange(classes.CODE_POINTS)


@pytest.mark.parametrize(
    ("flag", "method"),
    [
        (classes.SPACE, str.isspace),
        (classes.ALPHA, str.isalpha),
        (classes.ALNUM, str.isalnum),
        (classes.DECIMAL, str.isdecimal),
        (classes.DIGIT, str.isdigit),
        (classes.NUMERIC, str.isnumeric),
        (classes.UPPER, str.isupper),
        (classes.LOWER, str.islower),
        (classes.LINE_BREAK, lambda character: len(f"a{character}b".splitlines()) > 1),
    ],
)
def test_flags_equal_the_methods_of_str(flag, method) -> None:
    pages, flags = classes.class_tables()
    found = flags[pages[POINTS >> 8].astype(np.int64) * 256 + (POINTS & 255)] & flag != 0
    expected = np.fromiter(map(method, map(chr, range(classes.CODE_POINTS))), dtype=bool, count=classes.CODE_POINTS)
    assert np.flatnonzero(found != expected).tolist() == []


def test_every_letter_is_alphabetic_and_vowel_signs_are_too() -> None:
    pages, flags = classes.class_tables()

    def has(character: str, flag: int) -> bool:
        point = ord(character)
        return bool(flags[int(pages[point >> 8]) * 256 + (point & 255)] & flag)

    assert has("a", classes.ALPHABETIC)
    assert has("ि", classes.ALPHABETIC)
    assert not has("ि", classes.ALPHA)
    assert not has("1", classes.ALPHABETIC)
    alphabetic = {p for start, end in classes.decode_ranges(classes.ALPHABETIC_RANGES) for p in range(start, end)}
    assert all(point in alphabetic for point in range(classes.CODE_POINTS) if chr(point).isalpha())
