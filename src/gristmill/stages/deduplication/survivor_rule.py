"""Which document of a group of duplicates to keep."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UsageError
from gristmill.ledger.record.trail import Floats
from gristmill.tasks.columns import one_chunk
from gristmill.tasks.document import DocumentBatch

Survivor = Literal["first", "longest", "best", "newest", "priority"]


@dataclass(frozen=True)
class SurvivorRule:
    """Orders the documents of a group; the first in this order is kept, and among equals the first in source order.

    Attributes:
        survivor: `first` in source order, `longest` text, `best` value of `score_field` (the highest; documents
            without one come last), `newest` by the dates in `score_field`, or `priority` of sources.
        score_field: Column for `best` and `newest`.
        source_priority: For `priority`, patterns of source paths (`*/wiki/*`), the preferred ones first; documents
            of other sources come last.
        always: Prefer these documents to all others; the first of them in source order is kept.

    Example:
        >>> SurvivorRule("best", score_field="quality").columns
        ('quality',)
    """

    survivor: Survivor = "first"
    score_field: str | None = None
    source_priority: tuple[str, ...] = ()
    always: bool = False

    def __post_init__(self) -> None:
        if self.survivor not in get_args(Survivor):
            raise UsageError(f"survivor={self.survivor!r}: must be one of {', '.join(get_args(Survivor))}.")
        if self.survivor == "best" and self.score_field is None:
            raise UsageError("survivor='best' (--keep best): set score_field (--score-field) to the column to compare.")
        if self.survivor == "newest" and self.score_field is None:
            raise UsageError(
                "survivor='newest' (--keep newest): set score_field (--score-field) to the column that holds the dates."
            )
        if self.survivor not in ("best", "newest") and self.score_field is not None:
            raise UsageError(
                f"score_field={self.score_field!r} (--score-field) applies to survivor='best' (--keep best) or "
                f"'newest'; with survivor={self.survivor!r} it would have no effect."
            )
        if self.survivor == "priority" and not self.source_priority:
            raise UsageError(
                "survivor='priority' (--keep priority): set source_priority (--source) to patterns of source paths, "
                "the preferred ones first."
            )
        if self.survivor != "priority" and self.source_priority:
            raise UsageError(
                f"source_priority={list(self.source_priority)!r} (--source) applies to survivor='priority' (--keep "
                f"priority); with survivor={self.survivor!r} it would have no effect."
            )

    @classmethod
    def of(cls, survivor: str, score_field: str | None, source_priority: Sequence[str] | None) -> SurvivorRule:
        """The rule of the options of a workflow."""
        patterns = (source_priority,) if isinstance(source_priority, str) else tuple(source_priority or ())
        return cls(survivor, score_field, patterns)  # type: ignore[arg-type]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads, besides the text."""
        return () if self.score_field is None or self.always else (self.score_field,)

    def check(self, batch: DocumentBatch) -> None:
        """Reject a score column without numbers, or a date column without a date.

        Raises:
            UsageError: The column has no such values.
        """
        if self.survivor == "best" and self.score_field is not None:
            numbers_of(batch, self.score_field)
        if self.survivor != "newest" or self.score_field is None or not batch.columns.has(self.score_field):
            return
        given = batch.text(self.score_field)
        if given.null_count < len(given) and np.isnan(dates_of(batch, self.score_field)).all():
            value = given.drop_null()[0].as_py()
            raise UsageError(
                f"score_field={self.score_field!r}: survivor='newest' (--keep newest) compares dates, but this column "
                f"holds none, only values such as {value[:60]!r}. Dates are ISO 8601, such as '2024-05-01T12:00:00Z', "
                "or seconds since 1970.",
                field=self.score_field,
            )

    def ranks(self, batch: DocumentBatch, text: pa.Array) -> Floats:
        """A number for every document; the lowest of a group is kept."""
        if self.always:
            return np.full(batch.num_items, -np.inf)
        if self.survivor == "longest":
            lengths = pc.fill_null(pc.utf8_length(text), 0).to_numpy(zero_copy_only=False)
            return -np.asarray(lengths, np.float64)
        if self.survivor == "best":
            assert self.score_field is not None
            return _negated(batch, self.score_field)
        if self.survivor == "newest":
            assert self.score_field is not None
            return np.where(np.isnan(dates := dates_of(batch, self.score_field)), np.inf, -dates)
        if self.survivor == "priority":
            patterns = self.source_priority
            paths, places = batch.sources()
            ranks = [
                next((at for at, pattern in enumerate(patterns) if _matches(path, pattern)), len(patterns))
                for path in paths
            ]
            return np.array(ranks, np.float64)[places]
        return np.zeros(batch.num_items)


