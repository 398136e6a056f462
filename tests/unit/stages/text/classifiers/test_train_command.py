"""`gristmill classifier train` with data and folders that cannot work, and interrupted in the middle."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gristmill.cli.classifier import command
from gristmill.errors import InputError, OutputError
from gristmill.stages.text.classifiers import training
from gristmill.stages.text.classifiers.base import DistributedDataClassifier
from gristmill.stages.text.classifiers.labelled_data import read_labelled
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
        ({"text": "a", "label": None}, "has no 'label'"),
        ({"text": "a", "label": ""}, "has '' as 'label'"),
        ({"text": "a", "label": ["x"]}, r"has \['x'\] as 'label'"),
        ({"text": ["a"], "label": "x"}, "has a list as 'text'"),
        ({"text": 5, "label": "x"}, "has a int as 'text'"),
        ({"text": None, "label": "x"}, "has no 'text'"),
        ([1], "has no 'text'; it has list"),
    ],
)
def test_a_record_that_is_no_labelled_text_is_named(row: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_labelled(write(tmp_path / "data.jsonl", [*ROWS, row]), text_field="text", label_field="label")


def test_a_folder_and_half_a_gzip_file_are_no_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        read_labelled(tmp_path, text_field="text", label_field="label")
    packed = gzip.compress(write(tmp_path / "data.jsonl", ROWS).read_bytes())
    (tmp_path / "data.jsonl.gz").write_bytes(packed[:-20])
    with pytest.raises(InputError, match="not a whole gzip file"):
        read_labelled(tmp_path / "data.jsonl.gz", text_field="text", label_field="label")


def test_numbers_and_truth_values_are_labels(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": label} for label in (True, 3, "x")]
    found = read_labelled(write(tmp_path / "data.jsonl", rows), text_field="text", label_field="label")
    assert found.labels == ["3", "True", "x"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--kind", "head"), "needs --encoder"),
        (("--kind", "linear", "--encoder", "a/b"), "--encoder is for --kind head"),
        (("--kind", "linear", "--minutes", "1"), "--minutes is not for --kind linear"),
        (("--kind", "linear", "--label", "text"), "12 texts with 12 labels leaves 12 .* another --label"),
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

    monkeypatch.setattr(training, "train_linear", never)


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
        patch.setattr(training, "evaluate", interrupted)
        assert train(data, out, "--kind", "linear").exit_code == 1
        assert not out.parent.exists()
        assert train(data, out, "--kind", "linear").exit_code == 1
    assert train(data, out, "--kind", "linear").exit_code == 0
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    assert sorted(first) == ["evaluation.json", "linear.json", "linear.npz"]
    monkeypatch.setattr(training, "evaluate", interrupted)
    assert train(data, out, "--kind", "linear", "--seed", "1").exit_code == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_classifier_of_another_kind_replaces_all_of_the_old_one(tmp_path: Path) -> None:
    data, out = write(tmp_path / "data.jsonl", [*ROWS, {"text": "x", "label": "Ball "}]), tmp_path / "out"
    first = train(data, out, "--kind", "linear")
    assert "'Ball ' and 'ball' are learned as different labels" in first.output
    assert train(data, out, "--kind", "deberta", "--minutes", "0.001").exit_code == 0
    assert not list(out.glob("linear*"))
    assert json.loads((out / "evaluation.json").read_text())["kind"] == "deberta"
    labelled = run(DistributedDataClassifier(model_identifier=str(out)).decompose(), batch_of(["ball 1"]))
    assert labelled.column("preds").to_pylist()[0] in ("ball", "bank", "Ball ")
