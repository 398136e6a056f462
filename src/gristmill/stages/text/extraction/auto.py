"""The combined method: two fast ones, and Trafilatura where they disagree.

Resiliparse's rules and the block model look at different things. If both find the same text, it is nearly always right.
If not, Trafilatura provides a third opinion, and the text that most resembles the other two is used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gristmill.stages.text.extraction.block_features import Floats, features
from gristmill.stages.text.extraction.block_model import BlockModel, shipped_model
from gristmill.stages.text.extraction.fast import by_rules, inside_of, main_of
from gristmill.stages.text.extraction.markup import Lines, blocks_of, markdown, plain_text

ENOUGH_AGREEMENT = 0.88
CAREFUL_BONUS = 0.1
"""Bonus for the similarity of Trafilatura's text, which is the best single method."""
_WORD = re.compile(r"\w+")


def extract(tree: Any, careful: Callable[[], str] | None, *, is_markdown: bool, model: BlockModel | None = None) -> str:
    """The main text of a parsed page.

    Args:
        tree: The page, parsed by Resiliparse.
        careful: Returns the text of the third method; with None, the text found by the block model alone is used.
        is_markdown: Whether to return Markdown.
        model: A block model to use instead of the shipped one.
    """
    lines = Lines()
    render = markdown if is_markdown else partial(plain_text, lines=lines)
    main, inside = blocks_of(main_of(tree, links=True)), blocks_of(inside_of(tree, links=True))
    ruled = by_rules(render(main), lambda: render(inside))
    learned = render(_learned(main, inside, lines, model or shipped_model()))
    agreement = resemblance(ruled, learned, ENOUGH_AGREEMENT)
    if agreement >= ENOUGH_AGREEMENT or careful is None:
        return learned
    third = careful()
    with_ruled, with_learned = resemblance(ruled, third), resemblance(learned, third)
    scores = {
        third: with_ruled + with_learned + CAREFUL_BONUS,
        learned: agreement + with_learned,
        ruled: agreement + with_ruled,
    }
    return max(scores, key=lambda text: (scores[text], text == third))


def resemblance(one: str, other: str, enough: float = 1.0) -> float:
    r"""The share of words that two texts have in common, from 0 to 1; each counts as often as it occurs.

    Most lines of two texts are equal. Their words are only counted, which can only raise the share, so that the count
    ends when the share is known to be at least `enough`; that is returned then.

    Example:
        >>> resemblance("A mill\nOld stones", "Old stones\nThe mill")
        0.75
    """
    lines, others = Counter(one.split("\n")), Counter(other.split("\n"))
    equal = lines & others
    left, right = Counter(_words(*(lines - equal).elements())), Counter(_words(*(others - equal).elements()))
    common, total = 2 * (left & right).total(), left.total() + right.total()
    for line, times in equal.items():
        if total and common / total >= enough:
            break
        words = 2 * times * len(_words(line))
        common, total = common + words, total + words
    return common / total if total else 1.0


def _words(*lines: str) -> list[str]:
    return _WORD.findall("\n".join(lines).lower())


def _learned(main: Sequence[str], inside: Sequence[str], lines: Lines, model: BlockModel) -> list[str]:
    """The blocks that belong to the main text."""
    if not inside:
        return []
    kept = model.belong(page_figures(main, inside, lines))
    return [block for block, belongs in zip(inside, kept, strict=True) if belongs or block in _LISTS]


_LISTS = frozenset({"<ul>", "</ul>", "<ol>", "</ol>"})


def page_figures(main: Sequence[str], inside: Sequence[str], lines: Lines) -> Floats:
    """The features of the blocks outside of menus and similar elements."""
    return features(inside, [lines[block] for block in inside], frozenset(main))
