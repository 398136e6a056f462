"""Shuffling: every document once, in an order that depends on the seed alone, in shards and splits as asked."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from gristmill.cli.main import cli
from gristmill.errors import InputChangedError, MissingColumnError, OutputExistsError, UsageError
from gristmill.ledger.prove.verify import verify
from gristmill.stages.deduplication.forecast import FreeSpace
from gristmill.stages.sharding import ShuffleWorkflow
from gristmill.stages.sharding.keys import LENGTH_CLASSES, length_classes
from tests.outputs import record_of
from tests.unit.stages.sharding.jobs import contents, lines_of, records, shuffle, write


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for name in ("a", "b"):
        rows = records(name, 150, cluster=lambda at: at % 20, license=lambda at: ["MIT", "CC0-1.0"][at % 2])
        write(folder, name, rows)
    return folder


@pytest.fixture(scope="module")
def shuffled(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("shuffled") / "out"
    shuffle(corpus, output, shard_documents=50, seed=3)
    return output


def source_lines(corpus: Path) -> list[str]:
    return [line for path in sorted(corpus.glob("*.jsonl")) for line in path.read_text().splitlines()]


def test_every_record_comes_out_once_with_its_bytes(corpus: Path, shuffled: Path) -> None:
    assert sorted(lines_of(shuffled)) == sorted(source_lines(corpus))
    assert verify(str(shuffled)).problems == []


def test_the_order_is_random(corpus: Path, shuffled: Path) -> None:
    place = {line: at for at, line in enumerate(source_lines(corpus))}
    order = [place[line] for line in lines_of(shuffled)]
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.2
    assert sum(after == before + 1 for before, after in pairwise(order)) < 10


def test_shards_hold_equal_numbers_of_documents(shuffled: Path) -> None:
    counts = [len(path.read_text().splitlines()) for path in sorted(shuffled.glob("*.jsonl"))]
    assert counts == [50] * 6
    assert min(path.name for path in shuffled.iterdir()) == "shard-00000-of-00006.jsonl"


def test_shards_hold_about_equal_bytes(corpus: Path, tmp_path: Path) -> None:
    shuffle(corpus, tmp_path / "out", shard_size=8000)
    sizes = [path.stat().st_size for path in (tmp_path / "out").iterdir()]
    longest = max(len(line) + 1 for line in source_lines(corpus))
    assert max(sizes) - min(sizes) <= 2 * longest
    assert max(sizes) <= 8000 + longest


def test_shards_hold_about_equal_tokens(corpus: Path, tmp_path: Path) -> None:
    facts = shuffle(corpus, tmp_path / "out", shard_tokens=1000, token_count_field="token_count")
    counts = [
        sum(json.loads(line)["token_count"] for line in path.read_text().splitlines())
        for path in (tmp_path / "out").iterdir()
    ]
    assert sum(counts) == facts["totals"]["tokens"]
    assert max(counts) <= 1000 + 34
    assert max(counts) - min(counts) <= 2 * 34


def test_another_seed_gives_another_order_of_the_same_documents(corpus: Path, shuffled: Path, tmp_path: Path) -> None:
    shuffle(corpus, tmp_path / "out", shard_documents=50, seed=4)
    assert contents(tmp_path / "out") != contents(shuffled)
    assert sorted(lines_of(tmp_path / "out")) == sorted(lines_of(shuffled))


def test_groups_stay_on_one_side_of_a_split(corpus: Path, tmp_path: Path) -> None:
    splits = {"train": 0.7, "validation": 0.3}
    facts = shuffle(corpus, tmp_path / "out", splits=splits, split_field="cluster")
    clusters = {
        split: {json.loads(line)["cluster"] for line in lines_of(tmp_path / "out", f"{split}-*.jsonl")}
        for split in splits
    }
    assert not clusters["train"] & clusters["validation"]
    assert clusters["train"] | clusters["validation"] == set(range(20))
    assert facts["splits"]["train"]["documents"] + facts["splits"]["validation"]["documents"] == 300


def test_the_same_documents_are_held_out_whatever_the_seed(corpus: Path, tmp_path: Path) -> None:
    held_out = []
    for seed in (1, 2):
        output = tmp_path / str(seed)
        shuffle(corpus, output, splits={"train": 0.8, "test": None}, seed=seed)
        held_out.append({json.loads(line)["id"] for line in lines_of(output, "test-*.jsonl")})
    assert held_out[0] == held_out[1] != set()


def test_balanced_shards_have_the_same_mix_of_lengths(corpus: Path, tmp_path: Path) -> None:
    shuffle(corpus, tmp_path / "out", shard_documents=60, balance="length")
    shards = [path.read_text().splitlines() for path in sorted((tmp_path / "out").iterdir())]
    assert len(shards) == 5
    classes = [length_classes(np.array([len(line) + 1 for line in lines])) for lines in shards]
    counts = np.array([np.bincount(found, minlength=LENGTH_CLASSES) for found in classes])
    assert (counts.max(axis=0) - counts.min(axis=0)).max() <= 1
    assert sorted(lines_of(tmp_path / "out")) == sorted(source_lines(corpus))


def test_the_table_leads_from_documents_to_shards(corpus: Path, shuffled: Path) -> None:
    table = pq.read_table(record_of(shuffled) / "steps" / "documents").to_pylist()
    assert len(table) == 300
    for row in table[::37]:
        data = (shuffled / f"{row['shard']}.jsonl").read_bytes()
        record = data[row["offset"] : row["offset"] + row["bytes"]]
        assert record.endswith(b"\n")
        assert json.loads(record)["id"] == row["id"]
        assert data[: row["offset"]].count(b"\n") == row["row"]


def test_the_manifest_names_inputs_licences_and_versions(corpus: Path, shuffled: Path) -> None:
    record = json.loads((record_of(shuffled) / "dataset.json").read_text())
    (source,) = record["sources"]
    assert source["licenses"] == {"MIT": 150, "CC0-1.0": 150}
    assert [file["file"] for file in source["files"]] == ["a.jsonl", "b.jsonl"]
    assert all(file["hash"].startswith("xxh3:") for file in source["files"])
    assert record["versions"]["gristmill"]
    assert record["settings"]["seed"] == 3
    assert len(record["shards"]) == 6


def test_intermediate_files_are_removed_unless_they_are_wanted(corpus: Path, tmp_path: Path) -> None:
    shuffle(corpus, tmp_path / "out")
    steps = record_of(tmp_path / "out") / "steps"
    assert [path.name for path in steps.iterdir()] == ["documents"]
    shuffle(corpus, tmp_path / "kept", keep_steps=True)
    steps = record_of(tmp_path / "kept") / "steps"
    assert sorted(path.name for path in steps.iterdir()) == ["documents", "scatter-000"]
    assert verify(str(tmp_path / "kept")).problems == []


def test_a_finished_run_is_not_repeated(corpus: Path, tmp_path: Path) -> None:
    first = shuffle(corpus, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    again = shuffle(corpus, tmp_path / "out")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before
    assert again["shards"] == first["shards"]


def test_other_settings_or_inputs_are_refused_until_one_starts_over(corpus: Path, tmp_path: Path) -> None:
    shuffle(corpus, tmp_path / "out", seed=1)
    with pytest.raises(OutputExistsError, match=r"another 'shuffle'.*--fresh"):
        shuffle(corpus, tmp_path / "out", seed=2)
    shuffle(corpus, tmp_path / "out", seed=2, fresh=True)
    expected = tmp_path / "expected"
    shuffle(corpus, expected, seed=2)
    assert contents(tmp_path / "out") == contents(expected)
    assert verify(str(tmp_path / "out")).problems == []


def test_an_input_that_changes_before_the_end_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in", "a", records("a", 30))
    monkeypatch.setattr("gristmill.stages.sharding.sharding_run.plan_shards", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        shuffle(tmp_path / "in", tmp_path / "out")
    monkeypatch.undo()
    write(tmp_path / "in", "a", records("a", 31))
    with pytest.raises(InputChangedError, match=r"a.*was changed"):
        shuffle(tmp_path / "in", tmp_path / "out")
    shuffle(tmp_path / "in", tmp_path / "out", fresh=True)
    assert len(lines_of(tmp_path / "out")) == 31


def test_tampering_is_noticed(corpus: Path, tmp_path: Path) -> None:
    shuffle(corpus, tmp_path / "out")
    place = record_of(tmp_path / "out") / "dataset.json"
    text = place.read_text()
    place.write_text(text.replace('"seed": 0', '"seed": 1'))
    assert any("dataset.json was edited or damaged" in problem for problem in verify(str(tmp_path / "out")).problems)
    place.write_text(text)
    assert verify(str(tmp_path / "out")).problems == []


def test_parquet_stays_parquet_with_its_types(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, first in (("a", 0), ("b", 100)):
        numbers = list(range(first, first + 100))
        table = pa.table({"id": numbers, "text": [f"text {at}" for at in numbers], "tags": [[at] for at in numbers]})
        pq.write_table(table, tmp_path / "in" / f"{name}.parquet", row_group_size=25)
    shuffle(tmp_path / "in", tmp_path / "out", shard_documents=80, input_blocksize=None)
    found = pq.read_table(tmp_path / "out")
    assert found.schema.field("tags").type.value_type == pa.int64()
    assert found.column("id").to_pylist() != list(range(200))
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
        {"id": at, "text": f"text {at}", "tags": [at]} for at in range(200)
    ]
    assert verify(str(tmp_path / "out")).problems == []


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_one_format_becomes_another(corpus: Path, tmp_path: Path, kind: str) -> None:
    rows = [json.loads(line) for line in source_lines(corpus)]
    source = corpus
    if kind == "jsonl":
        source = tmp_path / "in"
        source.mkdir()
        pq.write_table(pa.Table.from_pylist(rows), source / "a.parquet")
    shuffle(source, tmp_path / "out", output_filetype=kind, input_blocksize=None)
    found = pq.read_table(tmp_path / "out").to_pylist() if kind == "parquet" else lines_of(tmp_path / "out")
    made = [json.loads(one) if isinstance(one, str) else one for one in found]
    assert sorted(made, key=lambda row: row["id"]) == sorted(rows, key=lambda row: row["id"])


def test_compressed_shards(corpus: Path, shuffled: Path, tmp_path: Path) -> None:
    import gzip

    shuffle(corpus, tmp_path / "out", shard_documents=50, seed=3, write_kwargs={"compression": "gzip"})
    for path in (tmp_path / "out").iterdir():
        assert gzip.decompress(path.read_bytes()) == (shuffled / path.name.removesuffix(".gz")).read_bytes()


def test_a_record_that_cannot_be_read_is_quarantined(tmp_path: Path) -> None:
    path = write(tmp_path / "in", "a", records("a", 30))
    path.write_text(path.read_text() + "not json\n")
    facts = shuffle(tmp_path / "in", tmp_path / "out")
    assert facts["sources"][0]["quarantined"] == 1
    assert facts["totals"]["documents"] == 30


def test_a_document_longer_than_a_shard_is_told(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", [*records("a", 20), {"id": "long", "text": "x" * 5000}])
    facts = shuffle(tmp_path / "in", tmp_path / "out", shard_size=1000)
    assert any("The longest document has 5,0" in note and "its shard is larger" in note for note in facts["notes"])
    assert len(lines_of(tmp_path / "out")) == 21


def test_the_room_that_is_needed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "in", "a", records("a", 200))
    place = FreeSpace("steps", 1, 2 * path.stat().st_size)
    monkeypatch.setattr("gristmill.stages.sharding.sharding_run.FreeSpace.of", lambda _: place)
    assert shuffle(tmp_path / "in", tmp_path / "enough")["notes"] == []  # however many blocks a file is read in
    place = FreeSpace("steps", 1, path.stat().st_size)
    assert "Intermediate files and output" in shuffle(tmp_path / "in", tmp_path / "less")["notes"][0]


def test_a_split_that_gets_nothing_is_told(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", records("a", 2))
    facts = shuffle(tmp_path / "in", tmp_path / "out", splits={"train": 0.999, "test": 0.001})
    assert "The split 'test' (0.001) got no documents: there are too few, or too few groups." in facts["notes"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"shard_size": "1MB", "shard_documents": 5}, "shard_size and shard_documents are set"),
        ({"shard_documents": 0}, "shard_documents=0"),
        ({"shard_tokens": 5}, "set token_count_field"),
        ({"tokenizer": "t", "token_count_field": "n"}, "Use only one of them"),
        ({"balance": "size"}, "balance='size'"),
        ({"split_field": "cluster"}, "there are no splits"),
        ({"output_filetype": "csv"}, "output_filetype='csv'"),
        ({"seed": 1.5}, "seed=1.5"),
    ],
)
def test_options_that_cannot_work(tmp_path: Path, options: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        ShuffleWorkflow(str(tmp_path / "out"), "in/", **options)  # type: ignore[arg-type]


def test_a_column_that_is_not_there_is_named_before_the_run(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingColumnError, match=r"split_field='clusters'.*Did you mean 'cluster'"):
        shuffle(corpus, tmp_path / "out", splits={"train": 0.9, "test": None}, split_field="clusters")
    assert not (tmp_path / "out").exists()


def test_a_document_without_a_token_count_stops_the_run(tmp_path: Path) -> None:
    rows = records("a", 30)
    rows[20]["token_count"] = -1
    write(tmp_path / "in", "a", rows)
    with pytest.raises(Exception, match="row 20 of a has -1"):
        shuffle(tmp_path / "in", tmp_path / "out", token_count_field="token_count", input_blocksize=None)


def test_the_command(corpus: Path, tmp_path: Path) -> None:
    arguments = ["shuffle", str(corpus), str(tmp_path / "out"), "--workers", "0", "--shard-documents", "100"]
    result = CliRunner().invoke(cli, [*arguments, "--split", "train=0.9", "--split", "test"])
    assert result.exit_code == 0, result.output
    assert "300 documents" in result.output
    assert "  train: " in result.output
    again = CliRunner().invoke(cli, [*arguments, "--split", "train=0.5", "--split", "test"])
    assert again.exit_code == 1
    assert "another 'shuffle'" in again.output
    wrong = CliRunner().invoke(cli, [*arguments, "--split", "train=x"])
    assert wrong.exit_code == 2
    assert "NAME=FRACTION" in wrong.output
