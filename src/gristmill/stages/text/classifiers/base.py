"""The base of classifiers: the stage that runs the network, and the composite of tokenizer, network and filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError, did_you_mean
from gristmill.stages.base import CompositeStage, ProcessingStage
from gristmill.stages.text.models.model import check_padding_side, check_positive
from gristmill.stages.text.models.sources import CONFIG_FILES, Secret, check_identifier, fetch_model, hide, read_config
from gristmill.stages.text.models.token_batches import TokenBatchModelStage
from gristmill.stages.text.models.tokenizer import TokenizerStage
from gristmill.stages.text.models.tokens import SEQ_ORDER_FIELD, TOKEN_FIELDS, PaddingSide, format_name_with_suffix
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    import torch

    from gristmill.stages.text.classifiers.deberta import Deberta

__all__ = ["ClassifierModelStage", "Deberta", "DistributedDataClassifier"]

CpuBackend = Literal["torch", "torch-int8"]
CPU_BACKENDS: tuple[str, ...] = ("torch", "torch-int8")


def __getattr__(name: str) -> Any:
    # The network is a torch module: importing this one alone must not load torch.
    if name == "Deberta":
        from gristmill.stages.text.classifiers.deberta import Deberta

        return Deberta
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class ClassifierModelStage(TokenBatchModelStage):
    """Adds the most probable label of each document, and optionally the probabilities.

    Args:
        model_identifier: A hub id, a local folder, or `package:NAME`.
        cache_dir: Cache folder for downloads; None for the hub's default.
        label_field: Column for the label.
        score_field: Column for the probabilities of all classes; None omits them.
        model_inference_batch_size: Maximum number of documents per forward pass.
        has_seq_order: Whether the tokenizer sorted the documents; if so, the original order is restored.
        padding_side: Side on which shorter documents are padded.
        autocast: Use a faster 16-bit type, if the device has one.
        hf_token: Access token for gated models.
        keep_tokens: Keep the token columns.
        max_seq_length: Maximum number of tokens of existing token lists; longer ones are cut.
        cpu_backend: What runs the network on the CPU: `torch`, or `torch-int8` (faster, but a few labels differ).
        expected_labels: Labels that the model must have, because a later stage uses them.
        scores_by_label: Store the probabilities as a record with a field for each label, instead of a list in the order
            of the model's labels.
    """

    notes_changes = True
    fork_safe = True
    scores_by_label = False

    def __init__(
        self,
        model_identifier: str,
        cache_dir: str | None = None,
        label_field: str = "preds",
        score_field: str | None = None,
        model_inference_batch_size: int = 256,
        has_seq_order: bool = True,
        padding_side: PaddingSide = "right",
        autocast: bool = True,
        *,
        hf_token: str | Secret | None = None,
        keep_tokens: bool = False,
        max_seq_length: int | None = None,
        cpu_backend: CpuBackend = "torch",
        expected_labels: Sequence[str] = (),
        scores_by_label: bool = False,
    ) -> None:
        super().__init__(
            model_identifier=model_identifier,
            cache_dir=cache_dir,
            model_inference_batch_size=model_inference_batch_size,
            has_seq_order=has_seq_order,
            padding_side=padding_side,
            unpack_inference_batch=False,
            autocast=autocast,
        )
        check_cpu_backend(cpu_backend)
        self._hf_token = hide(hf_token)
        self.label_field = label_field
        self.score_field = score_field
        self.keep_tokens = keep_tokens
        self.max_seq_length = max_seq_length
        self.cpu_backend = cpu_backend
        self.expected_labels = tuple(expected_labels)
        self.labels: list[str] = []
        if scores_by_label:  # otherwise not stored, so that outputs of earlier versions, which lack it, can be resumed
            self.scores_by_label = True

    def outputs(self) -> tuple[list[str], list[str]]:
        """The label column, and the probability column if requested."""
        return ["data"], [self.label_field] + ([self.score_field] if self.score_field is not None else [])

    def check_folder(self, folder: Path) -> None:
        """Reject a local folder without settings or weights, or whose labels lack an expected one."""
        super().check_folder(folder)
        named = read_config(folder).get("id2label")
        if isinstance(named, dict):
            self._check_labels(list(map(str, named.values())))

    def _check_labels(self, labels: Sequence[str]) -> None:
        unknown = [label for label in self.expected_labels if label not in labels]
        if unknown:
            raise UsageError(
                f"filter_by contains {unknown[0]!r}, which {self.model_identifier} never "
                f"returns.{did_you_mean(unknown[0], labels)} Its labels are {', '.join(map(repr, labels))}."
            )

    def _setup(self, local_files_only: bool = True) -> None:
        """Load the network onto the GPU or CPU from local files; otherwise download its base model's configuration."""
        if local_files_only:
            self._load()
            return
        config = read_config(self.model_path)
        if "base_model" in config and "base_config" not in config:
            fetch_model(config["base_model"], cache_dir=self.cache_dir, token=self._hf_token, files=CONFIG_FILES)

    def _load(self) -> None:
        from gristmill.stages.text.classifiers.deberta import load_classifier
        from gristmill.stages.text.models.devices import place

        network, self.labels = load_classifier(self.model_path, cache_dir=self.cache_dir)
        self.check_length(network)
        self._check_labels(self.labels)
        if self.padding_side == "left" and getattr(network, "window", None) is not None:
            raise UsageError(
                f"padding_side='left': {self.model_identifier} reads the first {network.window} tokens of a text, so "
                "padding must be on the right."
            )
        self.model = place(
            network,
            self._worker_metadata,
            cpus=self.resources.cpus,
            cpu_backend=self.cpu_backend,
            autocast=self.autocast,
        )

    def process_model_output(
        self, outputs: torch.Tensor, model_input_batch: dict[str, torch.Tensor] | None = None
    ) -> dict[str, Any]:
        """The probabilities and the most probable label of each document of a batch."""
        probabilities = outputs.float().cpu().numpy()
        best = probabilities.argmax(axis=1)
        return {"preds": np.array(self.labels, dtype=object)[best], "probs": probabilities}

    def output_columns(self, collected_output: Any) -> Mapping[str, pa.Array]:
        """The labels as text, and the probabilities as lists or by label."""
        columns = {self.label_field: pa.array(collected_output["preds"].tolist(), pa.large_string())}
        if self.score_field is not None:
            found = collected_output["probs"]
            columns[self.score_field] = by_label(found, self.labels) if self.scores_by_label else vectors(found)
        return columns


