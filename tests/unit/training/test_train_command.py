"""`gristmill classifier train` with data and folders that cannot work, and interrupted in the middle."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from gristmill.cli.classifier import agreement_text, command
from gristmill.errors import InputError, OutputError
from gristmill.stages.text.classifiers.base import DistributedDataClassifier
from gristmill.training import linear
from gristmill.training import result as training_result
from gristmill.training.labelled_data import LabelledTexts, read_labelled
from gristmill.training.result import Evaluation
from tests.unit.stages.text.models.tiny import batch_of, run

ROWS = [{"text": f"{word} {number}", "label": word} for word in ("ball", "bank") for number in range(6)]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def train(data: Path, out: Path, *options: str) -> Result:
    return CliRunner().invoke(command, ["train", str(data), "--out", str(out), *options])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, "Line 13 .* has no 'label'; it has 'text'"),
        ({"text": "a", "label": None}, "Line 13 .* has no label: 'label' is null. Add one"),
        ({"text": "a", "label": ""}, "has no label: 'label' is empty"),
        ({"text": "a", "label": " "}, "has no label: 'label' is blank"),
        ({"text": "a", "label": ["x"]}, r"has \['x'\] in 'label'"),
        ({"text": ["a"], "label": "x"}, "has a list in 'text'"),
        ({"text": 5, "label": "x"}, "has a int in 'text'"),
        ({"label": "x"}, "has no 'text'; it has 'label'. Name the fields with --text and --label"),
        ([1], "Line 13 .* is a JSON list; every line must be a JSON object"),
    ],
)
def test_a_record_that_is_no_labelled_text_is_named(row: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_labelled(write(tmp_path / "data.jsonl", [*ROWS, row]), text_field="text", label_field="label")


def test_an_empty_folder_and_half_a_gzip_file_are_no_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no \.jsonl or \.jsonl\.gz files"):
        read_labelled(tmp_path, text_field="text", label_field="label")
    packed = gzip.compress(write(tmp_path / "data.jsonl", ROWS).read_bytes())
    (tmp_path / "data.jsonl.gz").write_bytes(packed[:-20])
    with pytest.raises(InputError, match="not a complete gzip file"):
        read_labelled(tmp_path / "data.jsonl.gz", text_field="text", label_field="label")


def test_a_folder_stands_for_its_files(tmp_path: Path) -> None:
    whole = read_labelled(write(tmp_path / "all.jsonl", ROWS), text_field="text", label_field="label")
    folder = tmp_path / "parts"
    folder.mkdir()
    write(folder / "a.jsonl", ROWS[::2])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(write(tmp_path / "b.jsonl", ROWS[1::2]).read_bytes()))
    (folder / "_notes.jsonl").write_text("not JSON")
    found = read_labelled(folder, text_field="text", label_field="label")
    assert sorted(found.texts) == sorted(whole.texts)
    assert found.labels == whole.labels


def test_agreement_with_grades() -> None:
    truth, predicted = np.array([0, 0, 1, 2, 3, 3]), np.array([0, 1, 1, 3, 3, 0])
    found = Evaluation.of(truth, predicted, ["0", "1.0", "3", "5"]).grades()
    assert found is not None
    assert found["within_one"] == 4 / 6
    assert found["mean_absolute_error"] == (1 + 2 + 5) / 6
    assert found["at_least"]["3"] == {"precision": 1.0, "recall": 2 / 3, "f1": pytest.approx(0.8)}
    assert Evaluation.of(truth, predicted, ["a", "b", "c", "d"]).grades() is None
    assert Evaluation.of(truth, predicted, ["0.5", "1", "2", "3"]).grades() is None
    assert Evaluation.of(truth[:0], predicted[:0], ["0", "1", "2", "3"]).grades() is None
    assert "grade 3 or higher: precision 1.00, recall 0.67, F1 0.80" in agreement_text(found)


def test_what_a_file_holds_counts_and_not_its_name(tmp_path: Path) -> None:
    plain = write(tmp_path / "data.jsonl", ROWS)
    texts = read_labelled(plain, text_field="text", label_field="label").texts
    for name, content in (("packed.jsonl", gzip.compress(plain.read_bytes())), ("bom.jsonl", b"\xef\xbb\xbf")):
        (tmp_path / name).write_bytes(content if name == "packed.jsonl" else content + plain.read_bytes())
        assert read_labelled(tmp_path / name, text_field="text", label_field="label").texts == texts
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "table.jsonl")
    with pytest.raises(InputError, match=r"is a Parquet file, .* JSONL first, .* ParquetReader\(.*JsonlWriter"):
        read_labelled(tmp_path / "table.jsonl", text_field="text", label_field="label")


def test_records_without_a_text_are_left_out_and_counted(tmp_path: Path) -> None:
    blank = [{"text": text, "label": "ball"} for text in (None, "", " \n ")]
    result = train(write(tmp_path / "data.jsonl", [*ROWS, *blank]), tmp_path / "out", "--kind", "linear")
    assert result.exit_code == 0
    assert "Note: Skipped 3 records whose 'text' is null, empty or blank." in result.output
    facts = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert (facts["texts"] + facts["held_out"], facts["blank"], facts["copies"]) == (12, 3, 0)
    with pytest.raises(InputError, match=r"In all 3 records of .* 'text' is null, empty or blank"):
        read_labelled(write(tmp_path / "blank.jsonl", blank), text_field="text", label_field="label")


def labelled(texts: list[str], classes: list[int], labels: list[str]) -> LabelledTexts:
    return LabelledTexts(texts, np.array(classes), labels)


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=1, max_size=60),
    st.sampled_from([0.2, 0.5]),
    st.integers(0, 3),
)
def test_equal_texts_are_on_one_side_of_the_split(rows: list[tuple[int, int]], held_out: float, seed: int) -> None:
    data = labelled([f"text {text}" for text, _ in rows], [label for _, label in rows], ["a", "b", "c"])
    learn, test = data.split(held_out, seed)
    assert not set(learn.texts) & set(test.texts)
    assert sorted([*learn.texts, *test.texts]) == sorted(data.texts)
    again = data.split(held_out, seed)
    assert (again[0].texts, again[1].texts) == (learn.texts, test.texts)


def test_a_split_of_copies_is_still_a_fifth_of_each_label() -> None:
    texts = [f"{label} {number}" for label in "ab" for number in range(50)]
    data = labelled(texts * 2, ([0] * 50 + [1] * 50) * 2, ["a", "b"])
    learn, test = data.split(0.2)
    assert np.bincount(test.classes).tolist() == [20, 20]
    assert np.bincount(learn.classes).tolist() == [80, 80]


def test_a_label_with_few_texts_in_copies_is_tested_where_it_has_two() -> None:
    data = labelled(["x", "y", "z"] * 3 + ["one"] * 5, [0] * 9 + [1] * 5, ["many", "one"])
    test = data.split(0.1)[1]
    assert len(test) == 3
    assert len(set(test.texts)) == 1
    assert set(test.classes.tolist()) == {0}


def test_without_copies_the_split_is_what_it_always_was() -> None:
    data = labelled([f"text {row}" for row in range(23)], [row % 2 for row in range(23)], ["a", "b"])
    rng = np.random.default_rng(5)
    chosen = [row for label in (0, 1) for row in rng.permutation(np.arange(label, 23, 2))[:2].tolist()]
    assert data.split(0.2, 5)[1].texts == [f"text {row}" for row in sorted(chosen)]


def test_copies_and_labels_that_were_never_tested_are_told(tmp_path: Path) -> None:
    rows = [*ROWS, *ROWS[:4], {"text": "rain in Oslo", "label": "weather"}]
    result = train(write(tmp_path / "data.jsonl", rows), tmp_path / "out", "--kind", "linear")
    assert "Note: 4 of 17 texts are copies of others." in result.output
    assert "Labels missing from the held-out texts: 'weather'." in result.output
    assert re.search(r"weather +0 +0 +0  never tested\n", result.output)
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["never_tested"] == ["weather"]


def test_labels_that_are_the_same_number_are_told(tmp_path: Path) -> None:
    rows = [{"text": f"{label} {number}", "label": label} for label in (1, 1.0, 2) for number in range(5)]
    found = read_labelled(write(tmp_path / "data.jsonl", rows), text_field="text", label_field="label")
    assert found.similar_labels() == [("1", "1.0")]
    assert labelled([], [], ["inf", "Infinity", "nan", "NaN "]).similar_labels() == [("nan", "NaN ")]


def test_numbers_and_truth_values_are_labels(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": label} for label in (True, 3, "x")]
    found = read_labelled(write(tmp_path / "data.jsonl", rows), text_field="text", label_field="label")
    assert found.labels == ["3", "True", "x"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--kind", "head"), "needs --encoder"),
        (("--kind", "linear", "--encoder", "a/b"), "--encoder does not apply to --kind"),
        (("--kind", "linear", "--minutes", "1"), "--minutes does not apply to --kind linear"),
        (("--kind", "linear", "--label", "text"), "12 texts with 12 labels leaves 12 .* check --label"),
        (("--kind", "linear", "--seed", "-1"), "--seed"),
    ],
)
def test_options_that_would_be_ignored_are_refused(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = train(write(tmp_path / "data.jsonl", ROWS), tmp_path / "out", *options)
    assert result.exit_code == 2
    assert re.search(message, " ".join(result.output.split()))
    assert not (tmp_path / "out").exists()


@pytest.fixture
def slow_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that must not be reached."""

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the folder was not checked before the training")

    monkeypatch.setattr(linear, "train_linear", never)


