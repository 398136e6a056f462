"""A folder with input and a recipe to attack, and what a run made of each of its files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import Manifest
from gristmill.ledger.record.quarantine import read_quarantine
from tests.hostile.commands import Answer, Commands

MB = 10**6
GOOD = b'{"id":"good","text":"Some words of a good text."}\n'
RECIPE = """name: mine
stages:
- {0}Reader: {{file_paths: in}}
- WordCountFilter: {{min_words: 3}}
- {0}Writer: {{path: out}}
"""
RUN = ("run", "r.yaml", "--workers", "0", "--error-budget", "none")


class Fate(NamedTuple):
    """What happened to the records of a file."""

    kept: int
    dropped: int
    quarantined: dict[str, int]
    lost: int = 0


def lay_out(folder: Path, files: dict[str, bytes], *, format: str = "Jsonl") -> Path:
    """Make the folder with these input files and a recipe for them."""
    (folder / "in").mkdir(parents=True)
    (folder / "r.yaml").write_text(RECIPE.format(format))
    for name, content in files.items():
        with open(os.path.join(folder, "in", name), "wb") as file:
            file.write(content)
    return folder


def fates(folder: Path) -> dict[str, Fate]:
    """What happened to each file, from the record of the run; every row must be explained."""
    output = RunFolder(folder / "out")
    found: dict[str, Fate] = {}
    causes: dict[str, dict[str, int]] = {}
    for item in read_quarantine(output):
        counts = causes.setdefault(item.partition, {})
        counts[item.record.cause] = counts.get(item.record.cause, 0) + 1
        assert item.record.file
        assert item.record.raw or item.record.detail
    for entry in Manifest(output).ordered():
        assert entry.rows_read == entry.rows_written + entry.rows_dropped + entry.quarantined
        for part in entry.source:
            held = causes.get(entry.partition, {})
            assert sum(held.values()) == entry.quarantined
            before = found.get(part["relative"], Fate(0, 0, {}))  # a large file is cut into several partitions
            found[part["relative"]] = Fate(
                before.kept + entry.rows_written,
                before.dropped + entry.rows_dropped,
                {
                    cause: before.quarantined.get(cause, 0) + held.get(cause, 0)
                    for cause in {**before.quarantined, **held}
                },
                before.lost + entry.lost,
            )
    return found


def run_and_verify(run: Commands, folder: Path, *, peak: int = 400 * MB, seconds: float = 300.0) -> Answer:
    """Run the recipe within this much memory; where it ends well, its output agrees with its record."""
    answer = run(folder, *RUN, seconds=seconds)
    assert answer.held(peak), answer
    if answer.code in (0, 3):
        proof = run(folder, "verify", "out", "--json")
        assert proof.held(peak), proof
        assert json.loads(proof.said)["problems"] == [], proof
    else:
        errors = [line for line in answer.said.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1, answer
    return answer
