"""The third step, which rereads candidates and stores their shingles; and the lookup of stored shingles."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.kernels.minhash import hash_factors, signature_sets
from gristmill.kernels.shingles import CHARACTERS, WORDS, Sets, jaccard_lists, jaccard_pairs, shingle_sets, word_tables
from gristmill.kernels.text_column import text_column
from gristmill.ledger.record.tables import make_identity
from gristmill.stages.base import Spec
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run
from gristmill.stages.deduplication.source import DocumentStage, Keys, first_key, texts_of
from gristmill.stages.deduplication.survivor_rule import SurvivorRule
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch

NOT_A_CANDIDATE = "not_a_candidate"
SIGNATURE = 256
"""Number of hash functions of a stored signature: at a similarity of 0.8 its error is 0.025."""

Integers = npt.NDArray[np.int64]
Kept = Literal["sets", "lists", "signatures"]
"""How shingles are stored."""


class CandidateShingles(DocumentStage):
    """Stores the set of shingles, the id and the rank of each candidate document.

    Args:
        candidates: The pairs from the previous step.
        text_field: Column that holds the text.
        id_field: Column that holds document ids.
        rule: Which document of a group to keep.
        word_ngrams: Number of words per shingle.
        char_ngrams: Number of characters per shingle, instead of words.
        signature_seed: Store only a signature of the set, with hash functions of this seed; None stores the set.
    """

    notes_changes = True
    name = "candidate_shingles"
    fork_safe = True
    text_parameter = "text_field"

    def __init__(
        self,
        candidates: RunFiles,
        text_field: str,
        *,
        id_field: str | None,
        rule: SurvivorRule,
        word_ngrams: int,
        char_ngrams: int | None,
        signature_seed: int | None = None,
    ) -> None:
        self._candidates = candidates
        self.candidates = candidates.digest
        self.text_field = text_field
        self.id_field = id_field
        self.rule = rule
        self.word_ngrams = word_ngrams
        self.char_ngrams = char_ngrams
        self.signature_seed = signature_seed
        self._partition = -1
        self._wanted: Keys = np.empty(0, np.uint64)
        self._compared: Keys = np.empty(0, np.uint64)

    def inputs(self) -> Spec:
        return ["data"], [self.text_field, *self.rule.columns]

    def outputs(self) -> Spec:
        return ["data"], ["document", "rank", "id", "shingles"]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        self._load(task.partition + self.first_partition)
        keys = self.keys_of(task)
        task = task.drop(~np.isin(keys, self._wanted), reason=NOT_A_CANDIDATE)
        if not task.num_items:
            return task
        keys = self.keys_of(task)
        text = texts_of(task, self.text_field)
        data, offsets, _ = text_column(text)
        # Documents that are candidates only because they equal others need no comparison.
        rows = np.flatnonzero(np.isin(keys, self._compared))
        values: Sets
        values, bounds = shingle_sets(
            data,
            offsets,
            rows,
            *word_tables(),
            self.char_ngrams or self.word_ngrams,
            WORDS if self.char_ngrams is None else CHARACTERS,
        )
        if self.signature_seed is not None:
            values, bounds = signature_sets(values, bounds, *hash_factors(SIGNATURE, self.signature_seed))
        sizes = np.zeros(task.num_items + 1, np.int64)
        sizes[rows + 1] = np.diff(bounds)
        ids = make_identity(task, id_field=self.id_field, url_field=None).ids
        table = pa.table(
            {
                "document": keys,
                "rank": self.rule.ranks(task, text),
                "id": pa.nulls(task.num_items, pa.large_string()) if ids is None else ids,
                "shingles": pa.LargeListArray.from_arrays(pa.array(np.cumsum(sizes)), pa.array(values)),
            }
        )
        return task.with_columns(TableColumns(table))

    def _load(self, partition: int) -> None:
        if partition == self._partition:
            return
        table = self._candidates.read(first_key(partition), first_key(partition + 1))
        self._wanted, self._compared = np.empty(0, np.uint64), np.empty(0, np.uint64)
        if table.num_rows:
            documents = column(table, "document")
            self._wanted = np.unique(documents)
            self._compared = np.unique(documents[~column(table, "equal")])
        self._partition = partition


class ShingleStore:
    """The stored data of candidates, looked up by key; shingles are memory-mapped from the files.

    Args:
        runs: The output of `CandidateShingles` or `MinHashes`, in source order, so that the keys of all files together
            are sorted.
        kind: How shingles are stored: as sorted `sets`, as `lists` in text order, or as `signatures`.
    """

    def __init__(self, runs: RunFiles, kind: Kept = "sets") -> None:
        self._kind = kind
        tables = [open_run(file.path, storage_options=runs.storage_options) for file in runs.files]
        self._tables = [table for table in tables if table.num_rows]
        keys = [column(table, "document") for table in self._tables]
        self.keys: Keys = np.concatenate(keys) if keys else np.empty(0, np.uint64)
        self._starts = np.cumsum([0, *(len(part) for part in keys)])
        self._sets = [_set_arrays(table) for table in self._tables]

    @property
    def ranks(self) -> npt.NDArray[np.float64]:
        """The rank of every key."""
        parts = [column(table, "rank") for table in self._tables]
        return np.concatenate(parts) if parts else np.empty(0)

    def places(self, keys: Keys) -> Integers:
        """The positions of the keys in `self.keys`."""
        return np.searchsorted(self.keys, keys).astype(np.int64)

    def ids(self, places: Integers) -> pa.Array:
        """The ids of the documents at the given positions."""
        homes = np.searchsorted(self._starts, places, "right") - 1
        order = np.argsort(homes, kind="stable")
        parts = []
        for group in np.split(order, np.flatnonzero(np.diff(homes[order])) + 1):
            if len(group):
                home = int(homes[group[0]])
                # For each file separately: a column of many chunks would be copied as a whole.
                ids = self._tables[home].column("id").chunk(0)
                parts.append(ids.take(pa.array(places[group] - self._starts[home])))
        if not parts:
            return pa.array([], pa.large_string())
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_arrays(parts).take(pa.array(back))

    def jaccard(self, firsts: Integers, seconds: Integers) -> npt.NDArray[np.float64]:
        """The similarity of pairs of documents, given by position; an estimate if signatures were stored."""
        left = np.searchsorted(self._starts, firsts, "right") - 1
        right = np.searchsorted(self._starts, seconds, "right") - 1
        order = np.lexsort((right, left))
        result = np.empty(len(firsts))
        cuts = np.flatnonzero((np.diff(left[order]) != 0) | (np.diff(right[order]) != 0)) + 1
        for group in np.split(order, cuts):
            if not len(group):
                continue
            one, two = int(left[group[0]]), int(right[group[0]])
            result[group] = (jaccard_lists if self._kind == "lists" else jaccard_pairs)(
                *self._sets[one],
                *self._sets[two],
                firsts[group] - self._starts[one],
                seconds[group] - self._starts[two],
            )
        # Of n functions that agree in a, sets of n elements share a, which makes a / (2 n - a).
        return 2 * result / (1 + result) if self._kind == "signatures" else result


def _set_arrays(table: pa.Table) -> tuple[Any, Integers]:
    lists = table.column("shingles").chunk(0)
    values, bounds = lists.values.to_numpy(), lists.offsets.to_numpy()
    # Mapped files are read-only already; one layout means one compilation.
    values.flags.writeable = bounds.flags.writeable = False
    return values, bounds
