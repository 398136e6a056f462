"""Classifiers in a pipeline with real workers: shared tokens, filters, and the original order."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

os.environ.setdefault("PYTORCH_JIT", "0")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.outputs import files_of
from tests.unit.stages.text.models.tiny import batch_of, make_classifier, run, texts

pytestmark = pytest.mark.slow

TOKEN = "hf_secret_of_somebody"


def test_a_pipeline_classifies_filters_and_accounts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.classifiers.base import DistributedDataClassifier
    from gristmill.stages.text.io.reader import JsonlReader
    from gristmill.stages.text.io.writer import JsonlWriter

    first = make_classifier(tmp_path / "first")
    second = make_classifier(tmp_path / "second", labels=["x", "y"], seed=4)
    values = texts(30)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(values)))
    pipeline = Pipeline(name="classify")
    pipeline.add_stage(JsonlReader(file_paths=str(tmp_path / "in.jsonl")))
    pipeline.add_stage(
        DistributedDataClassifier(
            model_identifier=str(first),
            label_field="a",
            filter_by=["Low", "High"],
            max_seq_length=32,
            autocast=False,  # rounding to 16 bits depends on what else is in the batch
            hf_token=TOKEN,
        )
    )
    pipeline.add_stage(
        DistributedDataClassifier(model_identifier=str(second), label_field="b", max_seq_length=32, autocast=False)
    )
    pipeline.add_stage(JsonlWriter(path=str(tmp_path / "out")))
    pipeline.run()
    lines = [json.loads(line) for path in (tmp_path / "out").glob("*.jsonl") for line in path.read_text().splitlines()]
    direct = run(
        [
            *DistributedDataClassifier(
                model_identifier=str(first), label_field="a", max_seq_length=32, autocast=False
            ).decompose(),
            *DistributedDataClassifier(
                model_identifier=str(second), label_field="b", max_seq_length=32, autocast=False
            ).decompose(),
        ],
        batch_of(values),
    ).to_pandas()
    expected = direct[direct["a"].isin(["Low", "High"])][["id", "text", "a", "b"]].to_dict("records")
    assert lines == expected
    assert 0 < len(lines) < 30
    # The access token went to the workers, and is in nothing that the run wrote or said.
    written = list(files_of(tmp_path / "out").values())
    assert len(written) > 1
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]
    shown = capfd.readouterr()
    assert TOKEN not in shown.out + shown.err + caplog.text
