"""The first step: the embedding of every document, as a short integer vector.

An embedding is scaled to length 1 and then to `scale(dimensions)`, just short of 4096, and rounded. The product of two
such vectors, and every intermediate sum, is an integer of at most 2**24, which float32 represents exactly. So matrix
products of float32 are exact, independent of library, threads and processor, and the result of a deduplication is the
same everywhere. A cosine is accurate to about 0.0001.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from gristmill.errors import InputError
from gristmill.kernels.hashing import content_hashes
from gristmill.kernels.vector_search import Vectors, rounded_vectors
from gristmill.ledger.record.tables import make_identity
from gristmill.stages.base import Spec
from gristmill.stages.deduplication.source import DocumentStage, texts_of
from gristmill.stages.deduplication.survivor_rule import SurvivorRule
from gristmill.tasks.columns import TableColumns, one_chunk
from gristmill.tasks.document import DocumentBatch

EMPTY = "empty"
NO_EMBEDDING = "no_embedding"

Matrix = npt.NDArray[np.float64]


def scale(dimensions: int) -> float:
    """The length of integer vectors: rounding makes them at most `sqrt(dimensions) / 2` longer."""
    return 4096.0 - 0.5 * math.sqrt(dimensions)


def whole_vectors(matrix: npt.NDArray[Any]) -> tuple[Vectors, npt.NDArray[np.bool_]]:
    """The rows of a matrix as integer vectors, and which of them have a direction at all.

    Example:
        >>> whole_vectors(np.array([[0.0, 3.0, 4.0], [0.0, 0.0, 0.0]]))[0].tolist()
        [[0, 2457, 3276], [0, 0, 0]]
    """
    values = np.ascontiguousarray(matrix, np.float64)
    return rounded_vectors(values, scale(values.shape[1]))


def vector_array(vectors: Vectors) -> pa.FixedSizeListArray:
    """Vectors as an Arrow column."""
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])


def vectors_of(table: pa.Table, name: str = "vector") -> Vectors:
    """A column of vectors as one matrix; without a copy if the table has one chunk."""
    width = table.schema.field(name).type.list_size
    chunks: list[Vectors] = [chunk.flatten().to_numpy().reshape(-1, width) for chunk in table.column(name).chunks]
    if len(chunks) == 1:
        return chunks[0]
    return np.concatenate(chunks) if chunks else np.empty((0, width), np.int16)


def embedding_matrix(column: pa.Array | pa.ChunkedArray) -> tuple[Matrix, npt.NDArray[np.int64]]:
    """The embeddings of a column as a matrix, and the rows that have one.

    Raises:
        InputError: They are not lists of numbers, or not all of the same length.
    """
    array = one_chunk(column)
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = _of_json(array.to_pylist())
    if pa.types.is_null(array.type):
        return np.empty((0, 1)), np.empty(0, np.int64)
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(kind(array.type) for kind in kinds):
        raise InputError(
            f"Embeddings must be lists of numbers, but the column holds {array.type}.", type=str(array.type)
        )
    valid = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    array = array.drop_null()
    if pa.types.is_fixed_size_list(array.type):
        lengths = np.full(len(array), array.type.list_size, np.int64)
    else:
        lengths = np.diff(array.offsets.to_numpy())
    valid, lengths, array = _without_empty(valid, lengths, array)
    if not len(valid):
        return np.empty((0, 1)), valid
    if lengths.min() != lengths.max():
        raise InputError(
            f"Embeddings must all have the same length, but some have {lengths.min()} and some {lengths.max()} "
            "numbers. Embed all documents with the same model.",
            lengths=sorted({int(length) for length in lengths}),
        )
    numbers = array.flatten()
    try:
        flat = numbers.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"Embeddings must be lists of numbers, but the column holds {array.type}: {error}.") from error
    return np.asarray(flat, np.float64).reshape(len(valid), int(lengths[0])), valid


def _without_empty(valid: Any, lengths: Any, array: Any) -> tuple[Any, Any, Any]:
    filled = lengths > 0
    if filled.all():
        return valid, lengths, array
    return valid[filled], lengths[filled], array.filter(pa.array(filled))


def _of_json(texts: list[str | None]) -> pa.Array:
    """Parse lists written as JSON."""
    lists = [None if text is None else _parsed(text) for text in texts]
    try:
        return pa.array(lists, pa.large_list(pa.float64()))
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        wrong = next(one for one in lists if not (one is None or _is_numbers(one)))
        raise InputError(f"An embedding must be a list of numbers, not {str(wrong)[:60]}.") from None


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(one is None or type(one) in (int, float) for one in value)


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise InputError(f"An embedding must be a list of numbers, not {text[:60]!r}.") from None


class WithText(DocumentStage):
    """Drops documents without any text, which have no meaning to compare.

    Args:
        text_field: Column that holds the text.
    """

    notes_changes = True
    name = "with_text"
    fork_safe = True

    def __init__(self, text_field: str) -> None:
        self.text_field = text_field

    def inputs(self) -> Spec:
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        return ["data"], []

    def process(self, task: DocumentBatch) -> DocumentBatch:
        import pyarrow.compute as pc

        trimmed = pc.utf8_trim_whitespace(texts_of(task, self.text_field))
        lengths = pc.fill_null(pc.binary_length(trimmed), 0).to_numpy(zero_copy_only=False)
        return task.drop(lengths == 0, reason=EMPTY)


class DocumentVectors(DocumentStage):
    """Turns documents with embeddings into integer vectors, keyed by the hash of the vector.

    Documents without an embedding, or with one that has no direction, are dropped: they are not compared.

    Args:
        embedding_field: Column that holds the embeddings.
        text_field: Column that holds the text, for the rules that use it.
        id_field: Column that holds document ids.
        rule: Ranks the documents, if a `survivor=` was set.
    """

    notes_changes = True
    name = "document_vectors"
    fork_safe = True

    def __init__(self, embedding_field: str, *, text_field: str, id_field: str | None, rule: SurvivorRule) -> None:
        self.embedding_field = embedding_field
        self.text_field = text_field
        self.id_field = id_field
        self.rule = rule

    def inputs(self) -> Spec:
        return ["data"], [self.embedding_field, *self.rule.columns]

    def outputs(self) -> Spec:
        return ["data"], ["hash", "hash_2", "document", "rank", "id", "vector"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if not task.columns.has(self.embedding_field):
            return task.drop(np.ones(task.num_items, bool), reason=NO_EMBEDDING)
        try:
            matrix, rows = embedding_matrix(task.column(self.embedding_field))
        except InputError as error:
            raise InputError(
                f"The column {self.embedding_field!r} cannot be compared: {error} Set --embedding-field "
                "(embedding_field) to the column that holds the embeddings.",
                **error.facts,
            ) from None
        vectors, usable = whole_vectors(matrix)
        missing = np.ones(task.num_items, bool)
        missing[rows[usable]] = False
        if missing.any():
            task = task.drop(missing, reason=NO_EMBEDDING)
            if not task.num_items:
                return task
        vectors = np.ascontiguousarray(vectors[usable])
        offsets = np.arange(len(vectors) + 1, dtype=np.int64) * (2 * vectors.shape[1])
        hashes = content_hashes(vectors.view(np.uint8).reshape(-1), offsets)
        text = texts_of(task, self.text_field)
        ids = make_identity(task, id_field=self.id_field, url_field=None).ids
        table = pa.table(
            {
                "hash": hashes[:, 0],
                "hash_2": hashes[:, 1],
                "document": self.keys_of(task),
                "rank": self.rule.ranks(task, text),
                "id": pa.nulls(task.num_items, pa.large_string()) if ids is None else ids,
                "vector": vector_array(vectors),
            }
        )
        return task.with_columns(TableColumns(table))
