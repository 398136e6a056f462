"""Fuzzy deduplication: near-duplicates go, everything else stays, and the numbers are honest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from gristmill.errors import UsageError
from gristmill.ledger.prove.verify import verify
from gristmill.stages.deduplication import FuzzyDeduplicationWorkflow
from gristmill.stages.deduplication.fuzzy.banding import (
    Banding,
    ComparedPairs,
    derive_banding,
    estimated_precision,
    estimated_recall,
    near_threshold,
    random_sample,
    recall_of_estimates,
    share_with_interval,
)
from gristmill.stages.deduplication.fuzzy.clusters import choose
from tests.unit.stages.deduplication.jobs import deduplicate, documents, kept_ids, survivor_of, write_files


def words(count: int, seed: int) -> list[str]:
    return [f"w{number}" for number in np.random.default_rng(seed).integers(0, 100_000, count)]


def changed(base: list[str], every: int, mark: str) -> list[str]:
    """The words with one in `every` replaced."""
    return [mark + word if place % every == every // 2 else word for place, word in enumerate(base)]


def jaccard(one: list[str], other: list[str]) -> float:
    a, b = ({tuple(text[at : at + 5]) for at in range(len(text) - 4)} for text in (one, other))
    return len(a & b) / len(a | b)


def test_near_duplicates_go_and_the_ledger_names_survivor_and_similarity(tmp_path: Path) -> None:
    base, other = words(300, 1), words(300, 2)
    near, far = changed(base, 100, "x"), changed(base, 12, "y")
    assert jaccard(base, near) > 0.85
    assert jaccard(base, far) < 0.5
    texts = [" ".join(text) for text in (base, other, far, near)]
    write_files(tmp_path, {"a.jsonl": documents(texts[:2]), "b.jsonl": documents(texts[2:], first=2)})
    result = deduplicate(tmp_path, "fuzzy")
    assert kept_ids(tmp_path) == ["d0", "d1", "d2"]
    survivor, similarity = survivor_of(tmp_path, "d3")
    assert survivor == "d0"
    assert similarity == pytest.approx(jaccard(base, near))
    assert result.get_metadata("num_removed") == 1
    assert result.get_metadata("precision")["value"] == 1.0
    assert verify(str(tmp_path / "out")).problems == []


def test_copies_of_a_near_duplicate_go_with_it(tmp_path: Path) -> None:
    base = words(200, 3)
    near = changed(base, 90, "x")
    texts = [" ".join(base), " ".join(near), " ".join(base).upper(), " ".join(near), " ".join(near) + "!"]
    write_files(tmp_path, {"a.jsonl": documents(texts)})
    for number, mode in enumerate(("pairs", "cluster")):
        deduplicate(tmp_path, "fuzzy", verify=mode, fresh=number > 0)
        assert kept_ids(tmp_path) == ["d0"]
        assert survivor_of(tmp_path, "d2") == ("d0", 1.0)
        assert survivor_of(tmp_path, "d4")[1] == pytest.approx(jaccard(base, near))


def test_clusters_without_chains(tmp_path: Path) -> None:
    base = words(400, 4)
    chain = [base]
    for number in range(4):
        step = list(chain[-1])
        for place in (10 + 80 * number, 50 + 80 * number):
            step[place] = f"new{number}"
        chain.append(step)
    assert all(jaccard(chain[at], chain[at + 1]) > 0.94 for at in range(4))
    assert jaccard(chain[0], chain[4]) < 0.85
    write_files(tmp_path, {"a.jsonl": documents([" ".join(text) for text in chain])})
    deduplicate(tmp_path, "fuzzy", threshold=0.85)
    assert kept_ids(tmp_path) == ["d0"]
    assert survivor_of(tmp_path, "d4")[1] == pytest.approx(jaccard(chain[0], chain[4]))
    deduplicate(tmp_path, "fuzzy", threshold=0.85, verify="cluster", fresh=True)
    assert kept_ids(tmp_path)[0] == "d0"
    assert len(kept_ids(tmp_path)) == 2


def test_symbols_numbers_and_empty_texts_are_never_glued(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    symbols = ["".join(rng.choice(list("{}[]()<>_-=+*/%$#@!;:,. \n"), 400)) for _ in range(40)]
    numbers = [" ".join(map(str, rng.integers(0, 1000, 60))) for _ in range(40)]
    texts = [*symbols, *numbers, "", None, "", " ", "\n"]
    write_files(tmp_path, {"a.jsonl": documents(texts)})
    result = deduplicate(tmp_path, "fuzzy")
    assert len(kept_ids(tmp_path)) == len(texts)
    assert result.get_metadata("empty") == 5


def test_short_documents_go_only_for_the_same_words(tmp_path: Path) -> None:
    texts = [
        "good morning",
        "Good morning!",
        "good morning all",
        "one two three four",
        "one two three five",
        "!!!",
        "!!!",
    ]
    write_files(tmp_path, {"a.jsonl": documents(texts)})
    deduplicate(tmp_path, "fuzzy")
    assert kept_ids(tmp_path) == ["d0", "d2", "d3", "d4", "d5"]


def test_rules_hold_across_equal_and_near_documents(tmp_path: Path) -> None:
    base = words(200, 6)
    near = changed(base, 90, "longer")
    rows = [{"id": f"d{n}", "text": " ".join(t), "q": q} for n, (t, q) in enumerate([(base, 1), (near, 2), (base, 9)])]
    write_files(tmp_path, {"a.jsonl": rows})
    deduplicate(tmp_path, "fuzzy", survivor="best", score_field="q")
    assert kept_ids(tmp_path) == ["d2"]
    assert survivor_of(tmp_path, "d1") == ("d2", pytest.approx(jaccard(base, near)))
    deduplicate(tmp_path, "fuzzy", survivor="longest", fresh=True)
    assert kept_ids(tmp_path) == ["d1"]


def test_characters_as_shingles_and_bands_as_given(tmp_path: Path) -> None:
    base = words(200, 7)
    texts = [" ".join(base), " ".join(changed(base, 100, "x")), " ".join(words(200, 8))]
    write_files(tmp_path, {"a.jsonl": documents(texts)})
    result = deduplicate(tmp_path, "fuzzy", char_ngrams=24, num_bands=20, minhashes_per_band=13, bands_per_iteration=5)
    assert kept_ids(tmp_path) == ["d0", "d2"]
    assert (result.get_metadata("num_bands"), result.get_metadata("minhashes_per_band")) == (20, 13)


def test_without_removal_the_ids_are_listed(tmp_path: Path) -> None:
    text = " ".join(words(50, 9))
    write_files(tmp_path, {"a.jsonl": documents([text, text])})
    deduplicate(tmp_path, "fuzzy", perform_removal=False, cache_path=str(tmp_path / "cache"))
    (listed,) = (tmp_path / "out" / "FuzzyDuplicateIds").glob("*.parquet")
    assert pq.read_table(listed).column("id").to_pylist() == ["a:1"]
    assert (tmp_path / "cache" / "signatures").is_dir()


def test_no_duplicates_at_all(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents([" ".join(words(50, seed)) for seed in range(5)])})
    result = deduplicate(tmp_path, "fuzzy")
    assert len(kept_ids(tmp_path)) == 5
    assert result.get_metadata("num_removed") == 0
    assert result.get_metadata("recall")["sample"] == 0


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"threshold": 1.2}, "threshold"),
        ({"threshold": 0}, "threshold"),
        ({"verify": "no"}, "verify"),
        ({"char_ngrams": 0}, "char_ngrams"),
        ({"bands_per_iteration": 0}, "bands_per_iteration"),
        ({"bands_per_iteration": 99}, "bands_per_iteration"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, object], found: str) -> None:
    with pytest.raises(UsageError, match=found):
        FuzzyDeduplicationWorkflow(input_path="in", output_path="out", **options)  # type: ignore[arg-type]


def test_options_of_other_engines_are_accepted_and_unknown_ones_are_not() -> None:
    workflow = FuzzyDeduplicationWorkflow("cache", "out", "in", lsh_rmm_pool_size="auto", use_64_bit_hash=True)
    assert any("lsh_rmm_pool_size, use_64_bit_hash: only for GPUs" in note for note in workflow._notes())
    with pytest.raises(TypeError, match="treshold"):
        FuzzyDeduplicationWorkflow(input_path="in", output_path="out", treshold=0.7)  # type: ignore[call-arg]


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_derived_bands_find_nearly_all_at_the_threshold(threshold: float) -> None:
    banding = derive_banding(threshold)
    assert banding.probability(threshold) >= 0.99
    assert banding.hashes <= 140
    assert banding.probability(threshold / 2) < 0.9
    sharper = [Banding(bands, banding.rows + 1) for bands in range(1, 140 // (banding.rows + 1) + 1)]
    assert threshold == 1.0 or all(one.probability(threshold) < 0.99 for one in sharper)


def test_the_default_bands_are_what_the_page_says() -> None:
    assert derive_banding(0.8) == Banding(20, 7)
    assert Banding(20, 7).probability(0.8) == pytest.approx(0.9910, abs=1e-4)


def test_intervals_hold_what_they_promise() -> None:
    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(400):
        found = share_with_interval(int((rng.random(200) < 0.9).sum()), 200)
        hits += found["low"] <= 0.9 <= found["high"]
    assert hits > 0.92 * 400
    assert share_with_interval(0, 0)["value"] is None
    assert estimated_precision(np.array([0.9, 0.85, 0.7, 0.95]), 0.8)["value"] == 0.75


def test_recall_is_estimated_from_what_was_found() -> None:
    rng = np.random.default_rng(12)
    banding = Banding(4, 6)
    true = rng.uniform(0.8, 1.0, 4000)
    found = true[rng.random(4000) < 1 - (1 - true**6) ** 4]
    estimate = estimated_recall(found, 0.8, banding)
    assert estimate["low"] <= len(found) / 4000 <= estimate["high"]
    assert estimate["high"] - estimate["low"] < 0.05


def test_parts_tell_what_all_pairs_at_once_tell() -> None:
    rng = np.random.default_rng(14)
    pairs = np.append(rng.uniform(0.5, 1.0, 3000), np.ones(50))
    banding = Banding(20, 7)
    parts = np.array_split(rng.permutation(pairs), 7)
    found = ComparedPairs.of(parts, 0.8, banding)
    differing = pairs[pairs < 1.0]
    near = near_threshold(differing, differing, 0.8, banding)
    assert (found.count, found.below) == (3050, int(np.sum(pairs < 0.8)))
    assert found.recall == pytest.approx(estimated_recall(differing, 0.8, banding))
    assert {key: found.near[key] for key in ("above", "below", "precision", "recall")} == {
        key: near[key] for key in ("above", "below", "precision", "recall")
    }
    assert found.near["compared"] == pytest.approx(near["compared"])
    sample = random_sample(parts, seed=1, count=400)
    assert len(sample) == 400
    assert set(sample) <= set(pairs)
    assert abs(np.mean(sample >= 0.8) - np.mean(pairs >= 0.8)) < 0.08
    assert sorted(random_sample(parts, seed=1, count=5000)) == sorted(pairs)


def test_the_choice_does_not_depend_on_the_order_of_pairs() -> None:
    rng = np.random.default_rng(13)
    ranks = rng.integers(0, 3, 60).astype(float)
    pairs = np.unique(np.sort(rng.integers(0, 60, (50, 2)), axis=1), axis=0)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    alike = np.where(rng.random(len(pairs)) < 0.3, 1.0, 0.9)
    for chains in (True, False):
        wanted = None
        for _ in range(5):
            order = rng.permutation(len(pairs))
            firsts, seconds = (np.ascontiguousarray(pairs[order, side]) for side in (0, 1))
            cut = int(rng.integers(0, len(pairs)))
            parts = [(firsts[part], seconds[part], alike[order][part]) for part in (slice(0, cut), slice(cut, None))]
            removed, survivors, _ = choose(
                ranks,
                lambda parts=parts: parts,
                chains=chains,
                jaccard=lambda a, b: np.full(len(a), 0.9),
                at_once=int(rng.integers(1, 60)),
            )
            found = (removed.tolist(), survivors.tolist())
            assert not set(found[0]) & set(found[1])
            assert wanted is None or found == wanted
            wanted = found


def test_signatures_instead_of_shingles_and_the_sample_that_is_checked_exactly(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    texts, expected = [], set()
    for group in range(40):
        base = words(200, 100 + group)
        near = changed(base, int(rng.integers(20, 100)), "x")
        texts += [" ".join(base), " ".join(near), " ".join(words(200, 900 + group))]
        if jaccard(base, near) >= 0.88:
            expected.add(f"d{3 * group + 1}")
        if jaccard(base, near) < 0.72:
            expected.discard(f"d{3 * group + 1}")
    write_files(tmp_path, {"a.jsonl": documents(texts)})
    result = deduplicate(tmp_path, "fuzzy", verify="signature")
    gone = {f"d{number}" for number in range(len(texts))} - set(kept_ids(tmp_path))
    assert expected <= gone
    assert all(int(name[1:]) % 3 == 1 for name in gone)
    similarities = [survivor_of(tmp_path, name)[1] or 0 for name in sorted(gone)]
    truths = [jaccard(texts[int(name[1:]) - 1].split(), texts[int(name[1:])].split()) for name in sorted(gone)]
    assert np.abs(np.array(similarities) - truths).max() < 0.15
    assert min(truths) > 0.65
    precision = result.get_metadata("precision")
    assert precision["value"] == pytest.approx(np.mean(np.array(truths) >= 0.8), abs=1e-4)
    assert precision["low"] < precision["value"] or precision["sample"] == 0
    near = result.get_metadata("near_threshold")
    assert near["precision"]["sample"] > 0
    assert verify(str(tmp_path / "out")).problems == []


def test_pairs_near_the_threshold_are_reported_with_intervals() -> None:
    estimates, exact = np.array([0.81, 0.82, 0.78, 0.79, 0.99]), np.array([0.82, 0.79, 0.81, 0.78, 0.99])
    found = near_threshold(estimates, exact, 0.8, Banding(20, 7))
    assert (found["above"], found["below"]) == (2, 2)
    assert (found["precision"]["value"], found["recall"]["value"]) == (0.5, 0.5)
    assert found["precision"]["low"] < 0.5 < found["precision"]["high"]
    assert 0.98 < found["compared"]["value"] < 1


def test_recall_counts_what_estimates_have_missed() -> None:
    compared = {"value": 0.99, "low": 0.98, "high": 1.0, "sample": 100}
    taken, right = np.array([True, False, True, False]), np.array([True, True, False, False])
    found = recall_of_estimates(compared, 60, 80, taken, right)
    assert found["value"] == pytest.approx(0.99 * (60 + 40 * 0.5) / 100)
    assert found["low"] < found["value"] < found["high"]
    assert recall_of_estimates(compared, 60, 0, np.zeros(0, bool), np.zeros(0, bool)) == compared
