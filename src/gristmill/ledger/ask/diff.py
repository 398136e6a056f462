"""Two runs compared document by document, from their ledgers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gristmill.ledger.ask.why import KEPT

if TYPE_CHECKING:
    import polars as pl

    from gristmill.ledger.ask.ledger import Ledger
    from gristmill.ledger.record.manifest import ManifestEntry

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

    entries = before.entries(), after.entries()
    matched_by = _common_key(*entries)
    old, new = _Documents(before, entries[0], matched_by), _Documents(after, entries[1], matched_by)
    joined = old.keys.join(new.keys, on=["key", "number"], how="full", suffix="_after", coalesce=True)
    joined = joined.join(old.verdicts, on="position", how="left").join(
        new.verdicts, left_on="position_after", right_on="position", how="left", suffix="_after"
    )
    was = pl.when(pl.col("position").is_not_null()).then(pl.col("status").fill_null(KEPT))
    now = pl.when(pl.col("position_after").is_not_null()).then(pl.col("status_after").fill_null(KEPT))
    joined = joined.with_columns(was.alias("status"), now.alias("status_after"))
    differs = pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_after")) for name in _VERDICT)
    differing = joined.filter(differs)
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
    frame = _with_places(differing, old, new).select(
        change.alias("change"),
        pl.coalesce("id", "id_after").alias("id"),
        "partition",
        "row",
        *(pl.col(name).alias(f"{name}_before") for name in (*_VERDICT, "score")),
        *(f"{name}_after" for name in (*_VERDICT, "score")),
    )
    frame = frame.sort("change", "partition", "row")
    return LedgerDiff(frame, matched_by, len(joined) - len(frame), old.untracked + new.untracked)


def _common_key(*runs: Mapping[str, ManifestEntry]) -> str:
    kinds = []
    for entries in runs:
        records = [entry.records for entry in entries.values() if entry.rows_read]
        kinds.append({kind for kind in ("ids", "urls") if any(kind in record for record in records)})
    shared = kinds[0] & kinds[1]
    return "id" if "ids" in shared else "url" if "urls" in shared else "row"


class _Documents:
    """Every document of a run by its position in source order, with its key, and the last verdict on it if any."""

    def __init__(self, ledger: Ledger, entries: Mapping[str, ManifestEntry], matched_by: str) -> None:
        import polars as pl

        self.names = list(entries)
        sizes = [entry.row_numbers for entry in entries.values()]
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        keys = np.empty(int(self.starts[-1]), np.uint64)
        for entry, start in zip(entries.values(), self.starts, strict=False):
            hashes = {"id": 0, "url": 1}.get(matched_by)
            key = None if hashes is None else ledger.index(entry)[hashes]
            if key is None or not key.all():
                # Documents without the key (0) are matched by their place.
                rows = pl.Series(np.arange(entry.row_numbers)).cast(pl.String)
                place = (pl.Series([f"{entry.partition}#"]) + rows).hash().to_numpy()
                key = place if key is None else np.where(key == 0, place, key)
            keys[start : start + entry.row_numbers] = key
        positions = np.arange(len(keys), dtype=np.int64)
        self.keys = pl.DataFrame({"key": keys, "number": _occurrence(keys), "position": positions})
        frame = ledger.frame()
        self.untracked = int(frame["row"].is_null().sum())
        begins = pl.DataFrame(
            {"partition": self.names, "start": self.starts[:-1]}, schema={"partition": pl.String, "start": pl.Int64}
        )
        self.verdicts = (
            frame.filter(pl.col("row").is_not_null())
            .join(begins, on="partition", how="left", maintain_order="left")
            .select(
                (pl.col("start") + pl.col("row")).alias("position"),
                pl.col("outcome").alias("status"),
                "stage",
                "reason",
                "score",
                "id",
            )
            .unique("position", keep="last", maintain_order=True)
        )

    def places(self, positions: npt.NDArray[np.int64]) -> tuple[list[str], npt.NDArray[np.int64]]:
        """The partition and row number of each position."""
        at = np.searchsorted(self.starts, positions, side="right") - 1
        return [self.names[place] for place in at], positions - self.starts[at]


def _with_places(frame: pl.DataFrame, old: _Documents, new: _Documents) -> pl.DataFrame:
    """`frame` with the partition and row number of each document: where it was, else where it is."""
    import polars as pl

    gone = frame.filter(pl.col("position").is_not_null())
    come = frame.filter(pl.col("position").is_null())
    parts = []
    for part, documents, name in ((gone, old, "position"), (come, new, "position_after")):
        partitions, rows = documents.places(part[name].to_numpy())
        parts.append(part.with_columns(pl.Series("partition", partitions, pl.String), pl.Series("row", rows, pl.Int64)))
    return pl.concat(parts)


def _occurrence(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """How many equal keys come before each one."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    starts = np.concatenate([[True], ranked[1:] != ranked[:-1]]) if len(keys) else np.array([], bool)
    places = np.arange(len(keys), dtype=np.int64)
    numbers = np.empty(len(keys), np.int64)
    numbers[order] = places - np.maximum.accumulate(np.where(starts, places, 0))
    return numbers
