"""The stage that joins the segments of a document."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UsageError
from gristmill.kernels.union_find import limited_groups
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.tasks.columns import as_text, one_chunk
from gristmill.tasks.document import DocumentBatch

REASON = "joined_into_document"


class DocumentJoiner(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Joins the rows of a batch that have the same document id, in the order of their segment ids.

    The joined document takes the position, origin and other columns of its first segment; the other segments are
    recorded in the ledger as `joined_into_document`. Segments without text add nothing; rows without a document id stay
    separate. Only rows of the same batch are joined.

    Args:
        separator: Text between the segments.
        text_field: Column to join.
        segment_id_field: Column that orders the segments of a document.
        document_id_field: Column that identifies the document of a segment.
        drop_segment_id_field: Remove the column of segment ids from the result.
        max_length: Start a new row if the joined length would be greater; needs `length_field`.
        length_field: Column that holds the length of each segment; it is updated to the length of the joined rows.

    Raises:
        UsageError: (a ValueError) Only one of `max_length` and `length_field` is set.

    Example:
        >>> table = pa.table({"id": [1, 1], "segment_id": [1, 0], "text": ["world", "hello"]})
        >>> DocumentJoiner(separator=" ").process(DocumentBatch(data=table)).to_pyarrow().to_pydict()
        {'id': [1], 'text': ['hello world']}
    """

    notes_changes = True
    name = "document_joiner"
    fork_safe = True
    text_parameter = "text_field"

    def __init__(
        self,
        separator: str = "\n\n",
        text_field: str = "text",
        segment_id_field: str = "segment_id",
        document_id_field: str = "id",
        drop_segment_id_field: bool = True,
        max_length: int | None = None,
        length_field: str | None = None,
    ) -> None:
        if (max_length is None) != (length_field is None):
            missing = "length_field" if length_field is None else "max_length"
            given = "max_length" if length_field is None else "length_field"
            raise UsageError(f"DocumentJoiner got {given} without {missing}: set both or neither.")
        self.separator = separator
        self.text_field = text_field
        self.segment_id_field = segment_id_field
        self.document_id_field = document_id_field
        self.drop_segment_id_field = drop_segment_id_field
        self.max_length = max_length
        self.length_field = length_field

    def inputs(self) -> Spec:
        """The text, the two ids, and the length if there is a limit."""
        columns = [self.text_field, self.segment_id_field, self.document_id_field]
        return ["data"], columns if self.length_field is None else [*columns, self.length_field]

    def outputs(self) -> Spec:
        """The text, the document id, and the other columns kept."""
        columns = [self.text_field, self.document_id_field]
        if not self.drop_segment_id_field:
            columns.append(self.segment_id_field)
        if self.length_field is not None:
            columns.append(self.length_field)
        return ["data"], columns

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with one row per document, or several if the length is limited."""
        if batch.num_items:
            batch = self._joined(batch)
        if self.drop_segment_id_field and self.segment_id_field in batch.get_columns():
            batch = batch.without([self.segment_id_field])
        return batch

    def _joined(self, batch: DocumentBatch) -> DocumentBatch:
        documents = _numbered(_exact(batch, self.document_id_field))
        order = _sorted_rows(documents, _segment_keys(batch, self.segment_id_field))
        lengths = self._lengths(batch)[order]
        limit = 2**62 if self.max_length is None else self.max_length
        heads, totals = limited_groups(documents[order], lengths, len(self.separator), limit)
        begins = np.flatnonzero(heads == np.arange(len(heads)))
        sizes = np.diff(begins, append=len(heads))
        texts = batch.text(self.text_field)
        joined = _joined_texts(texts.take(pa.array(order)), np.repeat(np.arange(len(begins)), sizes), self.separator)

        first = order[begins]
        place = np.argsort(first, kind="stable")
        merged = np.ones(batch.num_items, bool)
        merged[first] = False
        result = batch.drop(merged, reason=REASON)
        grown = sizes[place] > 1
        values = joined.take(pa.array(place))
        if grown.any():
            before, after = (
                pc.fill_null(pc.utf8_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
                for column in (texts.take(pa.array(first[place])), values)
            )
            result.note_change(self.text_field, grown, after - before)
            result = result.with_text(self.text_field, values, changed=grown)
        if self.length_field is not None:
            ends = begins + sizes - 1
            result = result.with_column(self.length_field, pa.array(totals[ends][place]))
            if not self.drop_segment_id_field:
                result = result.with_column(self.segment_id_field, pa.array(_counted(documents[first])[place]))
        return result

    def _lengths(self, batch: DocumentBatch) -> np.ndarray:
        if self.length_field is None:
            return np.zeros(batch.num_items, np.int64)
        given = _exact(batch, self.length_field).cast(pa.int64(), safe=False)
        counted = pc.fill_null(pc.utf8_length(batch.text(self.text_field)), 0).cast(pa.int64())
        return np.asarray(pc.if_else(pc.is_valid(given), given, counted).to_numpy(zero_copy_only=False), np.int64)


def _exact(batch: DocumentBatch, field: str) -> pa.Array:
    """The values of a column; mixed types are converted to text."""
    return batch.text(field) if batch.columns.is_json(field) else one_chunk(batch.column(field))


def _numbered(ids: pa.Array) -> np.ndarray:
    """A number for each id in order of appearance; rows without an id get a unique one."""
    if pa.types.is_nested(ids.type):
        ids = pa.array([None if value is None else repr(value) for value in ids.to_pylist()], pa.large_string())
    encoded = ids if pa.types.is_dictionary(ids.type) else pc.dictionary_encode(ids)
    numbers = np.asarray(pc.fill_null(encoded.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False), np.int64)
    alone = numbers < 0
    return np.where(alone, len(encoded.dictionary) + np.arange(len(numbers)), numbers)


def _segment_keys(batch: DocumentBatch, field: str) -> dict[str, pa.Array]:
    """The sort key of segments: their ids, and if these are of mixed types, numbers before texts."""
    ids = _exact(batch, field)
    if not batch.columns.is_json(field):
        return {"segment": ids}
    raw = as_text(batch.column(field))
    numbers = pc.if_else(pc.match_substring_regex(raw, "^-?[0-9]"), raw, pa.scalar(None, raw.type)).cast(pa.float64())
    return {"number": numbers, "segment": ids}


def _sorted_rows(documents: np.ndarray, segments: dict[str, pa.Array]) -> np.ndarray:
    """The rows sorted by document, then by segment, then by their original order."""
    import polars as pl

    keys = {"document": documents, **{name: pl.from_arrow(values) for name, values in segments.items()}}
    order = pl.DataFrame(keys).select(pl.arg_sort_by(*keys, nulls_last=True, maintain_order=True))
    return order.to_series().to_numpy().astype(np.int64)


def _joined_texts(texts: pa.Array, groups: np.ndarray, separator: str) -> pa.Array:
    """One text per group of neighbours; null where no member has one."""
    import polars as pl

    frame = pl.DataFrame({"group": groups, "text": pl.from_arrow(texts)})
    joined = frame.group_by("group", maintain_order=True).agg(
        pl.when(pl.col("text").is_not_null().any()).then(pl.col("text").str.join(separator, ignore_nulls=True))
    )
    return joined.get_column("text").to_arrow(compat_level=pl.CompatLevel.oldest())


def _counted(documents: np.ndarray) -> np.ndarray:
    """The number of each row within its document, for rows sorted by document."""
    starts = np.flatnonzero(np.diff(documents, prepend=documents[:1] - 1))
    return np.arange(len(documents)) - np.repeat(starts, np.diff(starts, append=len(documents)))
