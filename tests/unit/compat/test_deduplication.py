"""Deduplication as the single stages of old scripts: folders, columns and results."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.compat.fuzzy_stages import MinHash
from gristmill.compat.id_generator import IdGeneratorBase
from gristmill.compat.semantic_stages import RankingStrategy, pairwise_cosine_similarity_batched
from gristmill.errors import InputChangedError, NotSupportedError, UsageError
from gristmill.pipeline import Pipeline
from gristmill.stages.deduplication import FuzzyDeduplicationWorkflow, TextSemanticDeduplicationWorkflow
from gristmill.tasks import FileGroupTask
from tests.unit.pipeline.jobs import here

BASE = "the quick brown fox jumps over the lazy dog and runs away into the dark forest where nobody looks for it "


def _run(*stages: Any, **options: Any) -> Any:
    return Pipeline("step", stages=list(stages)).run(executor=here(), progress=False, **options)


def _rows(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.rglob("*.parquet"))])


def test_fuzzy_deduplication_step_by_step(curator: None, tmp_path: Path) -> None:
    """As the tutorials do it: ids, signatures, buckets, edges, groups, list, removal."""
    ids = importlib.import_module("nemo_curator.stages.deduplication.id_generator")
    fuzzy = "nemo_curator.stages.deduplication.fuzzy"
    minhash = importlib.import_module(f"{fuzzy}.minhash")
    lsh = importlib.import_module(f"{fuzzy}.lsh.stage")
    partitioning = importlib.import_module("nemo_curator.stages.file_partitioning").FilePartitioningStage
    io = importlib.import_module("nemo_curator.stages.text.io.reader")
    writing = importlib.import_module("nemo_curator.stages.text.io.writer")
    removal = importlib.import_module("nemo_curator.stages.text.deduplication.removal").TextDuplicatesRemovalStage
    (tmp_path / "in").mkdir()
    texts = {
        "a": [BASE, "something else entirely that has not much to do with foxes or dogs at all, honestly"],
        "b": [BASE + "x", "a third text about the weather in spring and the rain that falls on the plain", ""],
        "c": [BASE, ""],
    }
    for name, lines in texts.items():
        rows = [json.dumps({"id": f"{name}{n}", "text": text}) for n, text in enumerate(lines)]
        (tmp_path / "in" / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    cache = str(tmp_path / "cache")

    ids.create_id_generator_actor()
    _run(partitioning(str(tmp_path / "in")), minhash.MinHashStage(cache, char_ngrams=5, num_hashes=100))
    signatures = _rows(tmp_path / "cache" / "MinHashStage")
    assert signatures.column_names == ["_curator_dedup_id", "_minhash_signature"]
    assert signatures.num_rows == 7
    ids.write_id_generator_to_disk(str(tmp_path / "ids.json"))
    ids.kill_id_generator_actor()

    done = _run(partitioning(f"{cache}/MinHashStage"), lsh.LSHStage(20, 5, output_path=cache))
    folders = [Path(path).parent.name for path in done[0].data]
    assert folders == [f"band_{first}-band_{first + 5}" for first in range(0, 20, 5)]
    buckets = _rows(tmp_path / "cache" / "LSHStage")
    assert buckets.column_names == ["_bucket_id", "_curator_dedup_id"]
    edges = importlib.import_module(f"{fuzzy}.buckets_to_edges").BucketsToEdgesStage(cache)
    components = importlib.import_module(f"{fuzzy}.connected_components").ConnectedComponentsStage(cache)
    _run(partitioning(f"{cache}/LSHStage"), edges, components)
    groups = _rows(tmp_path / "cache" / "ConnectedComponentsStage").to_pylist()
    assert {row["_curator_dedup_id"] for row in groups} == {"a:0", "b:0", "c:0"}
    assert len({row["_duplicate_group_id"] for row in groups}) == 1
    identify = importlib.import_module(f"{fuzzy}.identify_duplicates").IdentifyDuplicatesStage(output_path=cache)
    _run(partitioning(f"{cache}/ConnectedComponentsStage"), identify)
    assert _rows(tmp_path / "cache" / "FuzzyDuplicateIds").to_pylist() == [
        {"_curator_dedup_id": "b:0"},
        {"_curator_dedup_id": "c:0"},
    ]
    stage = removal(f"{cache}/FuzzyDuplicateIds", duplicate_id_field="_curator_dedup_id", drop_id_field=True)
    report = _run(
        io.JsonlReader(str(tmp_path / "in"), _assign_ids=True), stage, writing.JsonlWriter(str(tmp_path / "out"))
    ).report
    kept = [json.loads(line) for path in sorted((tmp_path / "out").glob("*")) for line in path.read_text().splitlines()]
    assert [row["id"] for row in kept] == ["a0", "a1", "b1", "b2", "c1"]
    assert report.dropped == 2
    assert "_curator_dedup_id" not in kept[0]


def _large_and_small(folder: Path) -> None:
    """A file that 'blocksize' would split, and two that it would put together."""
    folder.mkdir()
    rows = {"large": [f"{number} {BASE}" for number in range(40)], "a": ["a", "b"], "b": ["c"]}
    for name, texts in rows.items():
        lines = [json.dumps({"id": f"{name}{n}", "text": text}) for n, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def _removal(folder: Path, listed: list[Any], **options: Any) -> Any:
    """Remove listed ids as a script does; the documents that stay."""
    io = importlib.import_module("nemo_curator.stages.text.io.reader")
    removal = importlib.import_module("nemo_curator.stages.text.deduplication.removal").TextDuplicatesRemovalStage
    pq.write_table(pa.table({"id": listed}), folder.parent / "listed.parquet")
    stages = options.pop("between", [])
    read = io.JsonlReader(str(folder), _assign_ids=True, **options)
    done = _run(read, *stages, removal(str(folder.parent / "listed.parquet")))
    return sorted(row for batch in done for row in batch.to_pandas()["id"])


@pytest.mark.filterwarnings("ignore:.*has no effect")
@pytest.mark.parametrize("options", [{}, {"blocksize": "1KB"}, {"files_per_partition": 2}], ids=str)
def test_ids_do_not_depend_on_how_files_are_split(curator: None, tmp_path: Path, options: dict[str, Any]) -> None:
    """Signatures are made with one way to split files, documents removed with another."""
    _large_and_small(tmp_path / "in")
    partitioning = importlib.import_module("nemo_curator.stages.file_partitioning").FilePartitioningStage
    minhash = importlib.import_module("nemo_curator.stages.deduplication.fuzzy.minhash").MinHashStage
    _run(partitioning(str(tmp_path / "in"), **options), minhash(str(tmp_path), num_hashes=8, char_ngrams=4))
    ids = _rows(tmp_path / "MinHashStage").column("_curator_dedup_id").to_pylist()
    assert sorted(ids) == sorted([f"large:{n}" for n in range(40)] + ["a:0", "a:1", "b:0"])
    listed = ["large:0", "large:39", "a:1", "b:0"]
    kept = [f"large{n}" for n in range(1, 39)] + ["a0"]
    assert _removal(tmp_path / "in", listed, **options) == sorted(kept)


@pytest.mark.filterwarnings("ignore:.*has no effect")
def test_ids_of_parquet_files_are_those_of_their_reader(curator: None, tmp_path: Path) -> None:
    (tmp_path / "in" / "below").mkdir(parents=True)
    for name in ("a", "below/b"):
        rows = pa.table({"text": [f"{name} {number} {BASE}" for number in range(6)]})
        pq.write_table(rows, tmp_path / "in" / f"{name}.parquet", row_group_size=2)
    partitioning = importlib.import_module("nemo_curator.stages.file_partitioning").FilePartitioningStage
    minhash = importlib.import_module("nemo_curator.stages.deduplication.fuzzy.minhash").MinHashStage
    reader = importlib.import_module("nemo_curator.stages.text.io.reader").ParquetReader
    _run(partitioning(str(tmp_path / "in")), minhash(str(tmp_path), num_hashes=8, char_ngrams=4))
    assigned = _run(reader(str(tmp_path / "in"), blocksize="1KB", _assign_ids=True))
    expected = [one for batch in assigned for one in batch.to_pandas()["_curator_dedup_id"]]
    assert len(expected) == 12
    found = _rows(tmp_path / "MinHashStage").column("_curator_dedup_id").to_pylist()
    assert sorted(found) == sorted(expected)


def test_large_files_are_not_split_where_ids_are_assigned(
    curator: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gristmill.storage.partitions.DEFAULT_BLOCKSIZE", 1000)
    _large_and_small(tmp_path / "in")
    assert "large39" not in _removal(tmp_path / "in", ["large:39"])


def test_an_option_that_would_split_files_is_named(curator: None, tmp_path: Path) -> None:
    io = importlib.import_module("nemo_curator.stages.text.io.reader")
    with pytest.warns(UserWarning, match=r"JsonlReader\(blocksize=…\) has no effect"):
        io.JsonlReader(str(tmp_path), blocksize="1MB", _assign_ids=True)


@pytest.mark.parametrize("lost", ["large.b0001:3", "other:0", "17"])
def test_ids_of_files_that_are_not_read_are_refused(curator: None, tmp_path: Path, lost: str) -> None:
    _large_and_small(tmp_path / "in")
    with pytest.raises(InputChangedError, match=r"lists 1 id of documents that are not in the input"):
        _removal(tmp_path / "in", ["a:0", lost])


def test_ids_of_rows_that_do_not_occur_are_an_error(curator: None, tmp_path: Path) -> None:
    _large_and_small(tmp_path / "in")
    with pytest.raises(InputChangedError, match=r"1 listed id never occurred"):
        _removal(tmp_path / "in", ["a:0", "b:1"])


def test_documents_that_were_dropped_before_are_not_missed(curator: None, tmp_path: Path) -> None:
    _large_and_small(tmp_path / "in")
    filters = importlib.import_module("nemo_curator.stages.text.filters")
    longer = filters.ScoreFilter(filters.WordCountFilter(min_words=2), text_field="text")
    assert "large0" not in _removal(tmp_path / "in", ["a:0", "large:0"], between=[longer])


def test_workflow_removes_by_the_record_of_the_stages(curator: None, tmp_path: Path) -> None:
    """The id generator that a script writes after `MinHashStage` is enough for the workflow."""
    ids = importlib.import_module("nemo_curator.stages.deduplication.id_generator")
    workflow = importlib.import_module("nemo_curator.stages.text.deduplication").TextDuplicatesRemovalWorkflow
    _large_and_small(tmp_path / "in")
    ids.create_id_generator_actor()
    ids.write_id_generator_to_disk(str(tmp_path / "ids.json"))
    ids.kill_id_generator_actor()
    for number, listed in enumerate((["a:0"], ["a:0", "b:1"])):
        pq.write_table(pa.table({"id": listed}), tmp_path / f"listed{number}.parquet")
    job = {"input_path": str(tmp_path / "in"), "id_generator_path": str(tmp_path / "ids.json")}
    done = workflow(ids_to_remove_path=str(tmp_path / "listed0.parquet"), output_path=str(tmp_path / "o0"), **job)
    assert done.run(here()).metadata["num_removed"] == 1
    done = workflow(ids_to_remove_path=str(tmp_path / "listed1.parquet"), output_path=str(tmp_path / "o1"), **job)
    with pytest.raises(InputChangedError, match=r"1 of the 2 listed ids"):
        done.run(here())


@pytest.mark.parametrize(("own", "column"), [(None, "_curator_dedup_id"), ("name", "name")])
def test_a_workflow_lists_ids_in_the_column_that_scripts_name(
    curator: None, tmp_path: Path, own: str | None, column: str
) -> None:
    """Assigned ids are removed by a second workflow, with its parameters by their old names."""
    (tmp_path / "in").mkdir()
    rows = [{"name": f"d{n}", "text": f"text {n % 3}", "extra": n} for n in range(5)]
    (tmp_path / "in" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    exact = importlib.import_module("nemo_curator.stages.deduplication.exact")
    exact.ExactDeduplicationWorkflow(
        str(tmp_path / "found"),
        str(tmp_path / "in"),
        "jsonl",
        id_field=own,
        assign_id=own is None,
        normalize_text=False,
    ).run()
    assert set(_rows(tmp_path / "found" / "ExactDuplicateIds").column_names) >= {"id", column}
    removal = importlib.import_module("nemo_curator.stages.text.deduplication").TextDuplicatesRemovalWorkflow
    options: dict[str, Any] = {} if own else {"id_generator_path": str(tmp_path / "found" / "exact_id_generator.json")}
    removal(
        input_path=str(tmp_path / "in"),
        ids_to_remove_path=str(tmp_path / "found" / "ExactDuplicateIds"),
        output_path=str(tmp_path / "out"),
        input_filetype="jsonl",
        input_fields=["name", "text"],
        input_kwargs={"storage_options": {}},
        id_field=own or "_curator_dedup_id",
        duplicate_id_field=column,
        duplicate_id_read_kwargs=None,
        id_generator_storage_options=None,
        output_filetype="parquet",
        output_kwargs={"index": False},
        output_mode="overwrite",
        **options,
    ).run()
    assert _rows(tmp_path / "out").sort_by("name").to_pylist() == [
        {"name": f"d{n}", "text": f"text {n}"} for n in range(3)
    ]


@pytest.mark.parametrize(
    ("option", "value"),
    [("input_task_limit", 3), ("output_file_extension", "json"), ("id_generator_storage_options", {"key": "x"})],
)
def test_what_removal_cannot_do_is_refused(curator: None, tmp_path: Path, option: str, value: Any) -> None:
    removal = importlib.import_module("nemo_curator.stages.text.deduplication").TextDuplicatesRemovalWorkflow
    with pytest.raises(NotSupportedError, match=rf"{option}=.* is not supported; pass "):
        removal(str(tmp_path), str(tmp_path), str(tmp_path / "out"), **{option: value})


def test_a_folder_of_an_earlier_run_is_emptied(curator: None, tmp_path: Path) -> None:
    stage_class = importlib.import_module("nemo_curator.stages.deduplication.fuzzy.minhash").MinHashStage
    partitioning = importlib.import_module("nemo_curator.stages.file_partitioning").FilePartitioningStage
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.jsonl").write_text('{"text": "some words"}\n')
        _run(partitioning(str(folder)), stage_class(str(tmp_path / "cache"), num_hashes=8, char_ngrams=4))
    assert [path.name for path in (tmp_path / "cache" / "MinHashStage").iterdir()] == ["b.parquet"]


def test_all_files_come_in_one_task(curator: None, tmp_path: Path) -> None:
    components = importlib.import_module("nemo_curator.stages.deduplication.fuzzy.connected_components")
    names = ["_curator_dedup_id_x", "_curator_dedup_id_y"]
    tasks = []
    for number, (one, other) in enumerate([("a", "b"), ("c", "d"), ("b", "c"), ("e", "f")]):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({names[0]: [one], names[1]: [other]}), path)
        tasks.append(FileGroupTask(data=[str(path)]))
    (done,) = _run(components.ConnectedComponentsStage(str(tmp_path / "out")), initial_tasks=tasks)
    groups: dict[int, str] = {}
    for row in pq.read_table(done.data[0]).to_pylist():
        found = row["_duplicate_group_id"]
        groups[found] = groups.get(found, "") + row["_curator_dedup_id"]
    assert sorted(groups.values()) == ["abcd", "ef"]


def test_signatures_estimate_the_jaccard_similarity() -> None:
    rng = np.random.default_rng(0)
    one = "".join(rng.choice(list("abcdefgh"), 400))
    other = one[:300] + "".join(rng.choice(list("abcdefgh"), 100))
    found = MinHash(num_hashes=512, char_ngrams=6).compute_minhashes([one, other, "", None])
    grams = [{text[n : n + 6] for n in range(len(text) - 5)} for text in (one, other)]
    exact = len(grams[0] & grams[1]) / len(grams[0] | grams[1])
    assert abs(float((found[0] == found[1]).mean()) - exact) < 0.08
    assert (found[2:] == np.uint32(0xFFFFFFFF)).all()


def test_semantic_deduplication_step_by_step(curator: None, tmp_path: Path) -> None:
    semantic = importlib.import_module("nemo_curator.stages.deduplication.semantic")
    kmeans = importlib.import_module("nemo_curator.stages.deduplication.semantic.kmeans").KMeansStage
    pairwise = importlib.import_module("nemo_curator.stages.deduplication.semantic.pairwise").PairwiseStage
    rng = np.random.default_rng(1)
    points = rng.normal(size=(40, 8))
    points[20:] = points[:20] + rng.normal(scale=1e-4, size=(20, 8))
    for number, part in enumerate(np.split(np.arange(40), 4)):
        (tmp_path / "in").mkdir(exist_ok=True)
        rows = {"id": part, "quality": part % 7, "embeddings": list(points[part])}
        pq.write_table(pa.table(rows), tmp_path / "in" / f"{number}.parquet")
    clusters, pairs, out = (str(tmp_path / name) for name in ("clusters", "pairs", "out"))
    _run(kmeans(3, "id", "embeddings", str(tmp_path / "in"), clusters, metadata_fields=["quality"], cache_path=out))
    assert {path.name for path in Path(clusters).iterdir()} == {"centroid=0", "centroid=1", "centroid=2"}
    assert np.load(f"{out}/kmeans_centroids.npy").shape == (3, 8)
    members = _rows(Path(clusters))
    assert {"l2_dist_to_cent", "cosine_dist_to_cent", "quality", "embeddings"} <= set(members.column_names)
    ranking = semantic.RankingStrategy.metadata_based(["quality", "id"], ascending=[False, True])
    stages = [pairwise("id", "embeddings", clusters, pairs, ranking), semantic.IdentifyDuplicatesStage(out, eps=0.01)]
    done = _run(*stages)
    assert set(_rows(Path(pairs)).column_names) == {"id", "max_id", "cosine_sim_score"}
    removed = {row["id"] for path in done for file in path.data for row in pq.read_table(file).to_pylist()}
    worse = {max((n, n + 20), key=lambda one: (-(one % 7), one)) for n in range(20)}
    assert removed == worse


def test_similarity_in_batches_is_that_of_all_at_once() -> None:
    vectors = np.random.default_rng(2).normal(size=(50, 5))
    small = pairwise_cosine_similarity_batched(vectors, 7)
    whole = pairwise_cosine_similarity_batched(vectors, 100)
    assert small[0].tolist() == whole[0].tolist()
    assert np.allclose(small[1], whole[1])


def test_ids_of_batches_are_kept(tmp_path: Path) -> None:
    ids = IdGeneratorBase()
    ids.register_batch("a", 3)
    ids.register_batch(["b", "c"], 2)
    ids.to_disk(str(tmp_path / "ids.json"))
    again = IdGeneratorBase.from_disk(str(tmp_path / "ids.json"))
    assert again.get_batch_range(["b", "c"], None) == (3, 4)
    assert again.register_batch("d", 1) == 5
    with pytest.raises(UsageError):
        again.get_batch_range(None, None)


def test_one_of_bands_and_hashes_suffices() -> None:
    assert FuzzyDeduplicationWorkflow(output_path="o", num_bands=30).banding.rows == 13
    assert FuzzyDeduplicationWorkflow(output_path="o", minhashes_per_band=8).banding.bands == 20


def test_a_wrong_keyword_names_the_class_that_was_called() -> None:
    with pytest.raises(TypeError, match=r"TextSemanticDeduplicationWorkflow.*'textfield'.*Did you mean 'text_field'"):
        TextSemanticDeduplicationWorkflow("in", "out", textfield="text")


def test_a_ranking_needs_its_columns() -> None:
    import polars as pl

    with pytest.raises(UsageError, match="metadata_fields"):
        RankingStrategy(["score"]).rank_cluster(pl.DataFrame({"id": [1]}))
