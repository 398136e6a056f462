"""The combined method: two fast ones, and Trafilatura where they disagree.

Resiliparse's rules and the block model look at different things. If both find the same text, it is nearly always right.
If not, Trafilatura provides a third opinion, and the text that most resembles the other two is used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from gristmill.stages.text.extraction.block_features import Floats, features
from gristmill.stages.text.extraction.block_model import BlockModel, shipped_model
from gristmill.stages.text.extraction.fast import by_rules, inside_of, main_of
from gristmill.stages.text.extraction.markup import blocks_of, line_text, markdown, plain_text

ENOUGH_AGREEMENT = 0.88
CAREFUL_BONUS = 0.1
"""Bonus for the similarity of Trafilatura's text, which is the best single method."""
_WORD = re.compile(r"\w+")


def extract(tree: Any, careful: Callable[[], str] | None, *, is_markdown: bool, model: BlockModel | None = None) -> str:
    """The main text of a parsed page.

    Args:
        tree: The page, parsed by Resiliparse.
        careful: Returns the text of the third method; None to skip it.
        is_markdown: Whether to return Markdown.
        model: A block model to use instead of the shipped one.
    """
    render = markdown if is_markdown else plain_text
    main, inside = main_of(tree, links=True), inside_of(tree, links=True)
    ruled = by_rules(render(blocks_of(main)), lambda: render(blocks_of(inside)))
    learned = render(_learned(main, inside, model or shipped_model()))
    words = [_words(ruled), _words(learned)]
    agreement = resemblance(*words)
    if agreement >= ENOUGH_AGREEMENT or careful is None:
        return learned
    third = careful()
    words.append(_words(third))
    with_ruled, with_learned = resemblance(words[0], words[2]), resemblance(words[1], words[2])
    scores = {
        third: with_ruled + with_learned + CAREFUL_BONUS,
        learned: agreement + with_learned,
        ruled: agreement + with_ruled,
    }
    return max(scores, key=lambda text: (scores[text], text == third))


def learned_text(tree: Any, model: BlockModel) -> str:
    """The text found by the block model alone."""
    return plain_text(_learned(main_of(tree, links=True), inside_of(tree, links=True), model))


def resemblance(one: Counter[str], other: Counter[str]) -> float:
    """The share of words that two texts have in common, from 0 to 1; each counts as often as it occurs."""
    total = one.total() + other.total()
    return 2 * (one & other).total() / total if total else 1.0


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text.lower()))


def _learned(main: str, inside: str, model: BlockModel) -> list[str]:
    """The blocks that belong to the main text."""
    blocks, figures = page_figures(main, inside)
    if not blocks:
        return []
    kept = model.belong(figures)
    return [block for block, belongs in zip(blocks, kept, strict=True) if belongs or block in _LISTS]


_LISTS = frozenset({"<ul>", "</ul>", "<ol>", "</ol>"})


def page_figures(main: str, inside: str) -> tuple[list[str], Floats]:
    """The blocks of a page outside of menus and similar elements, and their features."""
    blocks = blocks_of(inside)
    return blocks, features(blocks, list(map(line_text, blocks)), frozenset(blocks_of(main)))
