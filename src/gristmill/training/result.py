"""The result of a training: the folder with the classifier, filled only when it is complete, and its accuracy."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.errors import OutputError
from gristmill.stages.text.classifiers.base import DistributedDataClassifier
from gristmill.stages.text.classifiers.linear import CONFIG_NAME, LinearClassifier
from gristmill.stages.text.models.sources import TOKENIZER_FILES
from gristmill.tasks.document import DocumentBatch
from gristmill.training.labelled_data import Integers, LabelledTexts

EVALUATION_NAME = "evaluation.json"
_WORK = ".training-"

# Files that trainings write; no others are ever replaced or removed.
_OURS = {
    "linear.json", "linear.npz", "config.json", "model.safetensors", "chat_template.jinja", EVALUATION_NAME,
    *TOKENIZER_FILES,
}  # fmt: skip


@contextmanager
def filled_when_done(out: Path) -> Iterator[Path]:
    """A folder to write a classifier to, whose files are moved to `out` when the block ends without an error.

    An existing classifier is replaced then, and stays unchanged if the block fails or is interrupted.

    Raises:
        OutputError: `out` cannot be written, or holds files that do not belong to a classifier.
    """
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in out.iterdir() if not path.name.startswith(_WORK)}
        others = sorted(names - _OURS if EVALUATION_NAME in names else names)
        if others:
            raise OutputError(
                f"The folder {out} holds files that do not belong to a classifier trained here "
                f"({', '.join(others[:5])}): pass a new or empty folder.",
                path=str(out),
            )
        work = Path(tempfile.mkdtemp(prefix=_WORK, dir=out))
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(
            f"The classifier cannot be written to {out}: {error.strerror or error}. Choose another folder.",
            path=str(out),
        ) from error
    try:
        yield work
        made = sorted(path.name for path in work.iterdir())
        for name in _OURS.difference(made):
            (out / name).unlink(missing_ok=True)
        for name in made:
            os.replace(work / name, out / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        for folder in new:
            with suppress(OSError):
                folder.rmdir()  # only if nothing was written


@dataclass(slots=True)
class Evaluation:
    """Predictions compared with the true labels: `confusion[true, predicted]` counts texts."""

    labels: list[str]
    confusion: Integers

    @classmethod
    def of(cls, truth: Integers, predicted: Integers, labels: Sequence[str]) -> Evaluation:
        """Count the pairs of true and predicted classes."""
        size = len(labels)
        counts = np.bincount(truth * size + predicted, minlength=size * size).reshape(size, size)
        return cls(list(labels), counts.astype(np.int64))

    @property
    def accuracy(self) -> float:
        """The share of texts that were predicted correctly."""
        total = int(self.confusion.sum())
        return float(np.trace(self.confusion)) / total if total else 0.0

    @property
    def never_tested(self) -> list[str]:
        """The labels that do not occur in the test set."""
        return [label for label, count in zip(self.labels, self.confusion.sum(axis=1), strict=True) if not count]

    def grades(self) -> dict[str, Any] | None:
        """For labels that are whole numbers, how close predictions are to the grades; None for other labels.

        `at_least` has precision, recall and F1 of the decision "this grade or a higher one" for each grade, which is
        how FineWeb-Edu uses its classifier (Penedo et al. 2024: grade 3 or higher).
        """
        try:
            values = np.array([float(label) for label in self.labels])
        except ValueError:
            return None
        total = int(self.confusion.sum())
        if not total or not np.all(np.isfinite(values)) or np.any(values % 1):
            return None
        grades = values.astype(np.int64)
        apart = np.abs(grades[:, None] - grades[None, :])
        found: dict[str, Any] = {
            "within_one": float(self.confusion[apart <= 1].sum()) / total,
            "mean_absolute_error": float((self.confusion * apart).sum()) / total,
            "at_least": {},
        }
        for grade in sorted(grades.tolist())[1:]:
            high = grades >= grade
            hits = int(self.confusion[np.ix_(high, high)].sum())
            precision = hits / max(1, int(self.confusion[:, high].sum()))
            recall = hits / max(1, int(self.confusion[high].sum()))
            f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
            found["at_least"][str(grade)] = {"precision": precision, "recall": recall, "f1": f1}
        return found

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        graded = self.grades()
        return {
            **({} if graded is None else {"grades": graded}),
            "accuracy": self.accuracy,
            "labels": self.labels,
            "confusion": self.confusion.tolist(),
            "never_tested": self.never_tested,
        }


def evaluate(model: Path, data: LabelledTexts) -> Evaluation:
    """The accuracy of a saved classifier on labelled texts, run as in a pipeline."""
    batch: Any = DocumentBatch(data=pa.table({"text": pa.array(data.texts, pa.large_string())}))
    linear = (model / CONFIG_NAME).is_file()
    classifier: Any = (
        LinearClassifier(model_path=str(model)) if linear else DistributedDataClassifier(model_identifier=str(model))
    )
    for stage in classifier.decompose():
        stage.setup()
        batch = stage.process(batch)
        stage.teardown()
    numbers = {label: number for number, label in enumerate(data.labels)}
    predicted = np.array([numbers[label] for label in batch.column("preds").to_pylist()], np.int64)
    return Evaluation.of(data.classes, predicted, data.labels)
