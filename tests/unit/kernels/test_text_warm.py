"""Warming up loads every kernel and says whether that meant compiling."""

from __future__ import annotations

from gristmill.kernels.warm import is_cold, kernel_modules, warm_up


def test_after_warming_up_nothing_is_cold_or_compiled_again() -> None:
    warm_up()
    assert not is_cold()
    seen: list[tuple[int, int, bool]] = []
    again = warm_up(lambda number, total, compiling: seen.append((number, total, compiling)))
    assert not again.compiled
    total = len(kernel_modules())
    assert seen == [(number, total, False) for number in range(total + 1)]


def test_the_text_kernels_take_part() -> None:
    names = {module.__name__.rpartition(".")[2] for module in kernel_modules()}
    assert {"text_characters", "text_words", "text_lines", "text_phrases", "ngrams"} <= names
