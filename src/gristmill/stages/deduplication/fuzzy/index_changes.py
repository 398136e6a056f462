"""Changes to a whole index: removing a source, and merging two indexes.

Both compare the remaining documents again, from their bands and shingles: a removed document may have been the link
between others. The index does not change until everything is done; then `index.json` is replaced.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError, did_you_mean
from gristmill.stages.deduplication.fuzzy.candidates import BandGroups
from gristmill.stages.deduplication.fuzzy.clusters import Clusters, VerifiedPairs
from gristmill.stages.deduplication.fuzzy.index import PARTS, FuzzyIndex
from gristmill.stages.deduplication.key_ranges import document_cuts, hash_cuts, range_count
from gristmill.stages.deduplication.sorted_runs import RunFile, RunFiles, column, open_run, sorted_by_key, write_run
from gristmill.stages.deduplication.source import first_key

_PAIR_RANGE_BYTES = 4 << 20


def forget_source(path: str, name: str) -> FuzzyIndex:
    """Remove a source from an index, as if its documents had never been added.

    Raises:
        UsageError: There is no such source.
    """
    index = FuzzyIndex.load(path)
    known = [source["name"] for source in index.sources if not source.get("forgotten")]
    if name not in known:
        raise UsageError(
            f"The index {path} has no source {name!r} (found: "
            f"{', '.join(map(repr, known)) or 'none'}).{did_you_mean(name, known)}"
        )
    # The numbers of its partitions stay in use: documents are identified by them.
    nothing: dict[str, Any] = {"files": {part: [] for part in PARTS}, "forgotten": True}
    sources = [{**source, **(nothing if source["name"] == name else {})} for source in index.sources]
    return _rebuilt(index, sources, {})


def merge_indices(path: str, other: str) -> FuzzyIndex:
    """Add the sources of another index to an index, as if they had been added after its own.

    Raises:
        UsageError: The two have different settings, or hold the same documents.
    """
    index, added = FuzzyIndex.load(path), FuzzyIndex.load(other)
    if Path(index.path).resolve() == Path(added.path).resolve():
        raise UsageError(f"{path} and {other} are the same index.")
    if index.settings != added.settings:
        raise UsageError(
            f"{path} was made with {index.settings}, {other} with {added.settings}: the settings must be equal."
        )
    both = {one["fingerprint"] for one in index.sources} & {one["fingerprint"] for one in added.sources}
    if both:
        names = [one["name"] for one in added.sources if one["fingerprint"] in both]
        raise UsageError(
            f"Both indexes hold the documents of {', '.join(map(repr, names))}: remove them from one first."
        )
    shift = np.uint64(first_key(len(index.partitions)))
    sources, files = list(index.sources), {}
    names_taken = {one["name"] for one in sources}
    for source in added.sources:
        name, number = source["name"], 1
        while name in names_taken:
            number += 1
            name = f"{source['name']}-{number}"
        names_taken.add(name)
        sources.append({**source, "name": name, "files": {part: [] for part in PARTS}})
        one = FuzzyIndex(added.path, {**added.record, "sources": [source]})
        files[len(sources) - 1] = {part: _shifted(one.runs(part), shift) for part in ("bands", "shingles")}
    return _rebuilt(index, sources, files)


def _shifted(runs: RunFiles, shift: np.uint64) -> Iterable[pa.Table]:
    for file in runs.files:
        table = open_run(file.path)
        place = table.schema.get_field_index("document")
        yield table.set_column(place, "document", pa.array(column(table, "document") + shift))


def _rebuilt(
    index: FuzzyIndex, sources: list[dict[str, Any]], new: dict[int, dict[str, Iterable[pa.Table]]]
) -> FuzzyIndex:
    """Compare all documents of `sources` again and make the result the index."""
    settings = index.settings
    with tempfile.TemporaryDirectory(dir=index.path, prefix=".work-") as folder:
        written = {
            number: {part: _write(tables, f"{folder}/{number:05d}-{part}") for part, tables in parts.items()}
            for number, parts in new.items()
        }

        def everything(part: str) -> RunFiles:
            files: list[RunFile] = []
            for number, source in enumerate(sources):
                one = FuzzyIndex(index.path, {**index.record, "sources": [source]})
                files += (written[number][part] if number in written else one.runs(part)).files
            return RunFiles(tuple(files))

        bands, documents = everything("bands"), everything("shingles")
        groups = BandGroups()
        groups.runs = bands
        cuts = hash_cuts(range_count(bands.size))
        candidates = _write(
            (table for cut in _ranges(cuts) for table in groups.rows_from(*cut)), f"{folder}/candidates"
        )
        comparing = VerifiedPairs(documents, "lists")
        comparing.runs = candidates
        cuts = document_cuts(candidates, range_count(candidates.size, _PAIR_RANGE_BYTES))
        pairs = _write((table for cut in _ranges(cuts) for table in comparing.rows_from(*cut)), f"{folder}/pairs")
        clusters = Clusters(documents, "lists", threshold=settings["threshold"], chains=settings["verify"] != "cluster")
        clusters.runs = pairs
        removed = _write(clusters.rows_from(0, 1 << 64), f"{folder}/removed")
        return index.replace(sources, written, pairs, removed)


def _ranges(cuts: list[int]) -> list[tuple[int, int]]:
    return list(pairwise(cuts))


def _write(tables: Iterable[pa.Table], stem: str) -> RunFiles:
    files = []
    for number, table in enumerate(tables):
        if table.num_rows:
            written = write_run(sorted_by_key(table), f"{stem}-{number:05d}.arrow")
            files.append(RunFile(written.path, written.size, written.hash))
    return RunFiles(tuple(files))
