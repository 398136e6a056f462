"""Reading and writing documents in whatever format they are: formats, samples and limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import ResumeError, UsageError
from gristmill.ledger.ask.diff import compare_ledgers
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.deduplication import ExactDeduplication
from gristmill.stages.text.io import DocumentReader, DocumentWriter, JsonlReader, JsonlWriter, ParquetReader

DOCUMENTS = [{"id": f"{number:04}", "text": f"Text {number}."} for number in range(900)]
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
IDS = [document["id"] for document in DOCUMENTS]


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    folder = tmp_path / "jsonl"
    folder.mkdir()
    for part in range(3):
        lines = (json.dumps(document) + "\n" for document in DOCUMENTS[part * 300 : part * 300 + 300])
        (folder / f"{part}.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    folder = tmp_path / "parquet"
    folder.mkdir()
    for part in range(3):
        table = pa.Table.from_pylist(DOCUMENTS[part * 300 : part * 300 + 300])
        pq.write_table(table, folder / f"{part}.parquet", row_group_size=70)
    return folder


def run(*stages: Any, workers: int = 0) -> Any:
    return Pipeline("documents", stages=stages).run(LocalExecutor({"num_cpus": workers})).report


def written(output: Path) -> list[dict[str, Any]]:
    """The documents of an output, whatever their format."""
    found: list[dict[str, Any]] = []
    for path in sorted(path for path in output.iterdir() if path.is_file()):
        if path.suffix == ".parquet":
            found += pq.read_table(path).to_pylist()
        else:
            with fsspec.open(str(path), compression=COMPRESSIONS.get(path.suffix)) as file:
                data = file.read()
            found += [json.loads(line) for line in data.splitlines()]
    return found


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_the_format_of_the_input_is_that_of_the_output(kind: str, tmp_path: Path, request: Any) -> None:
    run(DocumentReader(request.getfixturevalue(kind)), DocumentWriter(str(tmp_path / "out")))
    assert written(tmp_path / "out") == DOCUMENTS
    names = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_file())
    assert names == [f"{part}.{kind}" for part in range(3)]


@pytest.mark.parametrize(("kind", "other"), [("jsonl", "parquet"), ("parquet", "jsonl")])
def test_another_format(kind: str, other: Any, tmp_path: Path, request: Any) -> None:
    run(DocumentReader(request.getfixturevalue(kind)), DocumentWriter(str(tmp_path / "out"), other))
    assert written(tmp_path / "out") == DOCUMENTS
    assert {path.suffix for path in (tmp_path / "out").iterdir() if path.is_file()} == {f".{other}"}


def test_formats_are_chosen_where_there_are_two(jsonl: Path, parquet: Path, tmp_path: Path) -> None:
    both = [jsonl, parquet / "0.parquet"]
    with pytest.raises(UsageError) as caught:
        run(DocumentReader(both), DocumentWriter(str(tmp_path / "out")))
    for part in ("JSONL", "Parquet", "0.parquet", "--input-filetype jsonl", "--input-filetype parquet"):
        assert part in str(caught.value)
    for path in parquet.iterdir():
        path.rename(jsonl / path.name)
    for kind in ("jsonl", "parquet"):
        run(DocumentReader(jsonl, kind), DocumentWriter(str(tmp_path / f"only-{kind}")))  # type: ignore[arg-type]
        assert written(tmp_path / f"only-{kind}") == DOCUMENTS


def test_a_description_beside_the_data_is_not_another_format(parquet: Path, tmp_path: Path) -> None:
    (parquet / "dataset_info.json").write_text('{\n  "features": {},\n  "splits": {}\n}\n')
    report = run(DocumentReader(parquet), DocumentWriter(str(tmp_path / "out")))
    assert written(tmp_path / "out") == DOCUMENTS
    assert "dataset_info.json" in str(report)


@pytest.mark.parametrize(
    ("kind", "compression", "ending"),
    [
        ("jsonl", None, ".jsonl"),
        ("jsonl", "gz", ".jsonl.gz"),
        ("jsonl", "zst", ".jsonl.zst"),
        ("jsonl", "none", ".jsonl"),
        ("parquet", None, ".parquet"),
        ("parquet", "gz", ".parquet"),
        ("parquet", "none", ".parquet"),
    ],
)
def test_one_word_for_the_compression_of_both(
    kind: Any, compression: str | None, ending: str, jsonl: Path, tmp_path: Path
) -> None:
    run(DocumentReader(jsonl), DocumentWriter(str(tmp_path / "out"), kind, compression=compression))
    assert written(tmp_path / "out") == DOCUMENTS
    paths = [path for path in (tmp_path / "out").iterdir() if path.is_file()]
    assert all(path.name.endswith(ending) for path in paths)
    if kind == "parquet":
        codec = pq.read_metadata(paths[0]).row_group(0).column(0).compression
        assert codec == {None: "ZSTD", "gz": "GZIP", "none": "UNCOMPRESSED"}[compression]


def test_a_file_name_as_output_tells_its_format(jsonl: Path, parquet: Path, tmp_path: Path) -> None:
    run(DocumentReader(parquet / "0.parquet"), DocumentWriter(str(tmp_path / "clean.jsonl.gz")))
    found = [path for path in tmp_path.rglob("*.jsonl.gz") if path.is_file()]
    assert len(found) == 1
    with pytest.raises(UsageError, match="compression='snappy'"):
        DocumentWriter(str(tmp_path / "clean.jsonl"), compression="snappy")


def test_only_known_formats() -> None:
    for made in (DocumentReader, DocumentWriter):
        with pytest.raises(UsageError, match=r"'xls': must be (one of )?'jsonl'.* 'parquet'"):
            made("a", "xls")  # type: ignore[arg-type]


def test_building_a_pipeline_looks_at_nothing(tmp_path: Path) -> None:
    pipeline = Pipeline("p", stages=[DocumentReader(tmp_path / "missing"), DocumentWriter("out")])
    assert "document_reader" in pipeline.describe()


def test_files_that_come_between_two_runs_are_seen(jsonl: Path, tmp_path: Path) -> None:
    pipeline = Pipeline("p", stages=[DocumentReader(jsonl), DocumentWriter(str(tmp_path / "out"))])
    pipeline.run(LocalExecutor({"num_cpus": 0}))
    (jsonl / "3.jsonl").write_text('{"id": "new", "text": "x"}\n')
    pipeline.run(LocalExecutor({"num_cpus": 0}))
    assert len(written(tmp_path / "out")) == 901


# --- a part of the input ---


@pytest.mark.parametrize("options", [{"max_documents": 400}, {"sample": 0.2}, {"sample": 0.5, "max_documents": 200}])
def test_every_format_and_any_number_of_workers_select_the_same(
    options: dict[str, Any], jsonl: Path, parquet: Path, tmp_path: Path
) -> None:
    found: list[list[dict[str, Any]]] = []
    for name, source in (("jsonl", JsonlReader(jsonl, **options)), ("parquet", ParquetReader(parquet, **options))):
        for workers in (0, 2):
            output = tmp_path / f"{name}{workers}"
            report = run(source, JsonlWriter(str(output)), workers=workers)
            found.append(written(output))
            assert report.rows_read == report.rows_written == len(found[-1])
            proof = verify(output)
            assert proof.ok, proof
    run(DocumentReader(jsonl, **options), DocumentWriter(str(tmp_path / "any")))
    found.append(written(tmp_path / "any"))
    assert all(one == found[0] for one in found)
    if "sample" not in options:
        assert found[0] == DOCUMENTS[:400]
    else:
        assert len(found[0]) == options.get("max_documents", len(found[0]))
        assert 100 < len(found[0]) < 500


def test_a_limit_is_a_part_of_the_plan(jsonl: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    run(DocumentReader(jsonl, max_documents=350), DocumentWriter(output))
    assert run(DocumentReader(jsonl, max_documents=350), DocumentWriter(output)).partitions_done_before == 2
    for other, told in (
        (DocumentReader(jsonl, max_documents=400), "max_documents changed from 350 to 400"),
        (DocumentReader(jsonl), "max_documents was removed \\(it was 350\\)"),
        (DocumentReader(jsonl, max_documents=350, sample=0.5), "parameter sample was added \\(0.5\\)"),
    ):
        with pytest.raises(ResumeError, match=told):
            run(other, DocumentWriter(output))


def test_a_reader_that_reads_all_has_the_plan_of_earlier_versions(jsonl: Path, tmp_path: Path) -> None:
    run(JsonlReader(jsonl), JsonlWriter(str(tmp_path / "out")))
    assert run(DocumentReader(jsonl), DocumentWriter(str(tmp_path / "out"))).partitions_done_before == 3


def test_split_files_and_groups_have_a_first_document_too(jsonl: Path, parquet: Path, tmp_path: Path) -> None:
    cuts: list[dict[str, Any]] = [{"blocksize": 4000}, {"files_per_partition": 2}]
    for number, cut in enumerate(cuts):
        for kind in (jsonl, parquet):
            output = tmp_path / f"{kind.name}{number}"
            run(DocumentReader(kind, max_documents=333, **cut), JsonlWriter(str(output)))
            assert sorted(document["id"] for document in written(output)) == IDS[:333]


def test_more_than_there_is(jsonl: Path, tmp_path: Path) -> None:
    assert run(DocumentReader(jsonl, max_documents=5000), DocumentWriter(str(tmp_path / "out"))).rows_read == 900


def test_the_ledger_knows_what_was_read(jsonl: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    report = run(DocumentReader(jsonl, sample=0.3, max_documents=150), DocumentWriter(str(output)))
    assert report.notes == (
        "This run reads only the first 150 documents of a sample of 0.3 of the documents (seed 0).",
    )
    kept = [document["id"] for document in written(output)]
    ledger = Ledger(output)
    for number, document in enumerate(DOCUMENTS[:300]):
        assert ledger.why(document["id"]).kept == ledger.why(f"0#{number}").kept == (document["id"] in kept)
    answer = str(ledger.why("nosuch"))
    assert "The run read only the first 150 documents of a sample of 0.3 of the documents (seed 0)." in answer
    documents = ledger.documents()
    assert [f"{int(part) * 300 + row:04}" for part, row in documents.select("partition", "row").iter_rows()] == kept

    run(DocumentReader(jsonl), DocumentWriter(str(tmp_path / "whole")))
    difference = compare_ledgers(ledger, Ledger(tmp_path / "whole"))
    assert (difference.same, difference.counts()) == (150, {"new": 750})
    assert set(difference.frame["id"].drop_nulls()) <= set(IDS) - set(kept)


def test_a_replay_reads_the_same_documents(jsonl: Path, tmp_path: Path) -> None:
    lines = (jsonl / "0.jsonl").read_text().splitlines()
    (jsonl / "0.jsonl").write_text("\n".join("broken" if number % 3 else line for number, line in enumerate(lines)))
    stages = [DocumentReader(jsonl, sample=0.5, max_documents=300), DocumentWriter(str(tmp_path / "out"))]
    pipeline = Pipeline("p", stages=stages)
    first = pipeline.run(LocalExecutor({"num_cpus": 0}), error_budget=None).report
    assert first.rows_read == 300
    before = written(tmp_path / "out")
    replayed = pipeline.replay(LocalExecutor({"num_cpus": 0}))
    assert (replayed.records, replayed.still_quarantined) == (first.quarantined, first.quarantined)
    assert written(tmp_path / "out") == before
    assert verify(tmp_path / "out").ok


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_deduplication_between_keeps_format_and_selection(kind: str, tmp_path: Path, request: Any) -> None:
    output = tmp_path / "out"
    stages = (ExactDeduplication(), DocumentWriter(str(output)))
    report = run(DocumentReader(request.getfixturevalue(kind), sample=0.5, max_documents=200), *stages)
    assert (report.rows_read, report.rows_written) == (200, 200)
    assert {path.suffix for path in output.iterdir()} == {f".{kind}"}
    assert len(written(output)) == 200
    proof = verify(output)
    assert proof.ok, proof
