"""The modifier that removes paragraphs of policy boilerplate at the edges of a document."""

from __future__ import annotations

import pyarrow as pa

from gristmill.stages.text.filters.statistics import BOILERPLATE_PHRASES, PLACEHOLDER_PHRASES
from gristmill.stages.text.modifiers.doc_modifier import ColumnModifier
from gristmill.stages.text.modifiers.string.marks import as_column, as_series, scatter

# The one character outside ASCII whose lower case is a letter of the phrases.
KELVIN = "\u212a"


class BoilerPlateStringModifier(ColumnModifier):
    r"""Removes paragraphs about cookies, privacy or terms if they are together at the top or bottom.

    Paragraphs are separated by an empty line. A document with such a paragraph elsewhere is not changed; one that
    contains the placeholder "lorem ipsum" becomes empty.

    Args:
        remove_if_at_top_or_bottom: If False, empty every document that has such a paragraph anywhere.

    Example:
        >>> BoilerPlateStringModifier().modify_document("This site uses cookies.\n\nThe story begins.")
        'The story begins.'
    """

    _name = "boilerplate_string_ratio"

    def __init__(self, remove_if_at_top_or_bottom: bool = True) -> None:
        self.remove_if_at_top_or_bottom = remove_if_at_top_or_bottom

    def modify_column(self, column: pa.LargeStringArray) -> pa.Array:
        """The column without such paragraphs; only documents with a phrase are inspected one by one."""
        import polars as pl

        texts = as_series(column)
        hit = texts.to_frame("text").select(
            pl.col("text").str.contains_any([*PLACEHOLDER_PHRASES, *BOILERPLATE_PHRASES], ascii_case_insensitive=True)
            | pl.col("text").str.contains(KELVIN, literal=True)
        ).to_series()  # fmt: skip
        if not hit.any():
            return column
        changed = [self._without_policy(text) for text in texts.filter(hit.fill_null(False)).to_list()]
        return as_column(scatter(texts, hit, pl.Series(changed, dtype=pl.String)))

    def _without_policy(self, text: str) -> str:
        paragraphs = text.split("\n\n")
        hits: list[int] = []
        for index, paragraph in enumerate(paragraphs):
            lowered = paragraph.lower()
            if any(phrase in lowered for phrase in PLACEHOLDER_PHRASES):
                return ""
            if any(phrase in lowered for phrase in BOILERPLATE_PHRASES):
                if not self.remove_if_at_top_or_bottom:
                    return ""
                hits.append(index)
        if not hits or len(hits) == len(paragraphs) or hits[-1] - hits[0] + 1 != len(hits):
            return text
        if hits[0] != 0 and hits[-1] != len(paragraphs) - 1:
            return text
        return "\n\n".join(paragraphs[: hits[0]] + paragraphs[hits[-1] + 1 :])
