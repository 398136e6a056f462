"""Labels in the ledger, and models that change under a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import ResumeError, UsageError
from gristmill.ledger import Ledger
from gristmill.pipeline import Pipeline
from gristmill.stages.text.classifiers import DistributedDataClassifier, LinearClassifier
from gristmill.stages.text.classifiers.label_filter import LabelFilter
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.tasks import DocumentBatch
from gristmill.training.labelled_data import LabelledTexts
from gristmill.training.linear import train_linear
from tests.unit.stages.text.models.tiny import make_classifier, texts


def pipeline(folder: Path, *stages: Any, records: int = 12) -> Pipeline:
    lines = [{"id": f"d{number}", "text": text} for number, text in enumerate(texts(records))]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Pipeline("p", stages=[JsonlReader(str(folder / "in.jsonl")), *stages, JsonlWriter(str(folder / "out"))])


def test_the_label_is_the_reason(tmp_path: Path) -> None:
    model = make_classifier(tmp_path / "quality")
    every = DistributedDataClassifier(model_identifier=str(model))
    pipeline(tmp_path, every).run(LocalExecutor({"num_cpus": 0}))
    (written,) = (tmp_path / "out").glob("*.jsonl")
    given = {row["id"]: row["preds"] for row in map(json.loads, written.read_text().splitlines())}
    assert len(set(given.values())) > 1
    kept = max(given.values())
    some = DistributedDataClassifier(model_identifier=str(model), filter_by=[kept])
    result = pipeline(tmp_path, some).run(LocalExecutor({"num_cpus": 0}), fresh=True)
    dropped = [label for label in given.values() if label != kept]
    (reasons,) = [stage.dropped for stage in result.report.stages if stage.name == "quality_classifier_filter"]
    assert reasons == {f"label {label!r}": dropped.count(label) for label in set(dropped)}
    document = next(name for name, label in given.items() if label == dropped[0])
    assert f"label {dropped[0]!r}" in str(Ledger(str(tmp_path / "out")).why(document))


def test_labels_of_every_kind_are_told_apart() -> None:
    for values, wanted in (
        (["a", None, "b", "a"], ["a"]),
        ([True, False, True, None], [True]),
        ([1, 2, 3, 1], [1]),
    ):
        batch = DocumentBatch(data=pa.table({"label": pa.array(values)}))
        kept = LabelFilter(wanted.__contains__, "label", wanted).process(batch)
        assert kept.column("label").to_pylist() == [value for value in values if value in wanted]


def test_a_label_that_is_no_text_is_refused_where_it_is_given() -> None:
    for kind, option in ((DistributedDataClassifier, "model_identifier"), (LinearClassifier, "model_path")):
        with pytest.raises(UsageError, match="filter_by contains 1, but labels are strings: use '1'"):
            kind(**{option: "m", "filter_by": [1]})


def test_a_run_is_not_resumed_with_a_model_that_was_trained_again(tmp_path: Path) -> None:
    def train(first: str, second: str) -> None:
        words = [f"meow purr {number}" for number in range(9)] + [f"bark woof {number}" for number in range(9)]
        labels = sorted([first, second])
        classes = np.array([labels.index(first)] * 9 + [labels.index(second)] * 9)
        train_linear(LabelledTexts(words, classes, labels)).save(tmp_path / "m")

    linear = LinearClassifier(model_path=str(tmp_path / "m"))
    train("cat", "dog")
    pipeline(tmp_path, linear).run(LocalExecutor({"num_cpus": 0}))
    train("cat", "dog")
    pipeline(tmp_path, linear).run(LocalExecutor({"num_cpus": 0}))
    train("dog", "cat")
    with pytest.raises(ResumeError, match="model_files changed"):
        pipeline(tmp_path, linear).run(LocalExecutor({"num_cpus": 0}))


def test_a_network_that_changed_is_noticed_too(tmp_path: Path) -> None:
    classifier = DistributedDataClassifier(model_identifier=str(make_classifier(tmp_path / "quality")))
    pipeline(tmp_path, classifier).run(LocalExecutor({"num_cpus": 0}))
    make_classifier(tmp_path / "quality", seed=1)
    with pytest.raises(ResumeError, match="model_files changed"):
        pipeline(tmp_path, classifier).run(LocalExecutor({"num_cpus": 0}))


def test_labels_that_replace_older_ones_are_an_effect(tmp_path: Path) -> None:
    train_linear(LabelledTexts(["meow", "meow", "bark", "bark"], np.array([0, 0, 1, 1]), ["cat", "dog"])).save(
        tmp_path / "m"
    )
    records = [{"id": str(number), "text": "meow", "preds": "old"} for number in range(10_000)]
    (tmp_path / "many.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    classifier = LinearClassifier(model_path=str(tmp_path / "m"))
    stages = [JsonlReader(str(tmp_path / "many.jsonl")), classifier, JsonlWriter(str(tmp_path / "many"))]
    result = Pipeline("p", stages=stages).run(LocalExecutor({"num_cpus": 0}))
    assert result.report.alarms == ()
