"""Small files of a partition are read as one batch; where each record comes from stays known."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.errors import StageFailedError
from gristmill.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.quarantine import read_quarantine
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.deduplication import ExactDeduplicationWorkflow
from gristmill.stages.resources import Resources
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetReader
from gristmill.tasks import DocumentBatch
from tests.unit.pipeline.jobs import here, read_lines, write_lines

FILES, ROWS = 60, 4


class Sizes(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds the number of documents that it gets at once; fails on some ids."""

    name = "sizes"

    def __init__(self, fails_on: Sequence[str] = ()) -> None:
        self.fails_on = list(fails_on)

    def process(self, task: DocumentBatch) -> DocumentBatch:
        ids = task.column("id").to_pylist()
        for name in self.fails_on:
            if name in ids:
                raise ValueError(name)
        return task.with_column("together", pa.array([task.num_items] * task.num_items))


def _files(folder: Path, *, name: str = "jsonl") -> list[dict[str, Any]]:
    rows = []
    for number in range(FILES):
        records = [{"id": f"{number}-{row}", "text": f"text {row} of file {number}"} for row in range(ROWS)]
        path = folder / "in" / f"{number:02d}.{name}"
        if name == "parquet":
            path.parent.mkdir(exist_ok=True)
            pq.write_table(pa.Table.from_pylist(records), path)
        else:
            write_lines(path, records)
        if name == "jsonl.gz":
            path.write_bytes(gzip.compress(path.read_bytes()))
        rows += records
    return rows


@pytest.mark.parametrize("name", ["jsonl", "jsonl.gz", "parquet"])
def test_small_files_are_one_batch(tmp_path: Path, name: str) -> None:
    rows = _files(tmp_path, name=name)
    kind = ParquetReader if name == "parquet" else JsonlReader
    for options, together in (({"files_per_partition": 60}, 240), ({"blocksize": "1MB"}, 240), ({}, 4)):
        out = tmp_path / f"out-{len(options)}-{together}-{'blocksize' in options}"
        pipeline = Pipeline("job", stages=[kind(str(tmp_path / "in"), **options), Sizes(), JsonlWriter(str(out))])
        pipeline.run(executor=here())
        found = [json.loads(line) for line in read_lines(out)]
        assert [{key: row[key] for key in ("id", "text")} for row in found] == rows
        assert {row["together"] for row in found} == {together}
        assert verify(str(out)).ok


def test_a_batch_is_not_larger_than_asked_for(tmp_path: Path) -> None:
    rows = _files(tmp_path)
    size = (tmp_path / "in" / "00.jsonl").stat().st_size
    reader = JsonlReader(str(tmp_path / "in"), files_per_partition=60, read_kwargs={"batch_bytes": 10 * size})
    Pipeline("job", stages=[reader, Sizes(), JsonlWriter(str(tmp_path / "out"))]).run(executor=here())
    found = [json.loads(line) for line in read_lines(tmp_path / "out")]
    assert [row["id"] for row in found] == [row["id"] for row in rows]
    assert 16 <= max(row["together"] for row in found) <= 40


def test_the_bytes_are_those_of_one_file_after_another(tmp_path: Path) -> None:
    odd = [
        b'{"id": 1,  "text": "a"}',
        b'\xef\xbb\xbf{"id": 2, "text": "b"}\r\n\r\n',
        b"",
        b'{"id": 3.0, "text": "c"}\n',
    ]
    (tmp_path / "in").mkdir()
    for number, data in enumerate(odd):
        (tmp_path / "in" / f"{number}.jsonl").write_bytes(data)
    reader = JsonlReader(str(tmp_path / "in"), files_per_partition=4)
    Pipeline("job", stages=[reader, JsonlWriter(str(tmp_path / "out"))]).run(executor=here())
    assert read_lines(tmp_path / "out") == [
        '{"id": 1,  "text": "a"}', '{"id": 2, "text": "b"}', '{"id": 3.0, "text": "c"}',
    ]  # fmt: skip


def test_every_record_is_known_by_its_file(tmp_path: Path) -> None:
    _files(tmp_path)
    with (tmp_path / "in" / "07.jsonl").open("a") as stream:
        stream.write('{"id": broken}\n')
    reader = JsonlReader(str(tmp_path / "in"), files_per_partition=60)
    pipeline = Pipeline("job", stages=[reader, Sizes(fails_on=["33-2"]), JsonlWriter(str(tmp_path / "out"))])
    with pytest.raises(StageFailedError, match=r"33\.jsonl") as caught:
        pipeline.run(executor=here())
    assert caught.value.facts["row"] == 33 * ROWS + 2 + 1
    pipeline.run(executor=here(), ignore_failures=True)
    held = {Path(item.record.file).name: item.record for item in read_quarantine(str(tmp_path / "out"))}
    assert set(held) == {"07.jsonl", "33.jsonl"}
    assert held["07.jsonl"].raw == b'{"id": broken}'
    data = (tmp_path / "in" / "07.jsonl").read_bytes()
    assert data[held["07.jsonl"].offset :] == b'{"id": broken}\n'
    assert held["07.jsonl"].row == 7 * ROWS + ROWS
    ledger = Ledger(str(tmp_path / "out"))
    assert ledger.why("33-2").status == "quarantined"
    assert ledger.why("33-3").documents[0].row == 33 * ROWS + 3 + 1


def test_the_preferred_source_is_that_of_each_row(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_lines(tmp_path / "in" / f"{name}.jsonl", [{"id": name, "text": "the same"}])
    ExactDeduplicationWorkflow(
        input_path=str(tmp_path / "in"),
        output_path=str(tmp_path / "out"),
        perform_removal=True,
        survivor="priority",
        source_priority=["b.jsonl"],
        input_blocksize="1MB",
    ).run(executor=here())
    assert [json.loads(line)["id"] for line in read_lines(tmp_path / "out")] == ["b"]


def test_planning_says_what_to_set_for_many_tiny_files(tmp_path: Path) -> None:
    _files(tmp_path)
    apart = Sizes().with_(resources=Resources(cpus=0.5))

    def plan(**options: Any) -> str:
        reader = JsonlReader(str(tmp_path / "in"), **options)
        return Pipeline("job", stages=[reader, apart, JsonlWriter(str(tmp_path / "out"))]).explain(here())

    assert "blocksize='128MB'" in plan()
    assert "blocksize='128MB'" not in plan(files_per_partition=60)
