"""The modifier that turns documents into fastText training lines."""

from __future__ import annotations

import pyarrow as pa

from gristmill.stages.text.modifiers.doc_modifier import ColumnModifier
from gristmill.stages.text.modifiers.string.marks import as_column, as_series

__all__ = ["FastTextLabelModifier"]


class FastTextLabelModifier(ColumnModifier):
    r"""Turns each document into one line with a leading label, as expected by fastText's supervised training.

    Args:
        label: The label, such as `__label__hq`.

    Example:
        >>> FastTextLabelModifier("__label__hq").modify_document("One\ntwo")
        '__label__hq One two'
    """

    def __init__(self, label: str) -> None:
        self.label = label

    def modify_column(self, column: pa.LargeStringArray) -> pa.Array:
        """The column as labelled lines."""
        import polars as pl

        texts = as_series(column).alias("text")
        line = pl.col("text").str.replace_all("\n", " ", literal=True).str.replace_all("__label__", " ", literal=True)
        return as_column(texts.to_frame().select(pl.lit(f"{self.label} ") + line).to_series())
