"""The stage that splits documents into segments."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UsageError
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.tasks.document import DocumentBatch


class DocumentSplitter(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Splits every document into segments, one row each, numbered within the document.

    Add ids to the documents first (`AddId`), so that `DocumentJoiner` can join them again. Every segment keeps the
    other columns and the origin of its document; a document without text stays one row without text.

    Args:
        separator: Separator of segments, taken literally.
        text_field: Column to split.
        segment_id_field: Column for the number of the segment, from 0.

    Example:
        >>> batch = DocumentBatch(data=pa.table({"text": ["one|two"]}))
        >>> DocumentSplitter("|").process(batch).to_pyarrow().to_pydict()
        {'text': ['one', 'two'], 'segment_id': [0, 1]}
    """

    for_dropped = "run"
    notes_changes = True

    name = "document_splitter"
    fork_safe = True
    text_parameter = "text_field"
    fills_text = False

    def __init__(self, separator: str, text_field: str = "text", segment_id_field: str = "segment_id") -> None:
        if not isinstance(separator, str) or not separator:
            raise UsageError(f"DocumentSplitter(separator={separator!r}): must be the text between segments.")
        self.separator = separator
        self.text_field = text_field
        self.segment_id_field = segment_id_field

    def inputs(self) -> Spec:
        """The text."""
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        """The text and the number of the segment."""
        return ["data"], [self.text_field, self.segment_id_field]

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with one row per segment."""
        texts = batch.text(self.text_field)
        lists = pc.split_pattern(texts, self.separator)
        counts = pc.fill_null(pc.list_value_length(lists), 1).to_numpy(zero_copy_only=False).astype(np.int64)
        parents = np.repeat(np.arange(len(texts)), counts)
        first = np.cumsum(counts) - counts
        segment_ids = np.arange(len(parents)) - first[parents]
        split = counts[parents] > 1
        result = batch if not split.any() else batch.take(parents)
        if split.any():
            segments = lists.flatten()
            if texts.null_count:
                places = np.full(len(parents), -1, np.int64)
                filled = np.asarray(pc.is_valid(texts).to_numpy(zero_copy_only=False))[parents]
                places[filled] = np.arange(len(segments))
                segments = segments.take(pa.array(places, mask=~filled))
            sizes = pc.fill_null(pc.utf8_length(segments), 0).to_numpy(zero_copy_only=False).astype(np.int64)
            whole = pc.fill_null(pc.utf8_length(texts), 0).to_numpy(zero_copy_only=False).astype(np.int64)
            result.note_change(self.text_field, split, sizes - whole[parents])
            result = result.with_text(self.text_field, segments, changed=split)
        return result.with_column(self.segment_id_field, pa.array(segment_ids))
