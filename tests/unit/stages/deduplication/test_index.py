"""Deduplication against an index that grows: the same survivors as a run over everything at once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gristmill.errors import InputError, OutputExistsError, UsageError
from gristmill.ledger.prove.verify import verify
from gristmill.stages.deduplication import FuzzyDeduplicationWorkflow
from gristmill.stages.deduplication.fuzzy.banding import Banding
from gristmill.stages.deduplication.fuzzy.index import FuzzyIndex
from gristmill.stages.deduplication.fuzzy.index_changes import forget_source, merge_indices
from gristmill.stages.deduplication.fuzzy.signatures import IndexWriter, MinHashes
from gristmill.stages.deduplication.sorted_runs import open_run
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.origins import Lineage
from tests.unit.pipeline.jobs import here, read_rows, write_lines

WORDS = [f"w{number}" for number in range(400)]


def corpus(seed: int, count: int) -> list[dict[str, Any]]:
    """Documents of which many are changed copies of earlier ones, also copies of copies."""
    rng = np.random.default_rng(seed)
    texts: list[list[str]] = []
    for _ in range(count):
        if texts and rng.random() < 0.6:
            words = list(texts[rng.integers(len(texts))])
            for place in rng.integers(len(words), size=rng.integers(0, 3)):
                words[place] = str(rng.choice(WORDS))
        else:
            words = [str(word) for word in rng.choice(WORDS, size=rng.integers(30, 60))]
        texts.append(words)
    return [{"id": f"d{number}", "text": " ".join(words)} for number, words in enumerate(texts)]


def run(folder: Path, source: str, output: str, *, fresh: bool = False, **options: Any) -> dict[str, Any]:
    workflow = FuzzyDeduplicationWorkflow(
        input_path=str(folder / source), output_path=str(folder / output), perform_removal=True, **options
    )
    return workflow.run(executor=here(), fresh=fresh, progress=False).metadata


def create(folder: Path, **options: Any) -> str:
    workflow = FuzzyDeduplicationWorkflow(output_path="x", **options)
    return FuzzyIndex.create(str(folder / "index"), workflow.index_settings()).path


def kept(folder: Path, output: str) -> set[str]:
    return {row["id"] for row in read_rows(folder / output)}


@pytest.mark.parametrize("verify_by", ["pairs", "cluster"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_snapshot_by_snapshot_is_the_same_as_all_at_once(tmp_path: Path, seed: int, verify_by: str) -> None:
    rows = corpus(seed, 150)
    parts = [rows[:60], rows[60:70], rows[70:120], rows[120:]]
    for number, part in enumerate(parts):
        for half in range(2):
            write_lines(tmp_path / f"s{number}" / f"part-{half}.jsonl", part[half * len(part) // 2 :][: len(part) // 2])
            write_lines(
                tmp_path / "all" / f"s{number}" / f"part-{half}.jsonl", part[half * len(part) // 2 :][: len(part) // 2]
            )
    run(tmp_path, "all", "whole", verify=verify_by)
    index = create(tmp_path, verify=verify_by)
    survivors: set[str] = set()
    for number in range(len(parts)):
        facts = run(tmp_path, f"s{number}", f"o{number}", against=index, verify=verify_by)
        survivors = (survivors | kept(tmp_path, f"o{number}")) - set(facts["retracted"])
        assert verify(str(tmp_path / f"o{number}")).problems == []
    assert survivors == kept(tmp_path, "whole")
    assert len(survivors) < len(rows)
    assert [source["name"] for source in FuzzyIndex.load(index).sources] == ["s0", "s1", "s2", "s3"]


def test_a_document_between_two_kept_ones_takes_one_of_them_back(tmp_path: Path) -> None:
    words = WORDS[:44]
    left, right = words[:40], words[4:]
    middle = words[2:42]
    write_lines(
        tmp_path / "s0" / "a.jsonl", [{"id": "l", "text": " ".join(left)}, {"id": "r", "text": " ".join(right)}]
    )
    write_lines(tmp_path / "s1" / "a.jsonl", [{"id": "m", "text": " ".join(middle)}])
    index = create(tmp_path, threshold=0.85)
    assert run(tmp_path, "s0", "o0", against=index, threshold=0.85)["num_removed"] == 0
    facts = run(tmp_path, "s1", "o1", against=index, threshold=0.85)
    assert (facts["num_removed"], facts["num_retracted"], facts["retracted"]) == (1, 1, ["r"])


def test_the_same_run_again_changes_nothing(tmp_path: Path) -> None:
    write_lines(tmp_path / "s0" / "a.jsonl", corpus(4, 20))
    index = create(tmp_path)
    run(tmp_path, "s0", "o0", against=index)
    before = (Path(index) / "index.json").read_bytes()
    again = run(tmp_path, "s0", "o0", against=index)
    assert (Path(index) / "index.json").read_bytes() == before
    assert again["num_duplicates"] > 0
    with pytest.raises(UsageError, match="already holds these documents"):
        run(tmp_path, "s0", "o1", against=index)


def test_a_changed_index_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "s0" / "a.jsonl", corpus(4, 20))
    write_lines(tmp_path / "s1" / "a.jsonl", corpus(5, 20))
    index = create(tmp_path)
    run(tmp_path, "s0", "o0", against=index)
    file = next(Path(index).glob("*shingles*"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()
    file.write_bytes(data)
    with pytest.raises(InputError, match="changed or damaged"):
        run(tmp_path, "s1", "o1", against=index)
    file.unlink()
    with pytest.raises(InputError, match="is missing"):
        run(tmp_path, "s1", "o1", against=index)
    record = json.loads((Path(index) / "index.json").read_text())
    record["settings"]["threshold"] = 0.5
    (Path(index) / "index.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="does not match its checksum"):
        run(tmp_path, "s1", "o1", against=index)


def test_only_files_that_were_touched_are_read_again(tmp_path: Path) -> None:
    write_lines(tmp_path / "s0" / "a.jsonl", corpus(4, 20))
    index = create(tmp_path)
    run(tmp_path, "s0", "o0", against=index)
    file = next(Path(index).glob("*shingles*"))
    before = file.stat()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    FuzzyIndex.load(index, check="touched")
    with pytest.raises(InputError, match="changed or damaged"):
        FuzzyIndex.load(index)
    data[len(data) // 2] ^= 1
    file.write_bytes(data)  # as it was, at another time
    assert FuzzyIndex.load(index, check="touched").sources == FuzzyIndex.load(index).sources


def test_an_index_that_is_damaged_during_a_run_gets_no_source(tmp_path: Path) -> None:
    write_lines(tmp_path / "s0" / "a.jsonl", corpus(4, 20))
    index = create(tmp_path)
    run(tmp_path, "s0", "o0", against=index)
    before = FuzzyIndex.load(index, check="touched")
    file = next(Path(index).glob("*pairs*"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="changed or damaged"):
        before.add("s1", fingerprint="x", output="o1", partitions=[], parts={}, removed=before.removed)


def test_pieces_of_a_partition_become_one_file_of_each_kind(tmp_path: Path) -> None:
    rows = [{"id": f"d{number}", "text": f"one two three four five six {number}"} for number in range(6)]
    stage = MinHashes("text", banding=Banding(4, 2), keep_shingles=True, id_field="id")
    writer = IndexWriter(str(tmp_path))
    pieces = []
    for number in range(2):
        batch = DocumentBatch.from_columns(TableColumns(pa.Table.from_pylist(rows[number::2])), rows=np.arange(3))
        batch._lineage = Lineage(0, "a")
        part = writer.open_part(str(tmp_path / f"piece-{number}.arrow"))
        part.append(writer.encode(stage.process(batch)), rows=3)
        pieces += part.close()
    whole = writer.concatenate(pieces, str(tmp_path / "whole.arrow"))
    assert [(Path(one.path).name, one.rows) for one in whole] == [("whole.bands.arrow", 6), ("whole.shingles.arrow", 0)]
    bands, shingles = (open_run(one.path) for one in whole)
    assert (bands.num_rows, shingles.num_rows) == (24, 6)
    assert bands.column("hash").to_pylist() == sorted(bands.column("hash").to_pylist())
    assert {len(one) for one in shingles.column("shingles").to_pylist()} == {3}


def test_what_does_not_fit_the_index_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "s0" / "a.jsonl", corpus(4, 20))
    index = create(tmp_path)
    with pytest.raises(UsageError, match=r"was made with threshold=0\.8 \(here 0\.7\)"):
        run(tmp_path, "s0", "o0", against=index, threshold=0.7, num_bands=20, minhashes_per_band=7)
    with pytest.raises(UsageError, match="the first document in source order is kept"):
        run(tmp_path, "s0", "o0", against=index, survivor="longest")
    with pytest.raises(OutputExistsError):
        create(tmp_path)


def gone_in(index: str) -> set[str]:
    removed = FuzzyIndex.load(index).removed
    return {name for file in removed.files for name in open_run(file.path).column("id").to_pylist()}


def test_forgetting_a_source_leaves_what_the_others_would_have_made(tmp_path: Path) -> None:
    rows = corpus(7, 90)
    for number in range(3):
        write_lines(tmp_path / f"s{number}" / "a.jsonl", rows[number * 30 :][:30])
        if number != 0:
            write_lines(tmp_path / "all" / f"s{number}" / "a.jsonl", rows[number * 30 :][:30])
    run(tmp_path, "all", "whole")
    index = create(tmp_path)
    for number in range(3):
        run(tmp_path, f"s{number}", f"o{number}", against=index)
    left = forget_source(index, "s0")
    assert {row["id"] for row in rows[30:]} - gone_in(index) == kept(tmp_path, "whole")
    assert sorted(Path(index).glob("00000-*")) == []
    with pytest.raises(UsageError, match=r"no source 's9' \(found: 's1', 's2'\)"):
        forget_source(left.path, "s9")
    run(tmp_path, "s0", "again", against=index)
    assert [one["name"] for one in FuzzyIndex.load(index).sources if not one.get("forgotten")] == ["s1", "s2", "s0-2"]


def test_merged_indices_know_what_both_knew(tmp_path: Path) -> None:
    rows = corpus(8, 90)
    for number in range(3):
        write_lines(tmp_path / f"s{number}" / "a.jsonl", rows[number * 30 :][:30])
        write_lines(tmp_path / "all" / f"s{number}" / "a.jsonl", rows[number * 30 :][:30])
    run(tmp_path, "all", "whole")
    first = create(tmp_path)
    second = create(tmp_path / "second")
    run(tmp_path, "s0", "o0", against=first)
    run(tmp_path, "s1", "o1", against=second)
    with pytest.raises(UsageError, match="same index"):
        merge_indices(first, first)
    merge_indices(first, second)
    run(tmp_path, "s2", "o2", against=first)
    assert {row["id"] for row in rows} - gone_in(first) == kept(tmp_path, "whole")
    with pytest.raises(UsageError, match="Both indexes hold the documents of 's1'"):
        merge_indices(first, second)
