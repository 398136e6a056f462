"""Writes the page of a report: one HTML file with its style, script and data, which loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from gristmill.errors import OutputError
from gristmill.ledger.record.layout import RECORD_FILES, RunFolder
from gristmill.ledger.record.run_record import with_checksum
from gristmill.observe.events import EventStream, Notice
from gristmill.report.contents import AFTER_RUN, WHOLE, Extent, ReportContents
from gristmill.storage.atomic import write_bytes_atomic
from gristmill.storage.files import StorageOptions, is_local

ASSETS = Path(__file__).parent / "assets"
THEME = Path(__file__).parents[1] / "theme.css"


def write_report(
    output: str | os.PathLike[str] | RunFolder,
    *,
    to: str | os.PathLike[str] | None = None,
    extent: Extent = WHOLE,
    record_path: str | os.PathLike[str] | None = None,
    storage_options: StorageOptions = None,
) -> str:
    """Write the report of a run, even if it failed or is still running. Returns its path.

    Args:
        output: The output of the run.
        to: Path of the page; defaults to `report.html` in the record.
        extent: How much of the run to read.
        record_path: Path of the run's record, if not beside the output.
        storage_options: Passed to fsspec for URLs.

    Raises:
        InputNotFoundError: The folder is not the output of a run.
        OutputError: The page cannot be written.

    Example:
        >>> write_report("clean/")  # doctest: +SKIP
        'clean.gristmill/report.html'
    """
    folder = output if isinstance(output, RunFolder) else RunFolder(output, storage_options, record_path=record_path)
    folder.require_run()
    data = ReportContents(folder, extent).collect()
    if to is None and folder.exists(folder.record_path("profile_page")):
        data["profile"] = RECORD_FILES["profile_page"]  # beside the report, so that a link reaches it
    return _write(folder, make_page(data), folder.record_path("report") if to is None else os.fspath(to))


def write_after_run(folder: RunFolder, events: EventStream) -> None:
    """Write a quick report of a run that has just ended; problems while writing are only reported."""
    try:
        write_report(folder, extent=AFTER_RUN)
    except Exception as error:  # a problem with the page must not change the result of the run
        events.emit(Notice(f"The report of the run was not written: {error}", level="warning"))


def write_comparison(
    before: str | os.PathLike[str] | RunFolder,
    after: str | os.PathLike[str] | RunFolder,
    *,
    to: str | os.PathLike[str],
    record_before: str | os.PathLike[str] | None = None,
    record_after: str | os.PathLike[str] | None = None,
) -> str:
    """Write a page that shows two runs side by side. Returns its path.

    Args:
        before: The output of a run.
        after: The output of a later one.
        to: Path of the page.
        record_before: Path of the first run's record, if not beside the output.
        record_after: The same for the second.

    Raises:
        InputNotFoundError: A folder is not the output of a run.
        OutputError: The page cannot be written.
    """
    from gristmill.report.comparison import compare_runs

    folders = [
        output if isinstance(output, RunFolder) else RunFolder(output, record_path=record)
        for output, record in ((before, record_before), (after, record_after))
    ]
    for folder in folders:
        folder.require_run()
    return _write(folders[1], make_page(compare_runs(*folders)), os.fspath(to))


def _write(folder: RunFolder, page: bytes, place: str) -> str:
    try:
        write_bytes_atomic(place, page, storage_options=None if is_local(place) else folder.storage_options)
    except OSError as error:
        raise OutputError(
            f"The report cannot be written to {place}: {error} Choose another path with --to FILE (to=…).", path=place
        ) from error
    return place


def make_page(data: Mapping[str, Any]) -> bytes:
    """The page that shows these data."""
    title = (
        "Comparison of two runs" if data["kind"] == "comparison" else f"Report: {data['run'].get('pipeline') or 'run'}"
    )
    return fill_page("report", title, _summary(data), data)


def fill_page(kind: str, title: str, summary: str, data: Mapping[str, Any]) -> bytes:
    """A page with the style and the script of its kind, its data, and a summary for readers without JavaScript."""
    files = (THEME, ASSETS / f"{kind}.css", ASSETS / f"{kind}.js", ASSETS / "report.html")
    theme, style, script, frame = map(partial(Path.read_text, encoding="utf-8"), files)
    style = theme + style
    # Only this style and this script may run, and nothing may be loaded.
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy),
        "title": html.escape(title),
        "summary": html.escape(summary),
        "style": style,
        "data": _island(data),
        "script": script,
    }
    for name, text in parts.items():
        frame = frame.replace(f"<!--{name}-->", text)
    return with_checksum(frame.encode("utf-8", "replace"))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _summary(data: Mapping[str, Any]) -> str:
    """What a reader without JavaScript sees."""
    if data["kind"] == "comparison":
        return " ".join(_numbers(run["run"]) for run in data["runs"])
    return _numbers(data["run"])


def _numbers(run: Mapping[str, Any]) -> str:
    counts = [f"{run.get(f'rows_{name}') or 0:,}" for name in ("read", "written", "dropped", "quarantined")]
    return (
        f"{run.get('pipeline') or 'The run'} ({run.get('status') or 'unknown'}): {counts[0]} documents read, "
        f"{counts[1]} kept, {counts[2]} dropped, {counts[3]} quarantined."
    )


def _island(data: Mapping[str, Any]) -> str:
    """The data as JSON that no HTML parser takes for a tag; numbers that JSON does not have become null."""
    try:
        text = orjson.dumps(data).decode()
    except TypeError:  # half characters (lone surrogates), which only the slower writer knows
        text = json.dumps(json.loads(json.dumps(data), parse_constant=lambda _: None))
    return text.replace("<", "\\u003c")
