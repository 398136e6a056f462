"""Extraction: turns downloaded records into documents."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.errors import StageDefinitionError, is_of_environment
from gristmill.execution.failures import quarantined_row
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.text.download.base.records import table_of
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch


class DocumentExtractor(ABC):
    """Turns one record into a document. Subclass it and implement the three methods.

    Sent to worker processes, where `extract` is called once per record.
    """

    @abstractmethod
    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """The document of a record, or None if it contains none (it then counts as dropped).

        An exception quarantines the record, with the exception as its cause.
        """

    @abstractmethod
    def input_columns(self) -> list[str]:
        """The keys of a record that `extract` reads."""

    @abstractmethod
    def output_columns(self) -> list[str]:
        """The keys of the documents that it returns."""


class DocumentExtractStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Applies an extractor to every record.

    A record for which the extractor returns None is dropped with the reason `nothing_extracted`, one on which it raises
    is quarantined as `extraction_failed`; all others are passed on.

    Args:
        extractor: Turns records into documents.
        carried: Columns of the records that documents keep, such as the file name.
        max_calls_per_worker: Replace a worker after this many calls, on executors that support it.
    """

    name = "extract"
    notes_changes = True

    def __init__(
        self, extractor: DocumentExtractor, carried: tuple[str, ...] = (), *, max_calls_per_worker: int | None = None
    ) -> None:
        self.extractor = extractor
        self.carried = tuple(carried)
        self._max_calls_per_worker = max_calls_per_worker

    def inputs(self) -> Spec:
        return ["data"], list(dict.fromkeys([*self.extractor.input_columns(), *self.carried]))

    def outputs(self) -> Spec:
        return ["data"], list(dict.fromkeys([*self.extractor.output_columns(), *self.carried]))

    def ray_stage_spec(self) -> dict[str, Any]:
        return {**super().ray_stage_spec(), **worker_spec(self._max_calls_per_worker)}

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        kept: list[int] = []
        empty: list[int] = []
        documents: list[dict[str, Any]] = []
        for place, record in enumerate(batch.to_pyarrow().to_pylist()):
            try:
                document = self.extractor.extract(record)
            except Exception as error:
                if is_of_environment(error):
                    raise
                found = quarantined_row(
                    batch, place, stage=self.name, cause="extraction_failed", detail=failure_of(error)
                )
                batch.note_quarantine(found)
                continue
            if document is None:
                empty.append(place)
                continue
            if not isinstance(document, dict):
                raise StageDefinitionError(
                    f"{type(self.extractor).__name__}.extract() returned a {type(document).__name__}; it must return a "
                    "dictionary, or None for a record without a document."
                )
            documents.append({**document, **{name: record[name] for name in self.carried if name not in document}})
            kept.append(place)
        names = self.outputs()[1]
        try:
            table = table_of(documents, names)
        except UnicodeEncodeError:  # lone surrogates are very rare
            good = [
                place for place, document in zip(kept, documents, strict=True) if self._holds(batch, place, document)
            ]
            documents = [document for place, document in zip(kept, documents, strict=True) if place in good]
            kept, table = good, table_of(documents, names)
        if empty:
            dropped = np.zeros(batch.num_items, bool)
            dropped[empty] = True
            batch.drop(dropped, reason="nothing_extracted")
        chosen = batch.take(np.array(kept, np.int64))
        _note_changes(chosen, table)
        return chosen.with_columns(TableColumns(table))

    def _holds(self, batch: DocumentBatch, place: int, document: dict[str, Any]) -> bool:
        """Whether a table can hold the document; otherwise it is quarantined."""
        try:
            table_of([document])
        except UnicodeEncodeError as error:
            told = f"a text of the document is not Unicode: {error}"
            found = quarantined_row(batch, place, stage=self.name, cause="invalid_utf8", detail=told)
            batch.note_quarantine(found)
            return False
        return True


def _note_changes(batch: DocumentBatch, table: pa.Table) -> None:
    """Record which texts changed, if records and documents share a column."""
    for name in table.column_names:
        if name in batch.get_columns() and pa.types.is_large_string(table.column(name).type):
            before, after = batch.column(name).to_pylist(), table.column(name).to_pylist()
            longer = [len(new or "") - len(str(old or "")) for old, new in zip(before, after, strict=True)]
            changed = [old != new for old, new in zip(before, after, strict=True)]
            batch.note_change(name, np.array(changed, bool), np.array(longer, np.int64))


def failure_of(error: BaseException) -> str:
    """An exception and where it was raised, on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def worker_spec(max_calls: int | None) -> dict[str, Any]:
    """The Ray setting that limits the calls per worker."""
    return {} if max_calls is None else {"max_calls_per_worker": max_calls}
