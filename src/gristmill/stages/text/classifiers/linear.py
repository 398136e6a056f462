"""A linear classifier over words and pairs of words, which runs at the speed of a filter.

In the manner of Joulin et al., "Bag of Tricks for Efficient Text Classification", arXiv:1607.01759, with hashed
features weighted by rarity instead of learned word vectors.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.errors import ModelLoadError, ModelNotFoundError, UsageError, did_you_mean
from gristmill.kernels.linear_text import bucket_table, linear_scores
from gristmill.kernels.text_column import text_column
from gristmill.stages.base import CompositeStage, ProcessingStage
from gristmill.stages.text.classifiers.base import (
    by_label,
    check_filter_by,
    check_new_columns,
    check_scores_by_label,
    label_filter,
    vectors,
)
from gristmill.stages.text.models.sources import folder_digest
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.backends.base import WorkerMetadata

CONFIG_NAME, WEIGHTS_NAME = "linear.json", "linear.npz"
_NETWORK_CONFIG = "config.json"
SHIPPED_PREFIX = "shipped:"
_FORMAT = 2
_MOST_BITS = 32
_MOST_DEFLATED = 1032  # what the compression of zip archives can save at most
_ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError)

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


@dataclass(slots=True)
class LinearModel:
    """The weights of a linear classifier.

    Attributes:
        labels: The labels by class number.
        bits: Words and pairs are hashed into 2 to this power buckets.
        buckets: The used buckets, in order.
        weights: Used buckets × classes.
        rarity: The weight of each of these buckets.
        bias: One value per class.
    """

    labels: list[str]
    bits: int
    buckets: Integers
    weights: Floats
    rarity: Floats
    bias: Floats
    _table: Integers = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._table = bucket_table(self.buckets)

    def probabilities(self, texts: pa.Array | Sequence[str]) -> Floats:
        """The probability of each class for each text; a missing text counts as empty."""
        column = text_column(texts if isinstance(texts, pa.Array | pa.ChunkedArray) else list(texts))
        scores = linear_scores(
            column.data, column.offsets, self.bits, self.buckets, self._table, self.weights, self.rarity, self.bias
        )
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        result: Floats = scores / scores.sum(axis=1, keepdims=True)
        return result

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model to `folder`, with 16-bit weights, which change no label in practice."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        facts = {"format": _FORMAT, "labels": self.labels, "bits": self.bits}
        np.savez_compressed(
            place / WEIGHTS_NAME,
            buckets=self.buckets.astype(np.uint32),
            weights=self.weights.astype(np.float16),
            rarity=self.rarity.astype(np.float16),
            bias=self.bias,
        )
        (place / CONFIG_NAME).write_text(json.dumps(facts, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> LinearModel:
        """The model in `folder`, or a shipped one (`shipped:NAME`).

        Raises:
            ModelNotFoundError: It does not exist.
            ModelLoadError: Its files are damaged, or from another version.

        Example:
            >>> LinearModel.load("shipped:text_kind").labels
            ['definition', 'play', 'review', 'speech', 'web page']
        """
        place = linear_folder(folder)
        if not (place / CONFIG_NAME).is_file():
            network = (place / _NETWORK_CONFIG).is_file()
            raise ModelNotFoundError(
                f"{place} is not a linear classifier ({CONFIG_NAME} is missing)"
                + (
                    f" but a network. Use it with DistributedDataClassifier(model_identifier={str(folder)!r})."
                    if network
                    else ". Create one with 'gristmill classifier train DATA.jsonl --kind linear --out DIR'."
                ),
                identifier=str(folder),
                files=[CONFIG_NAME, WEIGHTS_NAME],
                searched=[str(place)],
            )
        try:
            facts = json.loads((place / CONFIG_NAME).read_text(encoding="utf-8"))
            if facts["format"] != _FORMAT:
                raise ModelLoadError(
                    f"{place / CONFIG_NAME} has format {facts['format']!r}; this version reads {_FORMAT}. "
                    "Train the classifier again.",
                    identifier=str(folder),
                )
            labels, bits = facts["labels"], facts["bits"]
            arrays = _read_arrays(place / WEIGHTS_NAME, ("buckets", "weights", "rarity", "bias"))
        except ModelLoadError:
            raise
        except (OSError, ValueError, TypeError, LookupError, EOFError, RecursionError, *_ARCHIVE_ERRORS) as error:
            raise ModelLoadError(
                f"The linear classifier in {place} cannot be read ({type(error).__name__}: {error}). Its files are "
                f"{CONFIG_NAME} and {WEIGHTS_NAME}: copy them again, or train the classifier again.",
                identifier=str(folder),
            ) from error
        problem = _contradiction(labels, bits, *arrays)
        if problem:
            raise ModelLoadError(
                f"The linear classifier in {place} cannot be used: {problem}. Copy both files of one training, or "
                "train it again.",
                identifier=str(folder),
            )
        weights, rarity, bias = (np.ascontiguousarray(array, np.float32) for array in arrays[1:])
        return cls(labels, bits, np.ascontiguousarray(arrays[0], np.int64), weights, rarity, bias)


def _contradiction(labels: Any, bits: Any, buckets: Array, weights: Array, rarity: Array, bias: Array) -> str:
    """What is inconsistent in the files of a model; kernels do not check them again."""
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
        return f"its labels are {str(labels)[:100]}, not a list of texts"
    if type(bits) is not int or not 1 <= bits <= _MOST_BITS:
        return f"its bits are {str(bits)[:100]}, not a whole number from 1 to {_MOST_BITS}"
    if buckets.dtype.kind not in "iu" or any(array.dtype.kind != "f" for array in (weights, rarity, bias)):
        return "its arrays are not of numbers"
    shapes = [array.shape for array in (buckets, weights, rarity, bias)]
    if buckets.ndim != 1 or shapes[1:] != [(len(buckets), len(labels)), (len(buckets),), (len(labels),)]:
        return f"the shapes in {WEIGHTS_NAME} are {shapes}, but {CONFIG_NAME} has {len(labels)} labels"
    if len(buckets) and not (np.all(buckets[1:] > buckets[:-1]) and buckets[0] >= 0 and int(buckets[-1]) < 1 << bits):
        return f"its buckets are not in order, or not below 2 to the power of its {bits} bits"
    return ""


def _read_arrays(path: Path, names: Sequence[str]) -> list[Array]:
    """Arrays of an archive, after checking that their headers claim no more than the archive holds."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        for name in names:
            info = archive.getinfo(f"{name}.npy")
            with archive.open(info) as member:
                version = np.lib.format.read_magic(member)
                read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, _, kind = read_header[version](member)
                claimed = math.prod(shape) * kind.itemsize
                if claimed > info.file_size or info.file_size > _MOST_DEFLATED * (info.compress_size + 1):
                    raise ValueError(f"{name} claims {claimed:,} bytes, but the file has {info.compress_size:,}")
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            return [arrays[name] for name in names]