def _matches(path: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"*/{pattern}")


def _negated(batch: DocumentBatch, field: str) -> Floats:
    values = numbers_of(batch, field)
    return np.where(np.isnan(values), np.inf, -values)


def numbers_of(batch: DocumentBatch, field: str) -> Floats:
    """The values of a column as numbers, NaN if missing; texts that are written as numbers count as numbers.

    Raises:
        UsageError: They are not numbers.
    """
    if not batch.columns.has(field):
        return np.full(batch.num_items, np.nan)
    column = batch.text(field) if batch.columns.is_json(field) else one_chunk(batch.column(field))
    try:
        return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        value = next((text for text in column.to_pylist() if text is not None and not _is_number(text)), None)
        example = "" if value is None else f", such as {str(value)[:60]!r}"
        raise UsageError(
            f"score_field={field!r}: survivor='best' compares numbers, but this column holds "
            f"{_kind(batch, field, column.type)}{example}. Choose a column of numbers with --score-field "
            "(score_field).",
            field=field,
            found=str(column.type),
        ) from error


_DATE = (
    r"^\s*(?P<year>\d{4})-?(?P<month>\d{2})-?(?P<day>\d{2})(?:[T ]?(?P<hour>\d{2}):?(?P<minute>\d{2})"
    r"(?::?(?P<second>\d{2}(?:\.\d+)?))?)?\s*(?:[Zz]|(?:UTC|GMT)|(?P<zone>[+-]\d{2}:?\d{2}))?"
)


def dates_of(batch: DocumentBatch, field: str) -> Floats:
    """The values of a column as seconds since 1970, NaN if missing or not a date.

    Timestamps and dates are used directly, numbers as seconds, and texts as ISO 8601 (`2024-05-01T12:00:00Z`, also
    without separators); a time without a zone is UTC.
    """
    if not batch.columns.has(field):
        return np.full(batch.num_items, np.nan)
    kind = batch.column(field).type
    if pa.types.is_temporal(kind):
        moments = one_chunk(batch.column(field)).cast(pa.timestamp("us", tz=getattr(kind, "tz", None)))
        return np.asarray(moments.cast(pa.int64()).cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64) / 1e6
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return numbers_of(batch, field)
    found = pc.extract_regex(batch.text(field), pattern=_DATE)
    part = {name: pc.struct_field(found, name) for name in ("year", "month", "day", "hour", "minute", "second", "zone")}

    def number(name: str) -> Floats:
        given = pc.if_else(pc.equal(part[name], ""), "0", part[name])
        return np.asarray(given.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)

    months = (number("year") - 1970) * 12 + number("month") - 1
    there = ~np.isnan(months)
    days = np.where(there, months, 0).astype("datetime64[M]").astype("datetime64[D]").astype(np.float64)
    zone = pc.replace_substring(part["zone"], ":", "")
    shift = pc.if_else(pc.equal(zone, ""), "0", zone).cast(pa.float64()).to_numpy(zero_copy_only=False)
    minutes = np.sign(shift) * (np.abs(shift) // 100 * 60 + np.abs(shift) % 100)
    seconds = (days + number("day") - 1) * 86400 + number("hour") * 3600 + number("minute") * 60 + number("second")
    return np.where(there, seconds - minutes * 60, np.nan)


def _is_number(value: object) -> bool:
    try:
        pa.scalar(value).cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _kind(batch: DocumentBatch, field: str, kind: pa.DataType) -> str:
    if batch.columns.is_json(field):
        return "lists, objects or values of several types"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "texts"
    return f"values of type {kind}"
