"""Drops, cuts or marks contaminated documents."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.deduplication.decontamination.index import ItemList
from gristmill.stages.deduplication.decontamination.search import pairs_of
from gristmill.stages.deduplication.sorted_runs import RunFiles, column
from gristmill.stages.deduplication.source import first_key, make_keys, texts_of
from gristmill.tasks.document import DocumentBatch

Action = Literal["drop", "cut", "mark"]

CONTAMINATED = "contaminated"
TOO_MANY_PIECES = "contaminated_in_too_many_places"
NOTHING_LEFT = "nothing_left_after_cutting"
MARK_FIELD = "contamination"
"""The column of marked documents: `[{"item": "mmlu#17", "share": 0.8}]` as JSON, null for all others."""


class ContaminationRemoval(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Applies the results of a search for benchmark items to the documents of a partition.

    Args:
        pairs: The documents and the items that they contain.
        index: The items of the benchmarks.
        text_field: Column that holds the text.
        action: `drop`, `cut` or `mark`.
        min_share: The threshold for the share of an item, or for the cosine with it.
        by_meaning: Whether items were found by embeddings, so that a share is a cosine.
        window_chars: When cutting, also cut this many characters on either side of a passage.
        min_piece_chars: When cutting, remove remaining pieces shorter than this.
        max_pieces: When cutting, drop documents that fall into more pieces.
    """

    notes_changes = True
    name = "contamination_removal"
    fork_safe = True

    def __init__(
        self,
        pairs: RunFiles,
        index: RunFiles,
        text_field: str,
        *,
        action: Action,
        min_share: float,
        by_meaning: bool,
        window_chars: int,
        min_piece_chars: int,
        max_pieces: int,
    ) -> None:
        self._pairs, self._index_runs = pairs, index
        self.removals = pairs.digest
        self.index = index.digest
        self.text_field = text_field
        self.action = action
        self.min_share = min_share
        self.by_meaning = by_meaning
        self.window_chars = window_chars
        self.min_piece_chars = min_piece_chars
        self.max_pieces = max_pieces
        self._index: ItemList | None = None
        self._partition = -1
        self._list: pa.Table | None = None

    def inputs(self) -> Spec:
        return ["data"], []

    def outputs(self) -> Spec:
        return ["data"], [MARK_FIELD] if self.action == "mark" else []

    def process(self, task: DocumentBatch) -> DocumentBatch:
        found = self._pairs_of(task.partition)
        if task.num_items and found.num_rows:
            mine = make_keys(task.partition, task.rows)
            keys = column(found, "document")
            firsts, lasts = np.searchsorted(keys, mine, "left"), np.searchsorted(keys, mine, "right")
            if (lasts > firsts).any():
                return self._apply(task, found, firsts, lasts)
        if self.action == "mark":
            return task.with_column(MARK_FIELD, pa.nulls(task.num_items, pa.large_string()), is_json=True)
        return task

    def _apply(
        self, task: DocumentBatch, found: pa.Table, firsts: npt.NDArray[np.int64], lasts: npt.NDArray[np.int64]
    ) -> DocumentBatch:
        if self._index is None:
            self._index = ItemList(self._index_runs)
        items, shares = column(found, "item").astype(np.int64), column(found, "share")
        if self.action == "mark":
            return task.with_column(MARK_FIELD, self._marks(items, shares, firsts, lasts), is_json=True)
        hit = lasts > firsts
        best = np.array(
            [at + int(np.argmax(shares[at:to])) if to > at else 0 for at, to in zip(firsts, lasts, strict=True)]
        )
        names = [""] * task.num_items
        for row, name in zip(np.flatnonzero(hit).tolist(), self._index.item_names(items[best[hit]]), strict=True):
            names[row] = name
        score = np.where(hit, shares[best], np.nan)
        if self.action == "drop":
            return self._drop(task, hit, CONTAMINATED, names, score)
        return self._cut(task, found, firsts, lasts, names, score)

    def _drop(
        self,
        task: DocumentBatch,
        mask: npt.NDArray[np.bool_],
        reason: str,
        names: list[str],
        score: npt.NDArray[np.float64],
    ) -> DocumentBatch:
        alike = score if self.by_meaning else None
        threshold = round(self.min_share, 6)
        return task.drop(mask, reason=reason, score=score, threshold=threshold, survivors=names, similarity=alike)

    def _marks(
        self,
        items: npt.NDArray[np.int64],
        shares: npt.NDArray[np.float64],
        firsts: npt.NDArray[np.int64],
        lasts: npt.NDArray[np.int64],
    ) -> pa.Array:
        import orjson

        assert self._index is not None
        names = self._index.item_names(items)
        marks = [
            orjson.dumps(
                [{"item": names[at], "share": round(float(shares[at]), 4)} for at in range(first, last)]
            ).decode()
            if last > first
            else None
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
        ]
        return pa.array(marks, pa.large_string())

    def _cut(
        self,
        task: DocumentBatch,
        found: pa.Table,
        firsts: npt.NDArray[np.int64],
        lasts: npt.NDArray[np.int64],
        names: list[str],
        score: npt.NDArray[np.float64],
    ) -> DocumentBatch:
        from gristmill.kernels.passage_cut import cut_passages
        from gristmill.kernels.text_column import text_column
        from gristmill.kernels.text_edit import build_column

        text = texts_of(task, self.text_field)
        data, offsets, valid = text_column(text)
        bounds, starts, ends = _spans_of(found, firsts, lasts)
        cut, cut_bounds, pieces = cut_passages(
            data, offsets, bounds, starts, ends, int(self.window_chars), int(self.min_piece_chars)
        )
        values = build_column(cut, cut_bounds, valid)
        changed = lasts > firsts
        shrunk = pa.compute.subtract(pa.compute.utf8_length(values), pa.compute.utf8_length(text))
        many = changed & (pieces > self.max_pieces)
        gone = changed & ~many & (np.diff(cut_bounds) == 0)
        left = changed & ~many & ~gone
        task.note_change(self.text_field, left, pa.compute.fill_null(shrunk, 0).to_numpy(zero_copy_only=False))
        task = task.with_text(self.text_field, values, changed=left)
        task = self._drop(task, many, TOO_MANY_PIECES, names, score)
        kept = ~many
        return self._drop(
            task,
            gone[kept],
            NOTHING_LEFT,
            [name for name, stays in zip(names, kept, strict=True) if stays],
            score[kept],
        )

    def _pairs_of(self, partition: int) -> pa.Table:
        if partition != self._partition or self._list is None:
            self._list = pairs_of(self._pairs, first_key(partition), first_key(partition + 1))
            self._partition = partition
        return self._list


def _spans_of(
    found: pa.Table, firsts: npt.NDArray[np.int64], lasts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The passages of all items of every document, sorted, and where those of each document begin."""
    lists = found.column("spans").chunk(0)
    offsets, values = lists.offsets.to_numpy(), lists.values.to_numpy()
    # Pairs are sorted by document, so those of a document are neighbours, and so are their passages.
    document = np.full(found.num_rows, -1)
    for row in np.flatnonzero(lasts > firsts):
        document[firsts[row] : lasts[row]] = row
    owner = np.repeat(document, np.diff(offsets) // 2)
    flat = values[offsets[0] : offsets[-1]].reshape(-1, 2)
    mine = owner >= 0
    owner, flat = owner[mine], flat[mine]
    order = np.lexsort((flat[:, 0], owner))
    owner, flat = owner[order], flat[order]
    bounds = np.searchsorted(owner, np.arange(len(firsts) + 1))
    return bounds, np.ascontiguousarray(flat[:, 0]), np.ascontiguousarray(flat[:, 1])