def shipped_models() -> list[str]:
    """The names of the linear classifiers shipped with the package."""
    return sorted(path.parent.name for path in _shipped_folder().glob(f"*/{CONFIG_NAME}"))


def linear_folder(model_path: str | os.PathLike[str]) -> Path:
    """The folder of `model_path`: a path, or `shipped:NAME` for a model of the package.

    Raises:
        ModelNotFoundError: No such model is shipped.
    """
    text = str(model_path)
    if not text.startswith(SHIPPED_PREFIX):
        return Path(model_path).expanduser()
    name = text.removeprefix(SHIPPED_PREFIX)
    known = shipped_models()
    if name not in known:
        raise ModelNotFoundError(
            f"There is no shipped model {name!r}.{did_you_mean(name, known)} Available: {', '.join(known)}.",
            identifier=text,
            files=[CONFIG_NAME, WEIGHTS_NAME],
            searched=[str(_shipped_folder())],
        )
    return _shipped_folder() / name


def _shipped_folder() -> Path:
    return Path(__file__).parent / "shipped"


def _short_name(model_path: str) -> str:
    return Path(model_path.removeprefix(SHIPPED_PREFIX)).name


class LinearModelStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds the most probable label of each document, and optionally the probabilities.

    Args:
        model_path: The folder of the model, or `shipped:NAME` for one shipped with the package.
        text_field: Column that holds the text.
        label_field: Column for the label.
        score_field: Column for the probabilities of all classes; None omits them.
        expected_labels: Labels that the model must have, because a later stage uses them.
        scores_by_label: Store the probabilities as a record with a field for each label, instead of a list in the order
            of the model's labels.
    """

    for_dropped = "pass"
    notes_changes = True
    fork_safe = True
    scores_by_label = False
    text_parameter = "text_field"
    fills_text = False

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        text_field: str = "text",
        label_field: str = "preds",
        score_field: str | None = None,
        expected_labels: Sequence[str] = (),
        scores_by_label: bool = False,
    ) -> None:
        self.model_path = os.fspath(model_path)
        self.name = f"{_short_name(self.model_path)}_linear"
        self.text_field = text_field
        self.label_field = label_field
        self.score_field = score_field
        self.expected_labels = tuple(expected_labels)
        self._model: LinearModel | None = None
        if scores_by_label:  # otherwise not stored, as in network classifiers
            self.scores_by_label = True

    def inputs(self) -> tuple[list[str], list[str]]:
        """The text."""
        return ["data"], [self.text_field]

    def outputs(self) -> tuple[list[str], list[str]]:
        """The label column, and the probability column if requested."""
        return ["data"], [self.label_field] + ([self.score_field] if self.score_field is not None else [])

    def content_digest(self) -> str | None:
        """The fingerprint of the model's folder; for a shipped model, the version of the package is enough."""
        return folder_digest(self.model_path)

    def check_environment(self) -> None:
        """Reject a model that is missing or damaged, or whose labels lack an expected one."""
        self._loaded()

    def _loaded(self) -> LinearModel:
        model = LinearModel.load(self.model_path)
        for label in self.expected_labels:
            if label not in model.labels:
                raise UsageError(
                    f"filter_by contains {label!r}, which {self.model_path} never "
                    f"returns.{did_you_mean(label, model.labels)} Its labels are {', '.join(model.labels)}."
                )
        return model

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Load the weights."""
        self._model = self._loaded()

    def warm_up(self) -> None:
        """Compile the kernel, or load it from the cache."""
        nothing = LinearModel([""], 1, np.arange(1), *(np.zeros(shape, np.float32) for shape in ((1, 1), 1, 1)))
        nothing.probabilities([""])

    def teardown(self) -> None:
        """Release the weights."""
        self._model = None

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with a label for each document."""
        if self._model is None:
            self.setup()
        model: Any = self._model
        found = model.probabilities(batch.text(self.text_field))
        best = np.array(model.labels, dtype=object)[found.argmax(axis=1)]
        result = batch.with_column(self.label_field, pa.array(best.tolist(), pa.large_string()))
        if self.score_field is None:
            return result
        scores = by_label(found, model.labels) if self.scores_by_label else vectors(found)
        return result.with_column(self.score_field, scores)