@dataclass(kw_only=True, eq=False, repr=False)
class DistributedDataClassifier(CompositeStage[DocumentBatch, DocumentBatch]):
    """Labels documents with a classifier: tokenizer, network, and optionally a filter on the labels.

    Use it with any model in the form of `Deberta` (or a transformers sequence classifier), or as the base class of one
    with its own settings.

    Args:
        model_identifier: A hub id, a local folder, or `package:NAME`.
        cache_dir: Cache folder for downloads; None for the hub's default.
        label_field: Column for the label.
        score_field: Column for the probabilities of all classes; None omits them.
        text_field: Column that holds the text.
        filter_by: Keep only documents with one of these labels.
        max_chars: Maximum number of characters of a text to tokenize; None for all.
        max_seq_length: Maximum number of tokens per document; None for the tokenizer's own limit.
        padding_side: Side on which shorter documents are padded.
        sort_by_length: Process documents of similar length together; the original order is restored.
        model_inference_batch_size: Maximum number of documents per forward pass.
        autocast: Use a faster 16-bit type, if the device has one.
        keep_tokens: Keep the token columns.
        use_existing_tokens: Use existing token columns instead of tokenizing.
        hf_token: Access token for gated models; it is never shown.
        cpu_backend: What runs the network on the CPU: `torch` or `torch-int8`.
        scores_by_label: Store the probabilities as a record with a field for each label, instead of a list in the order
            of the model's labels.

    Example:
        >>> classifier = DistributedDataClassifier(model_identifier="models/topic", filter_by=["science"])
        >>> [stage.name for stage in classifier.decompose()][:2]
        ['topic_tokenizer', 'topic_model']
    """

    model_identifier: str
    cache_dir: str | None = None
    label_field: str = "preds"
    score_field: str | None = None
    text_field: str = "text"
    filter_by: list[str] | None = None
    max_chars: int | None = None
    max_seq_length: int | None = None
    padding_side: PaddingSide = "right"
    sort_by_length: bool = True
    model_inference_batch_size: int = 256
    autocast: bool = True
    keep_tokens: bool = False
    use_existing_tokens: bool = False
    hf_token: Any = field(default=None)
    cpu_backend: CpuBackend = "torch"
    scores_by_label: bool = False

    def __post_init__(self) -> None:
        self.model_identifier = check_identifier(self.model_identifier)
        if type(self).name == DistributedDataClassifier.name:  # a subclass may have its own
            self.name = format_name_with_suffix(self.model_identifier)
        self.hf_token = hide(self.hf_token)
        check_model_options(self)
        check_filter_by(self.filter_by)
        check_cpu_backend(self.cpu_backend)
        check_new_columns(self, "label_field", "score_field")
        check_scores_by_label(self)

    def filter_by_category(self, value: str) -> bool:
        """Whether a document with this label is kept."""
        return self.filter_by is None or value in self.filter_by

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        """The tokenizer, the network, and the filter."""
        return compose(self, self.model_stage())

    def model_stage(self) -> TokenBatchModelStage:
        """The stage that runs the network."""
        return ClassifierModelStage(
            model_identifier=self.model_identifier,
            cache_dir=self.cache_dir,
            label_field=self.label_field,
            score_field=self.score_field,
            model_inference_batch_size=self.model_inference_batch_size,
            has_seq_order=self.sort_by_length and not self.use_existing_tokens,
            padding_side=self.padding_side,
            autocast=self.autocast,
            hf_token=self.hf_token,
            keep_tokens=self.keep_tokens,
            max_seq_length=self.max_seq_length if self.use_existing_tokens else None,
            cpu_backend=self.cpu_backend,
            expected_labels=self.filter_by or (),
            scores_by_label=self.scores_by_label,
        )


