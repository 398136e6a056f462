"""Modifiers that cut documents: keep a slice, remove enclosing quotation marks, remove given lines."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError
from gristmill.kernels.text_column import text_column
from gristmill.kernels.text_edit import (
    BY_INDEX,
    BY_TEXT,
    FROM_START,
    build_column,
    gather_spans,
    quotation_spans,
    remove_lines,
    slice_spans,
)
from gristmill.stages.text.modifiers.doc_modifier import ColumnModifier

_FARTHEST = 2**62


class LineRemover(ColumnModifier):
    r"""Removes lines that equal one of the given patterns.

    Args:
        patterns: Lines to remove, compared as a whole and case-sensitively; `""` removes empty lines.

    Example:
        >>> LineRemover(["Share this"]).modify_document("A story.\nShare this\nThe end.")
        'A story.\nThe end.'
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        if isinstance(patterns, str):
            raise UsageError(f"LineRemover(patterns={patterns!r}): must be a list of lines, such as [{patterns!r}].")
        self.patterns = list(patterns)
        words = sorted(
            (word.encode("utf-8", "surrogatepass") for word in set(self.patterns)), key=lambda w: (len(w), w)
        )
        sizes = np.array([len(word) for word in words], np.int64)
        self._words = _read_only(np.frombuffer(b"".join(words), np.uint8).copy())
        self._offsets = _read_only(np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)]))
        longest = int(sizes.max()) if len(sizes) else 0
        self._by_size = _read_only(np.searchsorted(sizes, np.arange(longest + 2)).astype(np.int64))

    def modify_column(self, column: pa.LargeStringArray) -> pa.Array:
        """The column without those lines."""
        texts = text_column(column)
        data, offsets = remove_lines(texts.data, texts.offsets, self._words, self._offsets, self._by_size)
        return build_column(data, offsets, texts.valid)


class QuotationRemover(ColumnModifier):
    """Removes the straight quotation marks around a whole document, unless its first line of several ends with one.

    Example:
        >>> QuotationRemover().modify_document('"All of it."')
        'All of it.'
    """

    def modify_column(self, column: pa.LargeStringArray) -> pa.Array:
        """The column without enclosing quotation marks."""
        texts = text_column(column)
        starts, ends = quotation_spans(texts.data, texts.offsets)
        if np.array_equal(starts, texts.offsets[:-1]):
            return column
        return build_column(*gather_spans(texts.data, starts, ends), texts.valid)


class Slicer(ColumnModifier):
    """Keeps the part of each document between two bounds.

    Args:
        left: Where it begins: a character index, or a text whose first occurrence is used (a document without it
            becomes empty). None is the beginning.
        right: Where it ends: a character index (exclusive), or a text whose last occurrence is used. None is the end.
        include_left: Keep the text passed as `left`.
        include_right: Keep the text passed as `right`.
        strip: Remove whitespace around the result.

    Example:
        >>> Slicer(left="Abstract", right="References", include_left=False, include_right=False).modify_document(
        ...     "Title Abstract We show it. References [1]"
        ... )
        'We show it.'
    """

    def __init__(
        self,
        left: int | str | None = 0,
        right: int | str | None = None,
        include_left: bool = True,
        include_right: bool = True,
        strip: bool = True,
    ) -> None:
        self.left = left
        self.right = right
        self.include_left = include_left
        self.include_right = include_right
        self.strip = strip
        self._left = _bound("left", left)
        self._right = _bound("right", right)

    def modify_column(self, column: pa.LargeStringArray) -> pa.Array:
        """The column with every document cut."""
        texts = text_column(column)
        starts, ends = slice_spans(
            texts.data, texts.offsets, *self._left, bool(self.include_left), *self._right, bool(self.include_right),
            bool(self.strip),
        )  # fmt: skip
        if np.array_equal(starts, texts.offsets[:-1]) and np.array_equal(ends, texts.offsets[1:]):
            return column
        return build_column(*gather_spans(texts.data, starts, ends), texts.valid)


def _bound(name: str, value: int | str | None) -> tuple[int, int, np.ndarray]:
    """A bound in the form that the kernel expects: its kind, its index, its text."""
    nothing = _read_only(np.zeros(0, np.uint8))
    if value is None:
        return FROM_START, 0, nothing
    if isinstance(value, int):
        return BY_INDEX, max(-_FARTHEST, min(_FARTHEST, int(value))), nothing
    if isinstance(value, str):
        text = np.frombuffer(value.encode("utf-8", "surrogatepass"), np.uint8).copy()
        return BY_TEXT, 0, _read_only(text)
    raise UsageError(f"Slicer({name}={value!r}): must be a character index, a text, or None.")


def _read_only(array: np.ndarray) -> np.ndarray:
    # One layout of the arguments means one compilation of the kernel.
    array.flags.writeable = False
    return array
