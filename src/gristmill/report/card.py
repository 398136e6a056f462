"""Writes dataset cards: a README.md that Hugging Face's `datasets` understands, made from the record of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from gristmill.errors import NotSupportedError, OutputExistsError
from gristmill.figures import format_size, plural, printable
from gristmill.figures import share as as_share
from gristmill.ledger.record.dataset_record import read_dataset_record
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import FileEntry, Manifest
from gristmill.ledger.record.run_record import read_run
from gristmill.report.croissant import licenses_of
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import FORMATS, format_of

CARD = "README.md"
_MARK = "<!-- made by gristmill card -->"
_SIZES = (
    (10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"),
    (10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"),
)  # fmt: skip
"""The hub's size categories."""
_READABLE = ("jsonl", "parquet", "csv", "arrow")
_LICENSES = 10
"""Maximum number of licences to name per source."""


def write_card(
    output: str | os.PathLike[str],
    *,
    split: str = "train",
    name: str | None = None,
    replace: bool = False,
    record_path: str | os.PathLike[str] | None = None,
    storage_options: StorageOptions = None,
) -> str:
    """Write a dataset card into an output folder. Returns its path.

    Args:
        output: The output of a run, a folder.
        split: Name of the split.
        name: The title; defaults to the name of the folder.
        replace: Overwrite a README.md that this function did not write.
        record_path: Path of the run's record, if not beside the output.
        storage_options: Passed to fsspec for URLs.

    Raises:
        InputNotFoundError: The folder is not the output of a run.
        NotSupportedError: The output is a single file, empty, or in a format that `datasets` does not read.
        OutputExistsError: There is a README.md from another source.

    Example:
        >>> write_card("clean/")  # doctest: +SKIP
        'clean/README.md'
    """
    folder = RunFolder(output, storage_options, record_path=record_path)
    folder.require_run()
    files = [file for entry in Manifest(folder).scan() for file in entry.files]
    kinds = {format_of(file.path) for file in files}
    if folder.ending is not None or len(kinds) != 1 or not kinds <= set(_READABLE):
        what = "is a single file" if folder.ending is not None else "holds no file" if not files else "is not one"
        raise NotSupportedError(
            f"A card describes a folder of JSONL, Parquet, CSV or Arrow files, but {folder.path} {what}."
        )
    place = folder.join(CARD)
    if not replace and folder.exists(place) and _MARK not in folder.read(place).decode("utf-8", "replace"):
        raise OutputExistsError(
            f"{place} exists and was not written by gristmill. Move it away, or replace it with --replace.", path=place
        )
    run = read_run(folder) or {}
    recipe = folder.record_path("recipe")
    text = folder.read(recipe).decode("utf-8", "replace") if folder.exists(recipe) else ""
    title = name or folder.path.rstrip("/").rpartition("/")[2]
    record = read_dataset_record(folder) or {}
    folder.write(place, make_card(run, files, title=title, split=split, recipe=text, record=record).encode())
    return place


def make_card(
    run: dict[str, Any],
    files: Sequence[FileEntry],
    *,
    title: str,
    split: str,
    recipe: str = "",
    record: Mapping[str, Any] | None = None,
) -> str:
    """The text of a card: a header for programs, and what was kept and dropped for people."""
    rows = sum(file.rows or 0 for file in files)
    size = sum(file.size for file in files)
    kind = format_of(files[0].path) or "jsonl"
    low = files[0].path.lower()
    ending = low[max(low.rfind(ending) for ending in FORMATS[kind].extensions) :]
    header: dict[str, Any] = {
        "pretty_name": title,
        "size_categories": [next((label for limit, label in _SIZES if rows < limit), "n>10B")],
        "configs": [{"config_name": "default", "data_files": [{"split": split, "path": f"*{ending}"}]}],
        "dataset_info": {
            "splits": [{"name": split, "num_bytes": size, "num_examples": rows}],
            "download_size": size,
            "dataset_size": size,
        },
    }
    record = record or {}
    if record.get("splits"):  # the splits of a shuffle or mixture
        header["configs"][0]["data_files"] = [{"split": one, "path": f"{one}-*{ending}"} for one in record["splits"]]
        header["dataset_info"]["splits"] = [
            {"name": one, "num_bytes": facts["bytes"], "num_examples": facts["documents"]}
            for one, facts in record["splits"].items()
        ]
    licenses = sorted({one for source in record.get("sources", []) for one in licenses_of(source)})
    if licenses:
        header["license"] = "other" if len(licenses) > 1 else licenses[0].lower()
    read, dropped, held = (run.get(key) or 0 for key in ("rows_read", "rows_dropped", "rows_quarantined"))
    held_files = f"{plural(rows, 'document')} in {plural(len(files), 'file')} ({format_size(size)})"
    made_by = f"made by Gristmill {_plain(run.get('version', ''))} with the pipeline {_plain(run.get('pipeline', ''))}"
    kept = f"Of {plural(read, 'document')} that were read, {rows:,} were kept, {dropped:,} dropped"
    lines = ["---", yaml.safe_dump(header, sort_keys=False, allow_unicode=True).rstrip(), "---", _MARK, ""]
    lines += [f"# {_plain(title)}", "", f"{held_files}, {made_by}.", ""]
    lines += [f"{kept} and {held:,} could not be processed.", ""]
    table = [
        (stage["stage"], reason, count, stage["rows_in"] or read, outcome)
        for stage in run.get("stages", [])
        for outcome in ("dropped", "quarantined")
        for reason, count in stage[outcome].items()
        if count
    ]
    if table:
        lines += ["## What was dropped, and why", "", "| stage | reason | documents | share of its input |"]
        lines.append("|---|---|--:|--:|")
        for stage, reason, count, came, outcome in table:
            why = reason if outcome == "dropped" else f"quarantined: {reason}"
            lines.append(f"| {_plain(stage)} | {_plain(why)} | {count:,} | {as_share(count / came if came else 0)} |")
        lines.append("")
    lines += _sources(record)
    if recipe:
        fence = "`" * max(3, 1 + max((len(run) for run in _ticks(recipe)), default=0))
        lines += ["## Recipe", "", f"{fence}yaml", recipe.rstrip(), fence, ""]
    return "\n".join(lines)


def _sources(record: Mapping[str, Any]) -> list[str]:
    """The sources of a shuffle or mixture."""
    if not record.get("sources"):
        return []
    lines = [
        "## Sources",
        "",
        "| source | documents | bytes | tokens | epochs | licences |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for source in record["sources"]:
        tokens = "" if source.get("tokens") is None else f"{source['tokens']:,}"
        epochs = f"{source['epochs']:.3g}" if "epochs" in source else "1"
        found = ", ".join(map(_plain, licenses_of(source)[:_LICENSES])) or "unknown"
        size = format_size(source["bytes"])
        lines.append(f"| {_plain(source['name'])} | {source['documents']:,} | {size} | {tokens} | {epochs} | {found} |")
    return [*lines, "", *(f"- {_plain(note)}" for note in record.get("notes", [])), ""]


def _plain(text: Any) -> str:
    """Text that Markdown shows unchanged, on one line."""
    shown = printable(" ".join(str(text).split()))
    return "".join(f"\\{sign}" if sign in "\\`*_{}[]<>#|!" else sign for sign in shown)


def _ticks(text: str) -> list[str]:
    return [part for part in "".join(sign if sign == "`" else " " for sign in text).split(" ") if part]