@dataclass(kw_only=True, eq=False, repr=False)
class LinearClassifier(CompositeStage[DocumentBatch, DocumentBatch]):
    """Labels documents with a trained linear classifier, at the speed of a filter.

    Args:
        model_path: The folder written by `gristmill classifier train --kind linear`, or `shipped:text_kind` for the
            model shipped with the package: definition, play, review, speech or web page.
        label_field: Column for the label.
        score_field: Column for the probabilities of all classes; None omits them.
        text_field: Column that holds the text.
        filter_by: Keep only documents with one of these labels.
        scores_by_label: Store the probabilities as a record with a field for each label, instead of a list in the order
            of the model's labels.

    Example:
        >>> LinearClassifier(model_path="models/topic", filter_by=["science"]).name
        'topic_classifier'
    """

    model_path: str | os.PathLike[str]
    label_field: str = "preds"
    score_field: str | None = None
    text_field: str = "text"
    filter_by: list[str] | None = None
    scores_by_label: bool = False

    def __post_init__(self) -> None:
        self.model_path = os.fspath(self.model_path)
        self.name = f"{_short_name(self.model_path)}_classifier"
        check_filter_by(self.filter_by)
        check_new_columns(self, "label_field", "score_field")
        check_scores_by_label(self)

    def filter_by_category(self, value: str) -> bool:
        """Whether a document with this label is kept."""
        return self.filter_by is None or value in self.filter_by

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        """The model, and the filter."""
        model = LinearModelStage(
            self.model_path,
            text_field=self.text_field,
            label_field=self.label_field,
            score_field=self.score_field,
            expected_labels=self.filter_by or (),
            scores_by_label=self.scores_by_label,
        )
        return [model, *label_filter(self)]
