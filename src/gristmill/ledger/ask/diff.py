"""Two runs compared document by document, from their ledgers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill import notebook
from gristmill.ledger.ask.why import KEPT
from gristmill.ledger.record.earlier_names import earlier_name

if TYPE_CHECKING:
    import polars as pl

    from gristmill.ledger.ask.ledger import Ledger
    from gristmill.ledger.record.manifest import ManifestEntry

_DECISION = ("status", "stage", "reason")
SHOWN = {"entered": "added", "left": "removed", "another reason": "dropped for another reason"}


@dataclass(slots=True)
class LedgerDiff:
    """What differs between two runs.

    Attributes:
        frame: One row per document that was treated differently: `change` (`entered` the output, `left` it, was dropped
            for `another reason`, is `new` in or `gone` from the input), its id if a ledger has the text, and status,
            stage, reason and score before and after.
        matched_by: `id`, `url`, or `row` (partition and row number) if documents have neither.
        same: Documents with the same outcome.
        untracked: Decisions on rows whose origin is unknown, which cannot be compared.
    """

    frame: pl.DataFrame
    matched_by: str
    same: int
    untracked: int

    def counts(self) -> dict[str, int]:
        """Number of documents by kind of change."""
        return {str(key): int(number) for key, number in self.frame["change"].value_counts(sort=True).iter_rows()}

    _repr_html_ = notebook.as_text

    def __str__(self) -> str:
        changes = [f", {number:,} {SHOWN.get(change, change)}" for change, number in sorted(self.counts().items())]
        return f"{self.same:,} documents unchanged{''.join(changes)} (matched by {self.matched_by})."


def compare_ledgers(before: Ledger, after: Ledger) -> LedgerDiff:
    """What happened to the documents of `before` in `after`.

    Documents are matched by the hash of their id (of their URL if there are no ids, by partition and row number if
    there is neither); several with the same id are matched in source order.
    """
    import polars as pl

    entries = before.entries(), after.entries()
    matched_by = _common_key(*entries)
    old, new = _documents(before, entries[0], matched_by), _documents(after, entries[1], matched_by)
    joined = old.join(new, on=["key", "number"], how="full", suffix="_after", coalesce=True)
    change = (
        pl.when(pl.col("status").is_null())
        .then(pl.lit("new"))
        .when(pl.col("status_after").is_null())
        .then(pl.lit("gone"))
        .when(pl.col("status_after") == KEPT)
        .then(pl.lit("entered"))
        .when(pl.col("status") == KEPT)
        .then(pl.lit("left"))
        .otherwise(pl.lit("another reason"))
    )
    then = {name: earlier_name(name) for name in _names(old, new)}  # one of the runs may be from an earlier version
    differs = pl.any_horizontal(
        pl.col(name).replace(then).ne_missing(pl.col(f"{name}_after").replace(then)) for name in _DECISION
    )
    frame = joined.filter(differs).select(
        change.alias("change"),
        *(pl.coalesce(name, f"{name}_after").alias(name) for name in ("id", "partition", "row")),
        *(pl.col(name).alias(f"{name}_before") for name in (*_DECISION, "score")),
        *(f"{name}_after" for name in (*_DECISION, "score")),
    )
    frame = frame.sort("change", "partition", "row")
    untracked = sum(int(ledger.frame()["row"].is_null().sum()) for ledger in (before, after))
    return LedgerDiff(frame, matched_by, len(joined) - len(frame), untracked)


def _names(*runs: pl.DataFrame) -> set[str]:
    """The stages and reasons in the decisions of runs; the reasons of some filters contain their names."""
    return {
        str(name) for frame in runs for column in ("stage", "reason") for name in frame[column].drop_nulls().unique()
    }


def _common_key(*runs: Mapping[str, ManifestEntry]) -> str:
    kinds = []
    for entries in runs:
        records = [entry.records for entry in entries.values() if entry.rows_read]
        kinds.append({kind for kind in ("ids", "urls") if any(kind in record for record in records)})
    shared = kinds[0] & kinds[1]
    return "id" if "ids" in shared else "url" if "urls" in shared else "row"


def _documents(ledger: Ledger, entries: Mapping[str, ManifestEntry], matched_by: str) -> pl.DataFrame:
    """Every document of a run with its last decision, its key, and the number of earlier ones with the same key."""
    import polars as pl

    frame = ledger.documents()
    place = pl.format("{}#{}", "partition", "row").hash()  # the key of documents without any other
    if matched_by == "row":
        frame = frame.with_columns(place.alias("key"))
    else:
        hashes = [np.array([], np.uint64)]
        for entry in entries.values():
            own = ledger.index(entry)[matched_by == "url"]
            hashes.append(np.zeros(entry.row_numbers, np.uint64) if own is None else own)
        starts = np.cumsum([0, *(entry.row_numbers for entry in entries.values())])[: len(entries)]
        first = frame["partition"].replace_strict(list(entries), starts, return_dtype=pl.Int64)
        frame = frame.with_columns(pl.Series("key", np.concatenate(hashes)[(first + frame["row"]).to_numpy()]))
        frame = frame.with_columns(pl.when(pl.col("key") == 0).then(place).otherwise("key").alias("key"))
    return frame.with_columns(pl.int_range(pl.len()).over("key").alias("number"))
