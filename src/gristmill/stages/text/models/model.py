"""The base class of stages that run a model over token columns, and the order of its hooks."""

from __future__ import annotations

import gc
import inspect
import logging
from collections.abc import Generator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.errors import MissingColumnError, StageDefinitionError, UsageError, require_module
from gristmill.execution.failures import quarantined_row
from gristmill.stages.base import ProcessingStage
from gristmill.stages.resources import Resources
from gristmill.stages.text.models.sources import (
    Secret,
    check_identifier,
    check_model,
    fetch_model,
    folder_digest,
    hide,
    model_folder,
    read_config,
    show,
    weight_files,
)
from gristmill.stages.text.models.tokens import (
    ATTENTION_MASK_FIELD,
    INPUT_ID_FIELD,
    SEQ_ORDER_FIELD,
    TOKEN_FIELDS,
    PaddingSide,
    clip_tokens,
    format_name_with_suffix,
    token_facts,
)
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from gristmill.backends.base import NodeInfo, WorkerMetadata

logger = logging.getLogger(__name__)

OUT_OF_MEMORY = "out_of_memory"
"""The quarantine cause of a document that does not fit into memory even alone."""

# Options of `from_pretrained` that are refused, and what to do instead.
_OWN_OPTIONS = {
    "cache_dir": "pass cache_dir= to the stage itself",
    "cache_folder": "pass cache_dir= to the stage itself",
    "padding_side": "pass padding_side= to the stage itself",
    "token": "pass hf_token= to the stage itself",
    "use_auth_token": "pass hf_token= to the stage itself",
    "local_files_only": "workers never download, so it is always on",
    "trust_remote_code": "code of a model repository is never run",
}


class ModelStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Runs a model over the token columns made by a `TokenizerStage`. A base class; not used directly.

    A subclass implements `outputs`, `setup` (or `_setup`), `process_model_output` and `create_output_dataframe`. For
    each task, in a worker, the hooks are called in this order: `yield_next_batch` once, then for every batch it yields
    `_model_forward` and `process_model_output`, then `collect_outputs` and `create_output_dataframe` once each.

    It requests one GPU, and falls back to the CPU. If memory does not suffice for a batch, the batch is halved until it
    does, later batches keep the size that worked, and a single document that does not fit is quarantined.

    Args:
        model_identifier: A hub id, a local folder, or `package:NAME`.
        cache_dir: Cache folder for downloads; None for the hub's default.
        hf_token: Access token for gated models; it is never shown.
        model_inference_batch_size: Number of documents per forward pass.
        has_seq_order: Whether the tokenizer sorted the documents by length; if so, the original order is restored.
        padding_side: Side on which shorter documents are padded.
        max_seq_length: Maximum number of tokens of a document that the model sees; the rest is cut off at the padding
            side. None does not cut.
        unpack_inference_batch: If True, the model is called as `model(**batch)`, otherwise as `model(batch)`.
        autocast: Use a faster 16-bit type, if the device has one.
    """

    for_dropped = "pass"
    notes_changes = True

    name = "model"
    fork_safe = True
    resources = Resources(cpus=1.0, gpus=1.0)
    needs_own_worker = True
    runs_without_gpu = True

    max_seq_length: int | None = None

    # Set by an out-of-memory error: the rows of a batch that are known to fit.
    _working_rows: int | None = None
    _device: torch.device | str | None = None
    _pad_token_id: int = 0

    def __init__(
        self,
        model_identifier: str,
        cache_dir: str | None = None,
        hf_token: str | None = None,
        model_inference_batch_size: int = 256,
        has_seq_order: bool = True,
        padding_side: PaddingSide = "right",
        unpack_inference_batch: bool = False,
        autocast: bool = True,
        *,
        max_seq_length: int | None = None,
    ) -> None:
        model_identifier = check_identifier(model_identifier)
        check_padding_side(padding_side)
        check_positive("max_seq_length", max_seq_length)
        check_positive("model_inference_batch_size", model_inference_batch_size)
        if type(self).name == ModelStage.name:  # a subclass may have its own
            self.name = format_name_with_suffix(model_identifier, "_model")
        self.model_identifier = model_identifier
        self.cache_dir = cache_dir
        self._hf_token: Secret | bool | None = hide(hf_token)
        self.model_inference_batch_size = model_inference_batch_size
        self.has_seq_order = has_seq_order
        self.padding_side = padding_side
        self.unpack_inference_batch = unpack_inference_batch
        self.autocast = autocast
        if max_seq_length is not None:  # otherwise not stored, so that outputs of earlier versions can be resumed
            self.max_seq_length = max_seq_length
        self.model: Any = None
        self._worker_metadata: WorkerMetadata | None = None

    @property
    def hf_token(self) -> str | bool | None:
        """The access token, for the library that downloads."""
        return show(self._hf_token)

    @hf_token.setter
    def hf_token(self, token: str | Secret | bool | None) -> None:
        self._hf_token = hide(token)

    @property
    def device(self) -> torch.device | str:
        """The device for the model: the GPU assigned to the worker, otherwise the CPU. A subclass may change it."""
        from gristmill.stages.text.models.devices import choose_device

        return self._device or choose_device(self._worker_metadata)

    @device.setter
    def device(self, device: torch.device | str) -> None:
        self._device = device

    @property
    def model_path(self) -> Path:
        """The local folder of the model; nothing is downloaded."""
        return model_folder(self.model_identifier, cache_dir=self.cache_dir)

    # --- declarations ---

    def inputs(self) -> tuple[list[str], list[str]]:
        """The token columns, and the order of the rows if the tokenizer sorted them."""
        return ["data"], [INPUT_ID_FIELD, ATTENTION_MASK_FIELD] + ([SEQ_ORDER_FIELD] if self.has_seq_order else [])

    def outputs(self) -> tuple[list[str], list[str]]:
        """The columns that the subclass adds."""
        raise NotImplementedError(f"{type(self).__name__} must implement outputs().")

    def ray_stage_spec(self) -> dict[str, Any]:
        """Settings for executors on Ray Data: its workers keep what they have loaded."""
        return {**super().ray_stage_spec(), "is_actor_stage": True}

    def content_digest(self) -> str | None:
        """The fingerprint of the model's folder, if it is local."""
        return folder_digest(self.model_identifier)

    # --- the life of a worker ---

    model_files: Sequence[str] = ()
    """Patterns of files without which the model cannot be loaded."""

    def check_environment(self) -> None:
        """Reject a missing package, and a model that is missing or lacks `model_files`."""
        for module in ("torch", "transformers", "huggingface_hub"):
            require_module(module, "A model")
        found = check_model(
            self.model_identifier, cache_dir=self.cache_dir, token=self._hf_token, files=self.model_files
        )
        if found is not None and self.model_files:
            self.check_folder(found)

    def check_folder(self, folder: Path) -> None:
        """Reject a local folder without settings or weights."""
        read_config(folder)
        weight_files(folder)

    def setup_on_node(self, _node_info: NodeInfo | None = None, _worker_metadata: WorkerMetadata | None = None) -> None:
        """Download the model, once per node, and call `_setup(local_files_only=False)` if the subclass has it."""
        fetch_model(self.model_identifier, cache_dir=self.cache_dir, token=self._hf_token)
        if callable(getattr(self, "_setup", None)):
            self._call_setup(local_files_only=False)

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Load the model into `self.model` from local files, once per worker; calls `_setup(local_files_only=True)`."""
        if not callable(getattr(self, "_setup", None)):
            raise NotImplementedError(f"{type(self).__name__} must implement setup() or _setup().")
        self._worker_metadata = worker_metadata
        self._call_setup(local_files_only=True)

    def _call_setup(self, *, local_files_only: bool) -> None:
        """Call `_setup`, which may have no parameter."""
        own: Any = self._setup  # type: ignore[attr-defined]
        taken = inspect.signature(own).parameters.values()
        if any(one.name == "local_files_only" or one.kind is one.VAR_KEYWORD for one in taken):
            own(local_files_only=local_files_only)
        else:
            own()

    def teardown(self) -> None:
        """Release the model and its memory."""
        self.model = None
        gc.collect()
        import torch

        torch.cuda.empty_cache()

    # --- hooks ---

    def yield_next_batch(self, df: pd.DataFrame) -> Generator[dict[str, torch.Tensor], None, None]:
        """The inputs of the model, batch by batch, in the order of the frame.

        Each batch holds `model_inference_batch_size` rows (fewer in the last one and after memory ran out), is padded
        only to its longest row, has at most `max_seq_length` columns, and is moved to the model's device on demand.
        """
        import torch

        from gristmill.stages.text.models.devices import device_of

        device = device_of(self.model)
        start = 0
        while start < len(df):
            end = start + self._rows_per_batch()
            # A document without any token is one padding token that counts as real.
            masks = [
                [1] if mask is None or not np.any(mask) else mask for mask in df[ATTENTION_MASK_FIELD].iloc[start:end]
            ]
            ids = [[] if row is None else row for row in df[INPUT_ID_FIELD].iloc[start:end]]
            yield clip_tokens(
                {
                    INPUT_ID_FIELD: torch.from_numpy(self._padded(ids, self._pad_token_id)).to(device),
                    ATTENTION_MASK_FIELD: torch.from_numpy(self._padded(masks, 0)).to(device),
                },
                padding_side=self.padding_side,
                max_length=self.max_seq_length,
            )
            start = end

    def _model_forward(self, model_input_batch: dict[str, torch.Tensor]) -> Any:
        """Call the model on one batch."""
        if self.unpack_inference_batch:
            return self.model(**model_input_batch)
        return self.model(model_input_batch)

    def process_model_output(
        self, outputs: Any, model_input_batch: dict[str, torch.Tensor] | None = None
    ) -> dict[str, Any] | Any:
        """The part of the model's output to keep for one batch, usually arrays with one row per document."""
        raise NotImplementedError(f"{type(self).__name__} must implement process_model_output().")

    def collect_outputs(self, processed_outputs: list[Any]) -> Any:
        """One result for all batches: by default the concatenated arrays of each key."""
        first = processed_outputs[0]
        return {key: np.concatenate([output[key] for output in processed_outputs], axis=0) for key in first}

    def create_output_dataframe(self, df_cpu: pd.DataFrame, collected_output: Any) -> pd.DataFrame:
        """The frame with the new columns; the order of rows must not change."""
        raise NotImplementedError(f"{type(self).__name__} must implement create_output_dataframe().")

    # --- the loop ---

    def process(self, batch: DocumentBatch) -> DocumentBatch | None:
        """The batch with the model's output; documents that do not fit into memory are quarantined."""
        self._check_columns_of(batch)
        frame = batch.to_pandas()
        self._pad_token_id = self._padding_id(batch)
        outputs: list[Any] = []
        lost: list[int] = []
        row = 0
        for model_input_batch in self.yield_next_batch(frame):
            rows = len(model_input_batch[INPUT_ID_FIELD])
            outputs.extend(self._outputs_of(model_input_batch, row, lost))
            del model_input_batch
            row += rows
        if lost:
            self._quarantine(batch, lost)
            frame = frame.iloc[np.setdiff1d(np.arange(len(frame)), lost)]
        if not outputs:
            return None if lost else self._without_rows(batch)
        frame = self.create_output_dataframe(frame, self.collect_outputs(outputs))
        if self.has_seq_order:
            if SEQ_ORDER_FIELD not in frame.columns:
                raise StageDefinitionError(
                    f"create_output_dataframe() of {type(self).__name__} returns "
                    f"{', '.join(map(repr, frame.columns))}: it must add to the columns of the frame that it "
                    f"receives, of which {SEQ_ORDER_FIELD!r} is needed."
                )
            # The runner tracks rows by their labels; outside of a run they are unused, and a clean index reads better.
            frame = frame.sort_values(by=SEQ_ORDER_FIELD, kind="stable", ignore_index=not batch.is_tracked)
            frame = frame.drop(columns=[SEQ_ORDER_FIELD])
        return DocumentBatch(
            dataset_name=batch.dataset_name,
            data=frame,
            _metadata=batch._metadata,
            _stage_perf=batch._stage_perf,
            task_id=batch.task_id,
        )

    def _check_columns_of(self, batch: DocumentBatch) -> None:
        """Reject a batch without tokens; planning checks columns only if the input is read from files."""
        present = batch.get_columns()
        for column in self.inputs()[1]:
            if column not in present:
                sorting = ", with sort_by_length=True, or set has_seq_order=False" if column == SEQ_ORDER_FIELD else ""
                raise MissingColumnError(
                    f"Stage {self.name!r} reads column {column!r}, which is missing (found: "
                    f"{', '.join(map(repr, present)) or 'none'}). Put a TokenizerStage before it{sorting}.",
                    stage=self.name,
                    column=column,
                    available=present,
                )

    def _without_rows(self, batch: DocumentBatch) -> DocumentBatch:
        """A batch that never had rows, with the columns that this stage declares."""
        result = batch.without([SEQ_ORDER_FIELD]) if self.has_seq_order else batch
        for name in self.outputs()[1]:
            if name not in result.get_columns():
                result = result.with_column(name, pa.nulls(0))
        return result

    def _outputs_of(self, model_input_batch: dict[str, torch.Tensor], row: int, lost: list[int]) -> list[Any]:
        """The model's output for one batch, in pieces if memory runs out; rows that never fit are added to `lost`."""
        from gristmill.stages.text.models.devices import free_memory, is_out_of_memory

        try:
            return [self._run(model_input_batch)]
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside of the handler the traceback, which keeps the tensors of the failed pass alive, is gone.
        gc.collect()
        free_memory()
        self._log_metric("out_of_memory", 1)
        rows = len(model_input_batch[INPUT_ID_FIELD])
        if rows == 1:
            lost.append(row)
            return []
        half = (rows + 1) // 2
        self._remember(model_input_batch, half)
        outputs: list[Any] = []
        for start, end in ((0, half), (half, rows)):
            piece = {name: tensor[start:end] for name, tensor in model_input_batch.items()}
            piece = clip_tokens(piece, padding_side=self.padding_side)
            outputs.extend(self._outputs_of(piece, row + start, lost))
            del piece
        return outputs

    def _run(self, model_input_batch: dict[str, torch.Tensor]) -> Any:
        import torch

        from gristmill.stages.text.models.devices import autocast_on, widened

        device = model_input_batch[INPUT_ID_FIELD].device
        mask = model_input_batch[ATTENTION_MASK_FIELD]
        with torch.no_grad():
            if self.autocast:
                with autocast_on(device, enabled=True):
                    outputs = widened(self._model_forward(model_input_batch))
            else:
                outputs = self._model_forward(model_input_batch)
        self._log_metrics({"real_tokens": float(mask.sum()), "padded_tokens": float(mask.numel())})
        return self.process_model_output(outputs, model_input_batch)

    def _rows_per_batch(self) -> int:
        return min(self.model_inference_batch_size, self._working_rows or self.model_inference_batch_size)

    def _remember(self, model_input_batch: dict[str, torch.Tensor], rows: int) -> None:
        """Use the next size also for the following batches, and tell the user what to set."""
        self._working_rows = min(rows, self._rows_per_batch())
        logger.warning(
            "Stage %s ran out of memory with %d documents in a batch and continues with %d. Set "
            "model_inference_batch_size=%d to start there.",
            self.name,
            len(model_input_batch[INPUT_ID_FIELD]),
            self._working_rows,
            self._working_rows,
        )

    def _quarantine(self, batch: DocumentBatch, lost: list[int]) -> None:
        """Quarantine documents in their form before tokenization."""
        inner = [name for name in (*TOKEN_FIELDS, SEQ_ORDER_FIELD) if name in batch.get_columns()]
        plain = batch.without(inner)
        for row in lost:
            detail = f"The document does not fit into the memory of the device even alone, in stage {self.name!r}."
            batch.note_quarantine(quarantined_row(plain, row, stage=self.name, cause=OUT_OF_MEMORY, detail=detail))

    def _padding_id(self, batch: DocumentBatch) -> int:
        """The padding id: that of the tokenizer, otherwise that of the model's configuration."""
        noted = token_facts(batch).get("pad_token_id")
        if noted is None:
            noted = getattr(getattr(self.model, "config", None), "pad_token_id", None)
        return 0 if noted is None else int(noted)

    def _padded(self, lists: list[Any], fill: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        width = max(1, *(len(row) for row in lists))
        matrix = np.full((len(lists), width), fill, np.int64)
        for place, row in enumerate(lists):
            if self.padding_side == "right":
                matrix[place, : len(row)] = row
            else:
                matrix[place, width - len(row) :] = row
        return matrix


def check_padding_side(side: str) -> None:
    """Reject a padding side that is neither left nor right."""
    if side not in ("left", "right"):
        raise UsageError(f"padding_side={side!r}: must be 'left' or 'right'.")


def check_positive(name: str, value: int | None) -> None:
    """Reject a count that is not a whole number of at least 1; None is off."""
    whole: Any = value
    if whole is not None and (isinstance(whole, bool) or not isinstance(whole, Integral) or whole < 1):
        raise UsageError(f"{name}={value!r}: must be a whole number of at least 1.")


def check_init_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options for `from_pretrained`; those that would undo the stage's guarantees are refused."""
    found = dict(options or {})
    for name in found:
        if name in _OWN_OPTIONS:
            raise UsageError(f"transformers_init_kwargs has {name!r}: {_OWN_OPTIONS[name]}.")
    return found
