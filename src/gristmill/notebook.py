"""Displays objects in notebooks as small HTML tables in which all values from data are escaped.

Classes use it by `_repr_html_ = notebook.…`; nothing here runs outside notebooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

MAX_ROWS = 30
MAX_DOCUMENTS = 10
_CELL_CHARS = 200


def escaped(value: Any, chars: int = _CELL_CHARS) -> str:
    """A value as escaped text, shortened to fit into a cell."""
    from html import escape

    text = "" if value is None else f"{value:,}" if type(value) is int else str(value)
    cut = text if len(text) <= chars else f"{text[:chars]}…"
    return escape(cut.encode("utf-8", "replace").decode())


def table(names: Sequence[str], rows: Iterable[Sequence[Any]], *, caption: str = "", more: str = "") -> str:
    """A table with right-aligned numbers. `caption` goes before it, `more` after it."""
    cells = list(rows)
    sides = ["right" if _are_numbers(row[at] for row in cells) else "left" for at in range(len(names))]
    lines = []
    for tag, values in [("th", names), *(("td", row) for row in cells)]:
        line = zip(sides, values, strict=True)
        lines.append(
            "".join(f'<{tag} style="text-align:{side}" dir="auto">{escaped(one)}</{tag}>' for side, one in line)
        )
    body = "".join(f"<tr>{line}</tr>" for line in lines[1:])
    whole = f"<table><thead><tr>{lines[0]}</tr></thead><tbody>{body}</tbody></table>" if cells else ""
    before, after = (f"<p>{escaped(text, 2000)}</p>" if text else "" for text in (caption, more))
    return f"<div>{before}{whole}{after}</div>"


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)


def as_text(shown: Any) -> str:
    """The output of `print`."""
    return f'<pre style="white-space:pre-wrap">{escaped(str(shown), 100_000)}</pre>'


class ShownText(str):
    """Text that a notebook displays with its line breaks."""

    __slots__ = ()
    _repr_html_ = as_text


def of_pipeline(pipeline: Any) -> str:
    """The stages of a pipeline with the columns that they read and write."""
    rows = []
    for number, stage in enumerate(pipeline.stages[:MAX_ROWS], 1):
        needed, given = stage.inputs(), stage.outputs()
        read = "" if isinstance(needed, dict) else ", ".join(needed[1])
        rows.append((number, stage.name, type(stage).__name__, read, ", ".join(given[1])))
    names = ("", "stage", "class", "reads", "writes")
    title = f"Pipeline {pipeline.name}" + (f": {pipeline.description}" if pipeline.description else "")
    return table(names, rows, caption=title, more=_more(len(pipeline.stages) - len(rows), "stages"))


def of_report(report: Any) -> str:
    """The totals of a run, and why each stage dropped or quarantined documents."""
    read = f"{report.rows_read:,} documents read, {report.rows_written:,} kept, {report.quarantined:,} quarantined"
    rows = [
        (stage.name, outcome, reason, number)
        for stage in report.stages
        for outcome, found in (
            ("dropped", stage.dropped),
            ("quarantined", stage.quarantined),
            ("not a document", stage.skipped),
        )
        for reason, number in sorted(found.items(), key=lambda pair: -pair[1])
    ]
    told = [*report.alarms, f"Output: {report.output}" if report.output else ""]
    more = _more(len(rows) - MAX_ROWS, "reasons")
    return table(
        ("stage", "outcome", "reason", "documents"),
        rows[:MAX_ROWS],
        caption=f"{report.pipeline}: {report.status} in {report.seconds:.1f} s. {read}.",
        more=" ".join(part for part in (more, *told) if part),
    )


def of_result(result: Any) -> str:
    """The report of the run, and how many tasks came out of it."""
    tasks = f"<p>{len(result):,} {'task' if len(result) == 1 else 'tasks'} in this list.</p>"
    return of_report(result.report) + tasks


def of_batch(batch: Any) -> str:
    """The first documents of a batch."""
    shown = batch.slice(0, MAX_DOCUMENTS).to_pyarrow()
    title = f"{type(batch).__name__}: {batch.num_items:,} documents, {len(shown.column_names)} columns"
    # As text: a number in a document must not get thousands separators.
    columns = [
        ["" if one is None else str(one) for one in shown.column(name).to_pylist()] for name in shown.column_names
    ]
    more = _more(batch.num_items - shown.num_rows, "documents")
    return table(shown.column_names, zip(*columns, strict=True), caption=title, more=more)


def of_ledger(ledger: Any) -> str:
    """What happened to the documents of a run, by stage and reason."""
    summary = ledger.summary()
    summary = summary.filter(summary["rows"] > 0)
    names = ("stage", "outcome", "reason", "rows")
    rows = list(islice(summary.select(names).iter_rows(), MAX_ROWS))
    title = f"Ledger of {ledger.folder.path}"
    return table(
        ("stage", "outcome", "reason", "documents"),
        rows,
        caption=title,
        more=_more(len(summary) - len(rows), "reasons"),
    )


def _more(number: int, of_what: str) -> str:
    return f"… and {number:,} more {of_what}." if number > 0 else ""