def compose(
    classifier: Any, model: TokenBatchModelStage, *, tokenizer_identifier: str | None = None
) -> list[ProcessingStage[Any, Any]]:
    """The stages of a classifier around its model stage: tokenizer before, filter on the labels after."""
    stages: list[ProcessingStage[Any, Any]] = []
    if not classifier.use_existing_tokens:
        tokenizer = TokenizerStage(
            model_identifier=tokenizer_identifier or classifier.model_identifier,
            cache_dir=classifier.cache_dir,
            hf_token=classifier.hf_token,
            text_field=classifier.text_field,
            max_chars=classifier.max_chars,
            max_seq_length=classifier.max_seq_length,
            padding_side=classifier.padding_side,
            sort_by_length=classifier.sort_by_length,
        )
        model.token_settings = tokenizer.settings
        stages.append(tokenizer)
    stages.append(model)
    stages.extend(label_filter(classifier))
    return stages


def label_filter(classifier: Any) -> list[ProcessingStage[Any, Any]]:
    """The stage that drops documents by label, if requested."""
    if classifier.filter_by is None:
        return []
    from gristmill.stages.text.classifiers.label_filter import LabelFilter

    stage = LabelFilter(classifier.filter_by_category, classifier.label_field, classifier.filter_by)
    return [stage.with_(name=f"{classifier.name}_filter")]


def vectors(values: np.ndarray[Any, Any]) -> pa.Array:
    """The rows of a matrix as an Arrow column of lists of float32."""
    matrix = np.ascontiguousarray(values, np.float32)
    offsets = np.arange(0, matrix.size + 1, matrix.shape[1] or 1, dtype=np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(matrix.reshape(-1)))


def by_label(values: np.ndarray[Any, Any], labels: Sequence[str]) -> pa.Array:
    """The rows of a matrix as an Arrow column of records, with a field of float32 for each label."""
    matrix = np.asarray(values, np.float32)
    return pa.StructArray.from_arrays([pa.array(matrix[:, at]) for at in range(len(labels))], names=list(labels))


def check_scores_by_label(classifier: Any) -> None:
    """Reject `scores_by_label` without a column for it."""
    if classifier.scores_by_label and classifier.score_field is None:
        raise UsageError("scores_by_label=True needs score_field: the column for the probabilities.")


def check_filter_by(labels: Any, *, known: Sequence[Any] | None = None) -> None:
    """Reject a filter that would drop everything by mistake; `known` are all labels, if they are fixed."""
    if labels is None:
        return
    if isinstance(labels, str) or not isinstance(labels, Sequence) or not labels:
        raise UsageError(f"filter_by={labels!r}: must be a list with at least one label to keep, or None to keep all.")
    for label in labels:
        if known is None and not isinstance(label, str):
            raise UsageError(f"filter_by contains {label!r}, but labels are strings: use {str(label)!r}.")
        if known is not None and label not in known:
            raise UsageError(
                f"filter_by contains {label!r}, which is never returned.{did_you_mean(str(label), map(str, known))} "
                f"The labels are {', '.join(map(repr, known))}."
            )


def check_model_options(stage: Any) -> None:
    """Reject early what the parts of a classifier or embedder would reject later."""
    for option in ("max_chars", "max_seq_length", "model_inference_batch_size"):
        check_positive(option, getattr(stage, option))
    check_padding_side(stage.padding_side)


def check_new_columns(stage: Any, *options: str) -> None:
    """Reject result columns that would overwrite the text, the tokens, or each other.

    Args:
        stage: A classifier or embedder with a `text_field`.
        *options: The names of its options that name new columns; one that is None is off.
    """
    taken = {stage.text_field: "the text"} | dict.fromkeys((*TOKEN_FIELDS, SEQ_ORDER_FIELD), "tokens")
    for option in options:
        column = getattr(stage, option)
        if column is None:
            continue
        if not isinstance(column, str) or not column:
            raise UsageError(f"{option}={column!r}: must be a column name.")
        if column in taken:
            raise UsageError(
                f"{option}={column!r}: {type(stage).__name__} uses that column for {taken[column]}: choose another "
                "name."
            )
        taken[column] = f"{option}="


def check_cpu_backend(name: str) -> None:
    """Reject an unknown CPU backend."""
    if name == "onnx":
        raise UsageError(
            "cpu_backend='onnx' was removed, because 'torch' returns the same labels faster: omit cpu_backend, or use "
            "'torch'."
        )
    if name not in CPU_BACKENDS:
        raise UsageError(f"cpu_backend={name!r}: must be one of {CPU_BACKENDS}.{did_you_mean(name, CPU_BACKENDS)}")
