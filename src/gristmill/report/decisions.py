"""Collects what the report needs from the ledger: scores by filter, duplicates by cluster, and example documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import ManifestEntry
from gristmill.ledger.record.plan_record import missing_scores, score_filters
from gristmill.ledger.record.shape import open_table
from gristmill.ledger.record.trail import DUPLICATE
from gristmill.report.distribution import Floats, Mask, ScoreDistribution
from gristmill.storage.arrow_functions import call_function

Codes = npt.NDArray[np.int64]
_WORDS = ("stage", "outcome", "reason")
_NOTHING = np.array([], np.int64)


class FilterBounds(NamedTuple):
    """A filter of the plan: the range it keeps, and the parameters that set it."""

    stage: str
    name: str
    lower: float | None
    upper: float | None
    is_inverted: bool = False
    spares_zero: bool = False
    parameters: tuple[str | None, str | None] = (None, None)

    @property
    def thresholds(self) -> list[float]:
        """The bounds that are set."""
        return [float(bound) for bound in (self.lower, self.upper) if bound is not None]

    def fails(self, scores: Floats) -> Mask:
        """Which scores the filter drops; a score that is not a number fails every bound."""
        kept = np.ones(len(scores), np.bool_)
        if self.lower is not None:
            kept &= scores >= self.lower
        if self.upper is not None:
            kept &= scores <= self.upper
        if self.spares_zero:
            kept |= scores == 0
        return kept if self.is_inverted else ~kept


def plan_filters(stages: Sequence[Mapping[str, Any]]) -> list[FilterBounds]:
    """The filters with bounds in a plan: those of score filters, and the rules of published datasets."""
    found = [
        FilterBounds(
            one["stage"], one["filter"], one["lower"], one["upper"], one["invert"], parameters=one["parameters"]
        )
        for one in score_filters(stages)
    ]
    for stage in stages:
        published = (stage.get("parameters") or {}).get("filters")
        for rule in published.get("rules") or () if isinstance(published, dict) else ():
            spares = bool(rule.get("_spare_zero"))
            found.append(
                FilterBounds(
                    str(stage["name"]), str(rule["name"]), rule.get("lower"), rule.get("upper"), spares_zero=spares
                )
            )
    return [one for one in found if one.thresholds]


class Example(NamedTuple):
    """A document that the report shows, with its ledger entry."""

    partition: str
    row: int
    id: str | None
    stage: str
    reason: str
    score: float | None = None
    threshold: float | None = None
    survivor: str | None = None
    similarity: float | None = None
    cluster: int | None = None


class DecisionGroup:
    """All documents that a stage dropped for one reason."""

    def __init__(self, outcome: str) -> None:
        self.outcome = outcome
        self.number = 0
        self.threshold: float | None = None
        self.is_lower = False
        self.scores: ScoreDistribution | None = None
        self.examples: list[Example] = []


class LedgerDigest:
    """Adds up the ledgers of partitions.

    Args:
        folder: The run.
        filters: The filters of its plan.
        examples: Number of documents to show per reason.
        score_rows: Maximum number of recorded scores to read; None for all.

    Attributes:
        groups: The decisions by stage and reason.
        scored_documents: Number of documents in the partitions whose scores were all read.
        is_scores_sample: Whether there are more scores than were read.
    """

    def __init__(
        self, folder: RunFolder, filters: Sequence[FilterBounds], *, examples: int, score_rows: int | None = None
    ) -> None:
        self.folder = folder
        self.filters = filters
        self.examples = examples
        self.score_rows = score_rows
        self.groups: dict[tuple[str, str], DecisionGroup] = {}
        self.scored_documents = 0
        self.is_scores_sample = False
        self._clusters: dict[str, list[Codes]] = {}
        self._scores: dict[tuple[str, str], ScoreDistribution] = {}
        self._score_rows_read = 0

    def add(self, entry: ManifestEntry) -> None:
        """Read the ledger of a partition."""
        dropped = self._add_decisions(entry)
        scores = entry.records.get("scores")
        if scores is not None:
            if self.score_rows is not None and self._score_rows_read + (scores.rows or 0) > self.score_rows:
                self.is_scores_sample = True
            else:
                self._add_scores(entry, dropped)

    def _table(self, entry: ManifestEntry, kind: str, words: Sequence[str]) -> pa.Table | None:
        file = entry.records.get(kind)
        if file is None:
            return None
        with self.folder.open(self.folder.join(file.path)) as stream:
            table = open_table(stream, read_dictionary=list(words)).read(use_threads=False)
        return table.unify_dictionaries().combine_chunks()

    def _add_decisions(self, entry: ManifestEntry) -> tuple[Codes, Codes, list[str]]:
        """Count the decisions of a partition. Returns the dropped rows, the stages by number, and their names."""
        table = self._table(entry, "ledger", _WORDS)
        if table is None or not table.num_rows:
            return _NOTHING, _NOTHING, []
        codes, words = [], []
        for name in _WORDS:
            indices, dictionary = _coded(table.column(name))
            codes.append(indices)
            words.append(dictionary)
        stages, outcomes, reasons = words
        code = (codes[0] * len(outcomes) + codes[1]) * len(reasons) + codes[2]
        order = np.argsort(code, kind="stable")
        code = code[order]
        scores, thresholds = (_numbers(table.column(name))[order] for name in ("score", "threshold"))
        starts = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]]))
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(code)], strict=True):
            at, reason = divmod(int(code[start]), len(reasons))
            at, outcome = divmod(at, len(outcomes))
            self._add_group(
                entry,
                table,
                (stages[at], outcomes[outcome], reasons[reason]),
                order[start:end],
                scores[start:end],
                thresholds[start:end],
            )
        rows = _integers(table.column("row"))
        return rows[rows >= 0], codes[0][rows >= 0], stages

    def _add_group(
        self,
        entry: ManifestEntry,
        table: pa.Table,
        decided: tuple[str, str, str],
        places: Codes,
        scores: Floats,
        thresholds: Floats,
    ) -> None:
        stage, outcome, reason = decided
        group = self.groups.setdefault((stage, reason), DecisionGroup(outcome))
        group.number += len(places)
        if outcome == DUPLICATE:
            survivors = table.column("cluster")
            if survivors.null_count < len(survivors):
                self._clusters.setdefault(stage, []).append(_integers(survivors)[places])
        elif not np.isnan(scores[0]) and not np.isnan(thresholds[0]):
            if group.scores is None:
                group.threshold = float(thresholds[0])
                group.is_lower = bool(scores[0] < group.threshold)
                group.scores = ScoreDistribution([group.threshold])
            same = thresholds == group.threshold
            none = np.zeros(int(same.sum()), np.bool_)
            group.scores.add(scores[same], none, ~none)
        missing = self.examples - len(group.examples)
        if missing > 0:
            chosen = places[np.unique(np.linspace(0, len(places) - 1, min(missing, len(places))).astype(int))]
            names = ["row", "id", "score", "threshold", "survivor", "similarity", "cluster"]
            shown = table.select([name for name in names if name in table.column_names])
            for values in call_function("take", [shown, pa.array(chosen)]).to_pylist():
                row = values.pop("row")
                if row is not None:
                    group.examples.append(Example(entry.partition, row, stage=stage, reason=reason, **values))

    def _add_scores(self, entry: ManifestEntry, dropped: tuple[Codes, Codes, list[str]]) -> None:
        """Count all scores of a partition, and find the documents that only one filter dropped."""
        table = self._table(entry, "scores", ("stage", "score"))
        if table is None or not table.num_rows:
            return
        self._score_rows_read += table.num_rows
        self.scored_documents += entry.rows_read
        (stages, stage_names), (names, score_names) = (_coded(table.column(name)) for name in ("stage", "score"))
        rows, values = _integers(table.column("row")), _numbers(table.column("value"))
        code = stages * len(score_names) + names
        # One stage and score after the other: each is a run of neighbours.
        starts = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]])).tolist()
        spans = {}
        for start, end in zip(starts, [*starts[1:], len(code)], strict=True):
            spans[stage_names[stages[start]], score_names[names[start]]] = slice(start, end)
        size = max(entry.row_numbers, int(rows.max()) + 1)
        failed, ended = np.zeros(size, np.int16), np.full(size, -1, np.int16)
        ended[dropped[0]] = dropped[1]
        order = {name: number for number, name in enumerate(dropped[2])}
        for one in self.filters:
            where = spans.get((one.stage, one.name))
            if where is not None:
                failed[rows[where][one.fails(values[where])]] += 1
        for one in self.filters:
            where = spans.get((one.stage, one.name))
            if where is None:
                continue
            own, value = rows[where], values[where]
            kept = ended[own] < 0
            # Kept by all, or dropped by this filter and by none of the others.
            alone = (ended[own] == order.get(one.stage, -2)) & (failed[own] == 1) & one.fails(value)
            counted = self._scores.setdefault((one.stage, one.name), ScoreDistribution(one.thresholds))
            counted.add(value, kept, kept | alone)

    # --- data for the page ---

    def sort(self, stages: Sequence[str]) -> None:
        """Put stages into plan order; partitions list them in their own order."""
        place = {stage: number for number, stage in enumerate(stages)}
        self.groups = dict(sorted(self.groups.items(), key=lambda item: place.get(item[0][0], len(place))))
        self._clusters = dict(sorted(self._clusters.items(), key=lambda item: place.get(item[0], len(place))))

    def described_scores(self, stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """A distribution for every filter with known scores, in plan order.

        In a run that recorded all scores these cover all documents (`documents: all`), otherwise those that were
        dropped.
        """
        found = []
        for one in self.filters:
            scores = self._scores.get((one.stage, one.name))
            if scores is not None:
                behind = [*missing_scores(stages, after=one.stage)]
                found.append(
                    {
                        "stage": one.stage, "filter": one.name, "documents": "all", "lower": one.lower,
                        "upper": one.upper, "inverted": one.is_inverted, "parameters": list(one.parameters),
                        "unseen": behind, **scores.described(),
                    }
                )  # fmt: skip
        done = {(one["stage"], one["filter"]) for one in found} | {one["stage"] for one in found}
        for (stage, reason), group in self.groups.items():
            if group.scores is None or group.threshold is None or (stage, reason) in done or stage in done:
                continue
            described = group.scores.described()
            if not described["grid"]:
                continue
            bounds = dict.fromkeys(("lower", "upper")) | {"lower" if group.is_lower else "upper": group.threshold}
            found.append(
                {
                    "stage": stage, "filter": reason, "documents": "dropped", "inverted": False,
                    "parameters": [None, None], "unseen": [], **bounds, **described,
                }
            )  # fmt: skip
        order = {str(stage.get("name")): number for number, stage in enumerate(stages)}
        return sorted(found, key=lambda one: order.get(one["stage"], len(order)))

    def described_clusters(self) -> list[dict[str, Any]]:
        """For each deduplication, the number of clusters by size, survivor included."""
        return list(starmap(_cluster_sizes, self._clusters.items()))

    def cluster_size(self, example: Example) -> int | None:
        """The size of a duplicate's cluster, as far as the ledgers that were read show it."""
        parts = self._clusters.get(example.stage)
        if parts is None or example.cluster is None:
            return None
        return 1 + sum(int((part == example.cluster).sum()) for part in parts)


def _cluster_sizes(stage: str, parts: Sequence[Codes]) -> dict[str, Any]:
    _, removed = np.unique(np.concatenate(parts), return_counts=True)
    sizes, number = np.unique(removed + 1, return_counts=True)
    return {
        "stage": stage,
        "clusters": len(removed),
        "removed": int(removed.sum()),
        "sizes": list(zip(sizes.tolist(), number.tolist(), strict=True)),
    }


def _coded(column: pa.ChunkedArray) -> tuple[Codes, list[str]]:
    """A column of words as numbers, and the words."""
    array = column.chunk(0)
    return array.indices.to_numpy(zero_copy_only=False).astype(np.int64), array.dictionary.to_pylist()


def _numbers(column: pa.ChunkedArray) -> Floats:
    return column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)  # type: ignore[no-any-return]


def _integers(column: pa.ChunkedArray) -> Codes:
    """A column of whole numbers; -1 for null."""
    if not column.null_count:
        return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    array = column.chunk(0)
    values = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array)].copy()
    values[array.is_null().to_numpy(zero_copy_only=False)] = -1
    return values
