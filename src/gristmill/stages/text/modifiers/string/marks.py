"""Modifiers that remove markup: Markdown, web addresses, surplus line ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.text_column import text_column
from gristmill.kernels.text_edit import build_column, remove_addresses, strip_markdown
from gristmill.stages.text.modifiers.doc_modifier import ColumnModifier

if TYPE_CHECKING:
    import polars as pl


class MarkdownRemover(ColumnModifier):
    """Removes the markup of `**bold**`, `*italic*` and `_underlined_` text and reduces `[links](address)` to addresses.

    Markers are matched in pairs within one line, in that order of kinds; the text between them is kept.

    Example:
        >>> MarkdownRemover().modify_document("A **bold** [word](https://example.com).")
        'A bold https://example.com.'
    """

    def modify_column(self, column: pa.LargeStringArray) -> pa.Array:
        """The column without those marks."""
        texts = text_column(column)
        return build_column(*strip_markdown(texts.data, texts.offsets), texts.valid)


class UrlRemover(ColumnModifier):
    """Removes web addresses: from `http://`, `https://` or `www.` (in any case) to the next whitespace.

    Example:
        >>> UrlRemover().modify_document("See https://example.com/a?b#c for more.")
        'See  for more.'
    """

    def modify_column(self, column: pa.LargeStringArray) -> pa.Array:
        """The column without addresses."""
        texts = text_column(column)
        return build_column(*remove_addresses(texts.data, texts.offsets), texts.valid)


class NewlineNormalizer(ColumnModifier):
    r"""Reduces three or more line ends in a row to two, both for `\n` and for `\r\n`.

    Example:
        >>> NewlineNormalizer().modify_document("One\n\n\n\nTwo")
        'One\n\nTwo'
    """

    def modify_column(self, column: pa.LargeStringArray) -> pa.Array:
        """The column with at most two line ends in a row."""
        texts = as_series(column)
        for run, pair in (("\n{3,}", "\n\n"), ("(?:\r\n){3,}", "\r\n\r\n")):
            hit = texts.str.contains(pair + pair[: len(pair) // 2], literal=True)
            if hit.any():
                fixed = texts.filter(hit.fill_null(False)).str.replace_all(run, pair)
                texts = scatter(texts, hit, fixed)
        return as_column(texts)


def as_series(column: pa.Array) -> pl.Series:
    """A string column as a Polars series.

    Raises:
        InvalidTextError: Its bytes are not UTF-8.
    """
    import polars as pl

    series = pl.from_arrow(build_column(*text_column(column)))  # Polars trusts bytes and offsets to be valid
    assert isinstance(series, pl.Series)
    return series.cast(pl.String)


def as_column(series: pl.Series) -> pa.Array:
    """A Polars series as one large string array."""
    import polars as pl

    array: Any = series.to_arrow(compat_level=pl.CompatLevel.oldest())
    return array if pa.types.is_large_string(array.type) else pc.cast(array, pa.large_string())


def scatter(texts: pl.Series, hit: pl.Series, fixed: pl.Series) -> pl.Series:
    """`texts` with the values where `hit` is true replaced, in order, by those of `fixed`."""
    import polars as pl

    places = np.arange(len(texts), dtype=np.int64)
    rows = np.flatnonzero(hit.fill_null(False).to_numpy())
    places[rows] = len(texts) + np.arange(len(rows))
    return pl.concat([texts, fixed]).gather(places)
