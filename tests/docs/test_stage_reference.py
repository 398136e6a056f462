"""The page about stages says what the registered names say."""

from __future__ import annotations

from gristmill.recipes.registry import all_registered
from tools.make_stage_reference import PAGE, reference


def test_page_is_what_the_registered_names_say() -> None:
    # On a difference: python tools/make_stage_reference.py
    assert PAGE.read_text(encoding="utf-8") == reference()


def test_everything_registered_has_a_sentence() -> None:
    for entry in all_registered():
        assert entry.documentation().split("\n")[0].strip(), entry.name
