"""What a run leaves: the files of an output and those of its record beside it."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path


def record_of(output: Path) -> Path:
    """The record of an output."""
    return output.with_name(f"{output.name}.gristmill")


def files_of(output: Path) -> dict[str, Path]:
    """Every file of an output by its name, and those of its record by theirs, below `record/`."""
    found = {path.relative_to(output).as_posix(): path for path in output.rglob("*") if path.is_file()}
    record = record_of(output)
    found |= {f"record/{path.relative_to(record).as_posix()}": path for path in record.rglob("*") if path.is_file()}
    return dict(sorted(found.items()))


def contents_of(output: Path, *, without: Collection[str] = ("run.json", "report.html")) -> dict[str, bytes]:
    """The bytes of these files, but those of such names; `run.json` and the report hold times."""
    return {name: path.read_bytes() for name, path in files_of(output).items() if path.name not in without}


def copy_output(output: Path, target: Path) -> Path:
    """A copy of an output with its record."""
    shutil.copytree(output, target)
    shutil.copytree(record_of(output), record_of(target))
    return target