def a_file(out: Path) -> None:
    out.write_text("")


def below_a_file(out: Path) -> None:
    out.parent.rmdir()
    out.parent.write_text("")


def with_notes(out: Path) -> None:
    out.mkdir()
    (out / "notes.txt").write_text("mine")


def with_a_model_of_somebody(out: Path) -> None:
    out.mkdir()
    (out / "config.json").write_text("{}")


@pytest.mark.usefixtures("slow_training")
@pytest.mark.parametrize("make", [a_file, below_a_file, with_notes, with_a_model_of_somebody])
def test_a_folder_that_cannot_be_the_output_is_refused_before_the_training(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    out = tmp_path / "place" / "out"
    out.parent.mkdir()
    make(out)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    result = train(write(tmp_path / "data.jsonl", ROWS), out, "--kind", "linear")
    assert isinstance(result.exception, OutputError)
    assert str(out) in str(result.exception)
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted([*before, "data.jsonl"])


def test_an_interrupted_training_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = write(tmp_path / "data.jsonl", ROWS), tmp_path / "deep" / "out"
    with monkeypatch.context() as patch:
        patch.setattr(training_result, "evaluate", interrupted)
        assert train(data, out, "--kind", "linear").exit_code == 1
        assert not out.parent.exists()
        assert train(data, out, "--kind", "linear").exit_code == 1
    assert train(data, out, "--kind", "linear").exit_code == 0
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    assert sorted(first) == ["evaluation.json", "linear.json", "linear.npz"]
    monkeypatch.setattr(training_result, "evaluate", interrupted)
    assert train(data, out, "--kind", "linear", "--seed", "1").exit_code == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_classifier_of_another_kind_replaces_all_of_the_old_one(tmp_path: Path) -> None:
    data, out = write(tmp_path / "data.jsonl", [*ROWS, {"text": "x", "label": "Ball "}]), tmp_path / "out"
    first = train(data, out, "--kind", "linear")
    assert "'Ball ' and 'ball' are treated as different labels" in first.output
    assert train(data, out, "--kind", "deberta", "--minutes", "0.001").exit_code == 0
    assert not list(out.glob("linear*"))
    assert json.loads((out / "evaluation.json").read_text())["kind"] == "deberta"
    labelled = run(DistributedDataClassifier(model_identifier=str(out)).decompose(), batch_of(["ball 1"]))
    assert labelled.column("preds").to_pylist()[0] in ("ball", "bank", "Ball ")
