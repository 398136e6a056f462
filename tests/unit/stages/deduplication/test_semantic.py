"""Semantic deduplication: against brute force, on broken embeddings, and with another eps afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import InputChangedError, InputError, MissingExtraError, UsageError
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.layout import RunFolder
from gristmill.stages.deduplication import SemanticDeduplicationWorkflow, TextSemanticDeduplicationWorkflow
from gristmill.stages.deduplication.semantic.clusters import (
    border_width,
    nearest_centroids,
    sample_size,
    spherical_kmeans,
)
from gristmill.stages.deduplication.semantic.neighbours import nearest_preferred
from gristmill.stages.deduplication.semantic.search import SearchSettings
from gristmill.stages.deduplication.semantic.vectors import embedding_matrix, whole_vectors
from gristmill.stages.deduplication.workflow_steps import Steps
from tests.unit.pipeline.jobs import here
from tests.unit.stages.deduplication.jobs import survivor_of, write_files


def crowd(count: int, width: int = 12, *, seed: int = 1, near: float = 0.3) -> Any:
    """Vectors of which a third are near-duplicates of others, and some are copies."""
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((count, width))
    third = count // 3
    matrix[third : 2 * third] = matrix[:third] + near * rng.random((third, 1)) * rng.standard_normal((third, width))
    matrix[-5:] = matrix[0]
    return matrix


def write_vectors(folder: Path, matrix: Any, *, files: int = 3) -> Path:
    (folder / "in").mkdir(parents=True)
    for number, rows in enumerate(np.array_split(np.arange(len(matrix)), files)):
        table = pa.table({"id": [f"d{row}" for row in rows], "embeddings": [matrix[row].tolist() for row in rows]})
        pq.write_table(table, folder / "in" / f"{number}.parquet")
    return folder / "in"


def deduplicate(folder: Path, **options: Any) -> Any:
    options = {"eps": 0.05, "perform_removal": True, **options}
    workflow = SemanticDeduplicationWorkflow(str(folder / "in"), str(folder / "out"), **options)
    return workflow.run(executor=here())


def kept(folder: Path) -> set[str]:
    return {
        name for path in (folder / "out").glob("*.parquet") for name in pq.read_table(path).column("id").to_pylist()
    }


def cosines(matrix: Any) -> Any:
    vectors = whole_vectors(matrix)[0].astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors @ vectors.T


@pytest.mark.parametrize("clusters", [1, 7])
def test_it_removes_what_brute_force_removes(tmp_path: Path, clusters: int) -> None:
    matrix = crowd(300)
    write_vectors(tmp_path, matrix)
    result = deduplicate(tmp_path, n_clusters=clusters, survivor="first")
    alike = cosines(matrix)
    goes = [row for row in range(len(matrix)) if (alike[row, :row] >= 0.95).any()]
    assert 60 < len(goes) < 110
    assert kept(tmp_path) == {f"d{row}" for row in range(len(matrix)) if row not in goes}
    assert result.get_metadata("num_removed") == len(goes)
    for row in goes:
        survivor, similarity = survivor_of(tmp_path, f"d{row}")
        assert survivor in kept(tmp_path)
        assert similarity == pytest.approx(alike[row, int(str(survivor)[1:])], abs=1e-9)
    assert verify(str(tmp_path / "out")).problems == []


def test_another_eps_needs_no_search(tmp_path: Path) -> None:
    write_vectors(tmp_path, crowd(240))
    first = deduplicate(tmp_path, eps=0.1)
    at_ten = kept(tmp_path)
    members = {path: path.read_bytes() for path in (tmp_path / "out.gristmill/steps/members").glob("*.arrow")}
    for path in members:
        path.unlink()  # what the search reads is no longer needed
    second = deduplicate(tmp_path, eps=0.01)
    at_one = kept(tmp_path)
    assert at_ten < at_one
    assert second.get_metadata("num_removed") == first.get_metadata("duplicates_by_eps")["0.01"]
    deduplicate(tmp_path, eps=0.1)
    assert kept(tmp_path) == at_ten
    for path, data in members.items():
        path.write_bytes(data)
    assert verify(str(tmp_path / "out")).problems == []


def steps_of(folder: Path) -> dict[str, int]:
    """When each step was begun."""
    steps = folder / "out.gristmill" / "steps"
    return {plan.parents[1].name: plan.stat().st_mtime_ns for plan in steps.glob("*/_gristmill/plan.json")}


def test_an_eps_above_the_pairs_repeats_the_search_and_not_the_embeddings(tmp_path: Path) -> None:
    matrix = crowd(240, near=0.8)
    for name in ("one", "other"):
        write_vectors(tmp_path / name, matrix)
    small = deduplicate(tmp_path / "one", eps=0.02)
    at_small, before = kept(tmp_path / "one"), steps_of(tmp_path / "one")
    large = deduplicate(tmp_path / "one", eps=0.3)
    (note,) = large.get_metadata("notes")
    assert note.startswith(
        "--eps 0.3 (eps) is above the --max-eps 0.1 (max_eps) of the earlier run: searching again for pairs up to 0.3"
    )
    after = steps_of(tmp_path / "one")
    assert {step for step in after if before.get(step) == after[step]} == {"vectors", "twins", "centroids"}
    assert "survivors-0.02" not in after
    deduplicate(tmp_path / "other", eps=0.3)
    assert kept(tmp_path / "one") == kept(tmp_path / "other") < at_small
    assert large.get_metadata("duplicates_by_eps")["0.3"] == large.get_metadata("num_removed")
    assert verify(str(tmp_path / "one" / "out")).problems == []
    # And back: the pairs that reach further serve as well.
    again = deduplicate(tmp_path / "one", eps=0.02)
    assert again.get_metadata("notes") == []
    assert (small.get_metadata("max_eps"), again.get_metadata("max_eps")) == (0.1, 0.3)
    assert kept(tmp_path / "one") == at_small
    assert steps_of(tmp_path / "one").items() >= after.items()
    assert verify(str(tmp_path / "one" / "out")).problems == []


def test_another_max_eps_repeats_the_search(tmp_path: Path) -> None:
    write_vectors(tmp_path, crowd(90))
    deduplicate(tmp_path, eps=0.02, max_eps=0.123456789)
    assert deduplicate(tmp_path, eps=0.1).get_metadata("max_eps") == 0.123456789
    found = deduplicate(tmp_path, eps=0.02, max_eps=0.05)
    assert found.get_metadata("notes")[0].startswith(
        "--max-eps 0.05 (max_eps) differs from 0.123457 in the earlier run"
    )
    assert found.get_metadata("max_eps") == 0.05
    assert deduplicate(tmp_path, eps=0.05).get_metadata("notes") == []


@pytest.mark.parametrize("removals", [0, 1, 7, 11])
def test_a_stop_while_the_search_is_forgotten_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removals: int
) -> None:
    write_vectors(tmp_path, crowd(90))
    deduplicate(tmp_path, eps=0.02)
    left = iter(range(removals))
    remove = RunFolder.remove

    def then_stop(folder: RunFolder, path: str) -> bool:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return remove(folder, path)

    monkeypatch.setattr(RunFolder, "remove", then_stop)
    with pytest.raises(KeyboardInterrupt):
        deduplicate(tmp_path, eps=0.3)
    monkeypatch.undo()
    assert "members" in steps_of(tmp_path)
    assert deduplicate(tmp_path, eps=0.3).get_metadata("max_eps") == 0.3
    assert verify(str(tmp_path / "out")).problems == []


def test_eps_none_only_finds_pairs_and_a_list_can_be_written(tmp_path: Path) -> None:
    write_vectors(tmp_path, crowd(240))
    found = deduplicate(tmp_path, eps=None, perform_removal=False)
    assert found.get_metadata("num_removed") == 0
    assert not list((tmp_path / "out").glob("*.parquet"))
    deduplicate(tmp_path, eps=0.05, perform_removal=False)
    listed = pq.read_table(next((tmp_path / "out" / "duplicates").glob("*.parquet"))).to_pylist()
    assert len(listed) == found.get_metadata("duplicates_by_eps")["0.05"]
    assert all(row["similarity"] > 0.5 and row["id"] != row["survivor"] for row in listed)


@pytest.mark.parametrize("step", ["vectors", "neighbours", "survivors-0.05"])
def test_an_input_that_changes_between_the_steps_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write_vectors(tmp_path, crowd(60))
    run = Steps.run

    def then_change(steps: Steps, name: str, *arguments: Any, **options: Any) -> Any:
        done = run(steps, name, *arguments, **options)
        if name == step:
            pq.write_table(pa.table({"id": ["new"], "embeddings": [[1.0] * 12]}), tmp_path / "in" / "1.parquet")
        return done

    monkeypatch.setattr(Steps, "run", then_change)
    with pytest.raises(InputChangedError, match="1 was changed"):
        deduplicate(tmp_path)
    assert not list((tmp_path / "out").glob("*.parquet"))
    with pytest.raises(InputChangedError, match="--fresh"):
        deduplicate(tmp_path, eps=0.01)


def test_which_to_keep(tmp_path: Path) -> None:
    matrix = crowd(300)
    centroid = whole_vectors(matrix)[0].astype(np.float64).sum(0)
    central = whole_vectors(matrix)[0] @ centroid
    outcome = {}
    for rule in ("hard", "easy", "random"):
        folder = tmp_path / rule
        write_vectors(folder, matrix)
        deduplicate(folder, n_clusters=1, which_to_keep=rule, eps=0.02)
        outcome[rule] = kept(folder)
    gone = {rule: [int(name[1:]) for name in outcome["hard" if rule == "easy" else "easy"] - outcome[rule]]
            for rule in ("hard", "easy")}  # fmt: skip
    assert np.mean(central[gone["hard"]]) > np.mean(central[gone["easy"]])
    assert outcome["random"] not in (outcome["hard"], outcome["easy"])


def test_documents_without_a_direction_stay(tmp_path: Path) -> None:
    good = [1.0, 2.0, 3.0]
    rows: list[Any] = [None, [], [0.0, 0.0, 0.0], good, None, [0, 0, 0], [float("nan"), 1.0, 1.0], [2, 4, 6]]
    lines = [json.dumps({"id": f"d{at}", "embeddings": row}).replace("NaN", "null") for at, row in enumerate(rows)]
    write_files(tmp_path, {"a.jsonl": lines})
    result = deduplicate(tmp_path)
    ids = [json.loads(line)["id"] for line in next((tmp_path / "out").glob("*.jsonl")).read_text().splitlines()]
    assert ids == ["d0", "d1", "d2", "d3", "d4", "d5", "d6"]
    assert survivor_of(tmp_path, "d7") == ("d3", 1.0)
    assert result.get_metadata("empty") == 6


@pytest.mark.parametrize("blocksize", [None, 60])
def test_documents_without_a_text_are_compared_with_nothing(tmp_path: Path, blocksize: int | None) -> None:
    texts: list[Any] = [{"body": "words"}, {"body": None}, {"body": ""}, {"body": " \n"}, {}, {"body": "others"}]
    rows = [{"id": f"d{at}", "embeddings": [1.0, 2.0], **text} for at, text in enumerate(texts)]
    write_files(tmp_path, {"a.jsonl": rows})
    result = deduplicate(tmp_path, text_field="body", survivor="first", input_blocksize=blocksize)
    lines = [line for path in sorted((tmp_path / "out").glob("*.jsonl")) for line in path.read_text().splitlines()]
    assert [json.loads(line)["id"] for line in lines] == ["d0", "d1", "d2", "d3", "d4"]
    assert result.get_metadata("empty") == 4
    assert survivor_of(tmp_path, "d5") == ("d0", 1.0)


def test_embeddings_without_any_texts_are_compared(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"id": ["a", "b", "c"], "embeddings": [[1.0, 2.0]] * 3, "body": [None, "", "words"]})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    assert deduplicate(tmp_path).get_metadata("num_removed") == 2
    assert deduplicate(tmp_path, text_field="body", cache_path=str(tmp_path / "steps")).get_metadata("empty") == 2
    assert kept(tmp_path) == {"a", "b", "c"}


def test_nothing_but_empty_documents(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": [{"id": "d0", "embeddings": None}, {"id": "d1", "embeddings": None}]})
    assert deduplicate(tmp_path).get_metadata("num_removed") == 0


def test_many_copies_of_one_vector_cost_in_proportion(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    vector = pa.array(np.tile(np.array([0.6, 0.8], np.float32), 200_000))
    table = pa.table({"embeddings": pa.FixedSizeListArray.from_arrays(vector, 2)})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    assert deduplicate(tmp_path).get_metadata("num_removed") == 199_999


def test_embeddings_of_two_models_are_an_error(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {"a.jsonl": [{"embeddings": [1.0, 2.0]}], "b.jsonl": [{"embeddings": [1.0, 2.0, 3.0]}]},
    )
    with pytest.raises(InputError, match=r"some have 2 and some 3 numbers"):
        deduplicate(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": None}, "set eps to"),
        ({"eps": 0.2, "max_eps": 0.1}, "max_eps"),
        ({"which_to_keep": "soft"}, "hard"),
        ({"which_to_keep": "easy", "survivor": "longest"}, "one of the two"),
        ({"distance_metric": "manhattan"}, "cosine"),
        ({"n_clusters": 0}, "n_clusters"),
        ({"max_iter": 0}, "max_iter"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SemanticDeduplicationWorkflow("in", "out", **{"eps": 0.01, "perform_removal": True, **options})


def test_options_of_other_engines_are_accepted_and_explained() -> None:
    workflow = TextSemanticDeduplicationWorkflow(
        "in", "out", kmeans_oversampling_factor=2.0, embedding_vllm_init_kwargs={}, use_id_generator=True
    )
    (note,) = workflow._notes()
    assert "embedding_vllm_init_kwargs, oversampling_factor, use_id_generator" in note
    with pytest.raises(TypeError, match="no_such_option"):
        TextSemanticDeduplicationWorkflow("in", "out", no_such_option=1)


# --- the pieces ---


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_every_vector_is_with_its_nearest_centroid_in_the_end(rows: int, count: int, seed: int) -> None:
    vectors, _ = whole_vectors(np.random.default_rng(seed).standard_normal((rows, 5)))
    centroids = spherical_kmeans(vectors, min(count, rows), seed=seed, max_iter=100, tol=0.0)
    labels, total = nearest_centroids(vectors, centroids)
    products = vectors.astype(np.int64) @ centroids.astype(np.int64).T
    assert labels.tolist() == products.argmax(1).tolist()
    assert total == products.max(1).sum()
    assert np.array_equal(centroids, spherical_kmeans(vectors, min(count, rows), seed=seed, max_iter=100, tol=0.0))


def test_kmeans_finds_clear_clusters() -> None:
    rng = np.random.default_rng(3)
    centres = rng.standard_normal((4, 30))
    matrix = np.repeat(centres, 50, 0) + 0.1 * rng.standard_normal((200, 30))
    vectors, _ = whole_vectors(matrix)
    best = max(
        (spherical_kmeans(vectors, 4, seed=seed, max_iter=50, tol=0.0) for seed in range(5)),
        key=lambda found: nearest_centroids(vectors, found)[1],
    )
    labels = nearest_centroids(vectors, best)[0].reshape(4, 50)
    assert (labels == labels[:, :1]).all()
    assert len(set(labels[:, 0])) == 4


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_blocks_find_what_all_at_once_finds(members: int, visitors: int, seed: int, block: int) -> None:
    import gristmill.stages.deduplication.semantic.neighbours as module

    vectors, _ = whole_vectors(np.abs(np.random.default_rng(seed).standard_normal((members + visitors, 3))))
    places = np.random.default_rng(seed).permutation(members + visitors)
    whole = nearest_preferred(vectors, members, places, 0.8)
    before, module.SEARCH_BLOCK = module.SEARCH_BLOCK, block
    try:
        parts = nearest_preferred(vectors, members, places, 0.8)
    finally:
        module.SEARCH_BLOCK = before
    assert whole[1].tolist() == parts[1].tolist()
    assert whole[0].tolist() == parts[0].tolist()


def test_borders_are_wider_for_pairs_further_apart() -> None:
    assert border_width(0.99) < border_width(0.9) < border_width(0.5)


def test_the_number_of_clusters_follows_from_the_vectors() -> None:
    assert SearchSettings().clusters(1_000_000) == 1000
    assert SearchSettings(n_clusters=50).clusters(1_000_000) == 50
    assert SearchSettings(n_clusters=50).clusters(3) == 3
    assert sample_size(1_000_000, 1000, 384) * 384 * 2 <= 96 << 20
    assert sample_size(100, 10, 384) == 100


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float16(), 2), pa.list_(pa.int64())]
)
def test_embeddings_of_any_list_type(kind: Any) -> None:
    values = np.array([[1, 2], [3, 4]])
    rows = [None, *values.astype(np.float16 if "halffloat" in str(kind) else values.dtype).tolist(), None]
    if "halffloat" in str(kind):
        flat = pa.array(np.array([0, 0, 1, 2, 3, 4, 0, 0], np.float16))
        column = pa.FixedSizeListArray.from_arrays(flat, 2, mask=pa.array([True, False, False, True]))
    else:
        column = pa.array(rows, kind)
    matrix, places = embedding_matrix(column)
    assert matrix.tolist() == values.tolist()
    assert places.tolist() == [1, 2]


def test_embeddings_that_are_no_lists_are_an_error() -> None:
    with pytest.raises(InputError, match="lists of numbers"):
        embedding_matrix(pa.array([1.0, 2.0]))
    with pytest.raises(InputError, match="lists of numbers"):
        embedding_matrix(pa.array([["a"], ["b"]]))


def test_texts_without_the_extra_are_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"a.jsonl": [{"id": "a", "text": "some words"}]})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    workflow = TextSemanticDeduplicationWorkflow(str(tmp_path / "in"), str(tmp_path / "out"))
    for attempt in (workflow.run, workflow.plan):
        with pytest.raises(MissingExtraError, match=r"'gristmill\[semantic\]'.*--embedding-field"):
            attempt(executor=here())
    assert not (tmp_path / "out").exists()
