"""Two runs compared document by document, from their ledgers alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gristmill.ledger.why import KEPT

if TYPE_CHECKING:
    import polars as pl

    from gristmill.ledger.ledger import Ledger

_VERDICT = ("status", "stage", "reason")


@dataclass(slots=True)
class LedgerDiff:
    """What differs between two runs.

    Attributes:
        frame: One row per document that fared differently: `change` (`entered` the output, `left` it, was dropped for
            `another reason`, is `new` in or `gone` from the input), its id where a ledger has the text, and status,
            stage, reason and score before and after.
        matched_by: `id`, `url`, or `row` (partition and row number) where documents have neither.
        same: Documents that fared the same.
        untracked: Decisions on rows whose origin is unknown, which cannot be compared.
    """

    frame: pl.DataFrame
    matched_by: str
    same: int
    untracked: int

    def counts(self) -> dict[str, int]:
        """How many documents changed in which way."""
        return {str(key): int(number) for key, number in self.frame["change"].value_counts(sort=True).iter_rows()}

    def __str__(self) -> str:
        parts = [f"{number} {change}" for change, number in sorted(self.counts().items())]
        text = f"{self.same} documents fared the same (matched by {self.matched_by})"
        return text + (": " + ", ".join(parts) + "." if parts else ", none differently.")


def compare_ledgers(before: Ledger, after: Ledger) -> LedgerDiff:
    """How the documents of `before` fared in `after`.

    Documents are matched by the hash of their id (of their URL where there are no ids, by partition and row number
    where there is neither); several with the same id are matched in source order.
    """
    import polars as pl

    matched_by = _common_key(before, after)
    (old, lost_before), (new, lost_after) = _documents(before, matched_by), _documents(after, matched_by)
    keys = ["key", "number"]
    joined = old.join(new, on=keys, how="full", suffix="_after", coalesce=True, nulls_equal=True)
    was, now = pl.col("status"), pl.col("status_after")
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}_after")) for name in _VERDICT)
    change = (
        pl.when(same)
        .then(None)
        .when(was.is_null())
        .then(pl.lit("new"))
        .when(now.is_null())
        .then(pl.lit("gone"))
        .when(now == KEPT)
        .then(pl.lit("entered"))
        .when(was == KEPT)
        .then(pl.lit("left"))
        .otherwise(pl.lit("another reason"))
    )
    whole = joined.with_columns(change.alias("change"))
    differing = whole.filter(pl.col("change").is_not_null()).select(
        "change",
        pl.coalesce("id", "id_after").alias("id"),
        pl.coalesce("partition", "partition_after").alias("partition"),
        pl.coalesce("row", "row_after").alias("row"),
        *(pl.col(name).alias(f"{name}_before") for name in (*_VERDICT, "score")),
        *(f"{name}_after" for name in (*_VERDICT, "score")),
    )
    frame = differing.sort("change", "partition", "row")
    return LedgerDiff(frame, matched_by, len(whole) - len(frame), lost_before + lost_after)


def _common_key(before: Ledger, after: Ledger) -> str:
    kinds = []
    for ledger in (before, after):
        records = [entry.records for entry in ledger.entries().values() if entry.rows_read]
        kinds.append({kind for kind in ("ids", "urls") if any(kind in record for record in records)})
    shared = kinds[0] & kinds[1]
    return "id" if "ids" in shared else "url" if "urls" in shared else "row"


def _documents(ledger: Ledger, matched_by: str) -> tuple[pl.DataFrame, int]:
    """Every document of a run with its key, its number among those with the same key, and what became of it."""
    import polars as pl

    empty = {"partition": pl.String, "row": pl.Int64, "key": pl.UInt64}
    parts = [pl.DataFrame(schema=empty)]
    for entry in ledger.entries().values():
        rows = np.arange(entry.row_numbers, dtype=np.int64)
        ids, urls = ledger.index(entry)
        hashes = {"id": ids, "url": urls, "row": None}[matched_by]
        key = hashes
        if key is None or not key.all():
            # Documents without the key (0) are matched by their place.
            place = (pl.Series([f"{entry.partition}#"]) + pl.Series(rows).cast(pl.String)).hash().to_numpy()
            key = place if key is None else np.where(key == 0, place, key)
        parts.append(pl.DataFrame({"partition": entry.partition, "row": rows, "key": key}, schema=empty))
    documents = pl.concat(parts)
    documents = documents.with_columns(pl.Series("number", _occurrence(documents["key"].to_numpy()), pl.Int64))
    frame = ledger.frame()
    lost = int(frame["row"].is_null().sum())
    last = (
        frame.filter(pl.col("row").is_not_null())
        .group_by("partition", "row", maintain_order=True)
        .agg(pl.col("id", "outcome", "stage", "reason", "score").last())
    )
    known = documents.join(last, on=["partition", "row"], how="left").with_columns(
        pl.col("outcome").fill_null(KEPT).alias("status")
    )
    return known.select("key", "number", "id", "partition", "row", "status", "stage", "reason", "score"), lost


def _occurrence(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """How many equal keys come before each one."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    starts = np.concatenate([[True], ranked[1:] != ranked[:-1]]) if len(keys) else np.array([], bool)
    places = np.arange(len(keys), dtype=np.int64)
    numbers = np.empty(len(keys), np.int64)
    numbers[order] = places - np.maximum.accumulate(np.where(starts, places, 0))
    return numbers
