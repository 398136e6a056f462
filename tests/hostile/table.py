"""The table of what was tried and what happened, from the reports of the tests themselves."""

from __future__ import annotations

import ast
import datetime as dt
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import gristmill

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent.parent / "docs" / "reference" / "hostile.md"
WHAT, TRIED = "what", "tried"
"""Properties of a test: the first line of its docstring; how many attacks it made, if not one."""


@dataclass
class Row:
    """One test function: what it tries, how often, how long, and how many of its cases failed."""

    what: str = ""
    tried: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0


@dataclass
class Table:
    """Rows by file and function, in the order of their first report."""

    rows: dict[tuple[str, str], Row] = field(default_factory=dict)

    def add(self, report: pytest.TestReport) -> None:
        """Count one phase of one case."""
        file, _, rest = report.nodeid.partition("::")
        row = self.rows.setdefault((Path(file).name, rest.partition("[")[0].rpartition("::")[2]), Row())
        row.seconds += report.duration
        if report.when == "setup":
            row.what = str(dict(report.user_properties).get(WHAT, ""))
        elif report.when == "call" and not report.skipped:
            # Properties are there from collection on; of `tried` a test may record several.
            tried = [int(str(value)) for name, value in report.user_properties if name == TRIED]
            row.tried += sum(tried) if tried else 1
        row.failed += report.failed
        row.skipped += report.skipped

    def missing(self, folder: Path) -> list[str]:
        """Test functions of the folder that no report came from: then the table would not be the whole."""
        return sorted(f"{file}::{name}" for file, name, _ in functions(folder) if (file, name) not in self.rows)

    def page(self, seconds: float) -> str:
        """The page for the documentation."""
        rows = self.rows.values()
        tried, failed = sum(row.tried for row in rows), sum(row.failed > 0 for row in rows)
        day = dt.datetime.now(dt.UTC).date()
        cores = len(os.sched_getaffinity(0))
        summary = (
            f"{day}, version {gristmill.__version__}, {cores} cores: {tried:,} attacks by {len(rows)} tests in "
            f"{seconds / 60:.0f} min, {f'{failed} tests failed' if failed else 'all passed'}."
        )
        lines = [
            "# Attacks and their results",
            "",
            "Written by `make test-hostile`; do not edit. [Safety](../explanation/safety.md) lists the promises.",
            "",
            summary,
        ]
        for file in sorted({file for file, _ in self.rows}):
            lines += [
                "",
                f"## `{file}`",
                "",
                "| attack: result | attacks | passed | seconds |",
                "|---|--:|---|--:|",
            ]
            for (_, name), row in sorted((key, row) for key, row in self.rows.items() if key[0] == file):
                lines.append(f"| {cell(row.what or name)} | {row.tried:,} | {verdict(row)} | {row.seconds:.1f} |")
        return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Text that stays in its cell."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def verdict(row: Row) -> str:
    """Whether all cases of a test passed."""
    if row.failed:
        return f"**no** ({row.failed} failed)"
    return f"not tried ({row.skipped})" if row.skipped and not row.tried else "yes"


def functions(folder: Path) -> Iterable[tuple[str, str, str]]:
    """File, name and first line of the docstring of every test function in a folder."""
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield path.name, node.name, first_line(ast.get_docstring(node))


def first_line(docstring: str | None) -> str:
    """What the table shows of a docstring."""
    return (docstring or "").strip().partition("\n")[0].rstrip(".")
