"""The model stage of the built-in classifiers and embedders: batches by a budget of tokens, shared tokenization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError
from gristmill.stages.base import FusedStage, ProcessingStage
from gristmill.stages.text.filters.score_filter import Filter
from gristmill.stages.text.models.model import ModelStage
from gristmill.stages.text.models.tokenizer import TokenizerStage, TokenSettings
from gristmill.stages.text.models.tokens import (
    ATTENTION_MASK_FIELD,
    INPUT_ID_FIELD,
    SEQ_ORDER_FIELD,
    TOKEN_FIELDS,
    Integers,
    TokenLists,
    list_column,
    note_token_facts,
    padded,
    padded_mask,
)
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from gristmill.backends.base import NodeInfo, WorkerMetadata

# Padded tokens per forward pass. On a CPU, activations of about this many stay in its caches; with several threads, a
# few parts for each keep all of them busy. On a GPU it is enough to keep the device busy.
CPU_TOKENS_PER_BATCH = 2048
CPU_TOKENS_PER_THREAD = 4096
CUDA_TOKENS_PER_BATCH = 65536

MAX_PADDING = 1.045
"""Maximum padded tokens per real token over a sequence of batches; below the promised 1.05."""


class BatchCutter:
    """Yields rows in batches, longest documents first, so that memory runs out at the start or never.

    A batch grows while its padded size stays within the budget, its rows within `max_rows`, and all batches so far
    within `MAX_PADDING`: long documents, which waste little, save up the padding that short ones may spend.

    Args:
        lengths: The tokens of each row.
        budget: Maximum number of padded tokens per batch; a longer document is its own batch.
        max_rows: Maximum number of rows per batch.
    """

    def __init__(self, lengths: Integers, *, budget: int, max_rows: int) -> None:
        self.budget = budget
        self.max_rows = max_rows
        self.padded = 0
        self.real = 0
        # Rows without tokens cost one column, as a tensor cannot have none.
        self._lengths = np.maximum(lengths, 1)
        self._order = np.argsort(-self._lengths, kind="stable")

    def __iter__(self) -> Iterator[Integers]:
        start = 0
        while start < len(self._order):
            end = self._end(start)
            rows = self._order[start:end]
            self.padded += int(self._lengths[rows[0]]) * len(rows)
            self.real += int(self._lengths[rows].sum())
            yield rows
            start = end

    def _end(self, start: int) -> int:
        width = int(self._lengths[self._order[start]])
        limit = min(len(self._order), start + max(1, min(self.max_rows, self.budget // width)))
        real = self.real + np.cumsum(self._lengths[self._order[start:limit]])
        padded = self.padded + width * np.arange(1, limit - start + 1)
        fits = np.flatnonzero(padded <= MAX_PADDING * real)
        # Documents of one length never waste anything; the longest prefix that fits is taken.
        return start + (int(fits[-1]) + 1 if len(fits) else 1)


class TokenBatchModelStage(ModelStage):
    """A `ModelStage` that sorts documents by length itself and fills batches up to a token budget.

    `model_inference_batch_size` is the upper bound of rows here. A subclass defines with `output_columns` what it adds.
    One that overrides `yield_next_batch` or `create_output_dataframe` receives the frame and batches of `ModelStage`.
    """

    notes_changes = True
    fork_safe = True
    fills_text = False
    model_files = ("config.json", "*.safetensors")
    keep_tokens: bool = False
    max_seq_length: int | None = None
    tokens_per_batch: int | None = None
    # How the tokens were made, when the composite that made this stage knows it.
    token_settings: TokenSettings | None = None

    _working_tokens: int | None = None

    def warm_up(self) -> None:
        """Compile the kernels that the network may need on a CPU, once for all workers."""
        from gristmill.kernels import distance_bias, int8_rows

        distance_bias.compile_all()
        if getattr(self, "cpu_backend", None) == "torch-int8":
            int8_rows.compile_all()

    def output_columns(self, collected_output: Any) -> Mapping[str, pa.Array]:
        """The new columns, one value per document in the order of the outputs."""
        raise NotImplementedError(f"{type(self).__name__} must implement output_columns().")

    def create_output_dataframe(self, df_cpu: pd.DataFrame, collected_output: Any) -> pd.DataFrame:
        """The frame with the columns of `output_columns`, without the tokens unless they are kept."""
        if not self.keep_tokens:
            df_cpu = df_cpu.drop(columns=list(TOKEN_FIELDS))
        columns = self.output_columns(collected_output)
        return df_cpu.assign(**{name: list(values.to_numpy(zero_copy_only=False)) for name, values in columns.items()})

    def process(self, batch: DocumentBatch) -> DocumentBatch | None:
        """The batch with the new columns, in the original order; documents that do not fit are quarantined."""
        if self.is_columnar():
            return self.run(batch, keep_tokens=self.keep_tokens)
        if self.max_seq_length is not None:
            self._check_columns_of(batch)
            lists = real_tokens(batch).cut(self.max_seq_length, side=self.padding_side)
            masks = np.ones(len(lists.values), np.int8)
            batch = batch.with_column(INPUT_ID_FIELD, list_column(lists.values, lists.lengths))
            batch = batch.with_column(ATTENTION_MASK_FIELD, list_column(masks, lists.lengths))
        return super().process(batch)

    def is_columnar(self) -> bool:
        """Whether no subclass has replaced the hooks that work on frames."""
        own, cls = TokenBatchModelStage, type(self)
        return (
            cls.create_output_dataframe is own.create_output_dataframe and cls.yield_next_batch is own.yield_next_batch
        )

    def has_plain_process(self) -> bool:
        """Whether no subclass has replaced what surrounds `run`, so that another stage may call that instead."""
        own, cls = TokenBatchModelStage, type(self)
        return self.is_columnar() and cls.process is own.process and cls.process_batch is own.process_batch

    def run(self, batch: DocumentBatch, *, keep_tokens: bool) -> DocumentBatch | None:
        """Do the work of `process` on columns."""
        self._check_columns_of(batch)
        if self.model is None:
            raise UsageError(f"Stage {self.name!r} has no model yet: call its setup() first, or run it in a Pipeline.")
        lists = real_tokens(batch)
        if self.max_seq_length is not None:
            lists = lists.cut(self.max_seq_length, side=self.padding_side)
        self._pad_token_id = self._padding_id(batch)
        outputs: list[Any] = []
        lost: list[int] = []
        cutter = BatchCutter(lists.lengths, budget=self._token_budget(), max_rows=self._rows_per_batch())
        ran: list[Integers] = []
        for rows in cutter:
            pieces, gone = self._outputs_of_rows(lists, rows)
            outputs.extend(pieces)
            lost.extend(gone)
            ran.append(rows if not gone else rows[~np.isin(rows, gone)])
            cutter.budget, cutter.max_rows = self._token_budget(), self._rows_per_batch()
        if lost:
            self._quarantine(batch, lost)
        if not outputs:
            return None if lost else self._bare(self._without_rows(batch), keep_tokens=keep_tokens)
        done = np.concatenate(ran)
        columns = self.output_columns(self.collect_outputs(outputs))
        # `done[i]` is the row of output i: sorting by it brings outputs and documents together again.
        order = np.argsort(done, kind="stable")
        result = batch.take(done[order]) if lost else batch
        for name, values in columns.items():
            result = result.with_column(name, values.take(pa.array(order)))
        if SEQ_ORDER_FIELD in result.get_columns():
            sequence = np.asarray(result.column(SEQ_ORDER_FIELD))
            if len(sequence) > 1 and (np.diff(sequence) < 0).any():
                result = result.take(np.argsort(sequence, kind="stable"))
        return self._bare(result, keep_tokens=keep_tokens)

    def check_length(self, network: Any) -> None:
        """Reject a token limit that the network does not support, before a long document fails.

        Raises:
            UsageError: `max_seq_length` is too large for the model.
        """
        from gristmill.stages.text.models.loading import position_limit

        limit = self.max_seq_length
        if limit is None and self.token_settings is not None:
            limit = self.token_settings.max_seq_length
        if limit is None:
            return
        read = min(limit, getattr(network, "window", None) or limit)
        places = position_limit(network)
        if places is not None and read > places:
            raise UsageError(
                f"max_seq_length={limit}: {self.model_identifier} supports at most {places} tokens. Set at most that, "
                "or None for its tokenizer's limit."
            )

    def fuse(self, following: Sequence[ProcessingStage[Any, Any]]) -> FusedStage | None:
        """Pass the tokens on to a following classifier that would make the same ones."""
        return share_tokens(self, following)

    def _outputs_of_rows(self, lists: TokenLists, rows: Integers) -> tuple[list[Any], list[int]]:
        import torch

        from gristmill.stages.text.models.devices import device_of

        device = device_of(self.model)
        lengths = lists.lengths[rows]
        ids = padded(lists, rows, fill=self._pad_token_id, side=self.padding_side)
        mask = padded_mask(lengths, side=self.padding_side)
        if not ids.shape[1]:
            ids = np.full((len(rows), 1), self._pad_token_id, np.int64)
            mask = np.zeros_like(ids)
        # A document without any token is one padding token that counts as real, whatever its neighbours are.
        mask[lengths == 0, 0 if self.padding_side == "right" else -1] = 1
        model_input_batch = {
            INPUT_ID_FIELD: torch.from_numpy(ids).to(device),
            ATTENTION_MASK_FIELD: torch.from_numpy(mask).to(device),
        }
        places: list[int] = []
        outputs = self._outputs_of(model_input_batch, 0, places)
        del model_input_batch
        return outputs, [int(rows[place]) for place in places]

    def _remember(self, model_input_batch: dict[str, torch.Tensor], rows: int) -> None:
        super()._remember(model_input_batch, rows)
        self._working_tokens = min(rows * model_input_batch[INPUT_ID_FIELD].shape[1], self._token_budget())
        # Short documents may still come in larger numbers: the budget bounds their batches.
        self._working_rows = None

    def _token_budget(self) -> int:
        if self._working_tokens is not None:
            return self._working_tokens
        if self.tokens_per_batch is not None:
            return self.tokens_per_batch
        from gristmill.stages.text.models.devices import device_of

        if device_of(self.model).type == "cuda":
            return CUDA_TOKENS_PER_BATCH
        from gristmill.stages.text.models.acceleration import forward_threads

        threads = forward_threads(self.model)
        return CPU_TOKENS_PER_BATCH if threads == 1 else min(CPU_TOKENS_PER_THREAD * threads, CUDA_TOKENS_PER_BATCH)

    def _bare(self, batch: DocumentBatch, *, keep_tokens: bool) -> DocumentBatch:
        gone = [] if keep_tokens else list(TOKEN_FIELDS)
        if SEQ_ORDER_FIELD in batch.get_columns():
            gone.append(SEQ_ORDER_FIELD)
        result = batch.without(gone) if gone else batch
        return result if keep_tokens else note_token_facts(result, None)


def real_tokens(batch: DocumentBatch) -> TokenLists:
    """The tokens of a batch without padding, even if a column from another source contains some."""
    lists = TokenLists(batch.column(INPUT_ID_FIELD))
    masks = TokenLists(batch.column(ATTENTION_MASK_FIELD))
    unlike = np.flatnonzero(lists.lengths != masks.lengths)
    if len(unlike):
        row = int(unlike[0])
        raise UsageError(
            f"Row {row} has {lists.lengths[row]} values in {INPUT_ID_FIELD!r} and {masks.lengths[row]} in "
            f"{ATTENTION_MASK_FIELD!r}: there must be one mask value per token; let a TokenizerStage make both."
        )
    first, last = int(masks.offsets[0]), int(masks.offsets[-1])
    real = masks.values[first:last] != 0
    if real.all():
        return lists
    ids = lists.values[int(lists.offsets[0]) : int(lists.offsets[-1])]
    ends = np.concatenate([[0], np.cumsum(real)])
    bounds = ends[masks.offsets - first]
    return TokenLists(list_column(ids[real], np.diff(bounds)))


def share_tokens(model: TokenBatchModelStage, following: Sequence[ProcessingStage[Any, Any]]) -> FusedStage | None:
    """One stage for `model`, the filter on its labels and the next classifier's tokenizer, if the tokens agree."""
    if model.token_settings is None or model.keep_tokens or not model.has_plain_process():
        return None
    # A stage that only drops documents does not change texts and columns of the others; a subclass of `Filter` may.
    between = [stage for stage in following[:1] if type(stage) is Filter or getattr(stage, "only_drops", False)]
    rest = following[len(between) :]
    tokenizer = rest[0] if rest else None
    if type(tokenizer) is not TokenizerStage:
        return None
    if not model.token_settings.gives_same_tokens(tokenizer.settings):
        return None
    return SharedTokens(model, between, tokenizer)


class SharedTokens(FusedStage):
    """A classifier's model with the tokenizer of the next one, which finds the tokens already made."""

    for_dropped = "pass"

    needs_own_worker = True
    runs_without_gpu = True

    def __init__(
        self, model: TokenBatchModelStage, between: Sequence[ProcessingStage[Any, Any]], tokenizer: TokenizerStage
    ) -> None:
        self.model = model
        self.between = list(between)
        self.tokenizer = tokenizer
        self.members = [model, *between, tokenizer]
        self.name = f"{model.name} + {tokenizer.name}"
        self.resources = model.resources
        self.batch_size = model.batch_size
        self.runtime_env = model.runtime_env
        self._requested_workers = model._requested_workers

    def inputs(self) -> tuple[list[str], list[str]]:
        """What the model reads."""
        return self.model.inputs()

    def outputs(self) -> tuple[list[str], list[str]]:
        """The outputs of the model and the tokenizer."""
        attributes, columns = self.model.outputs()
        return attributes, [*columns, *(name for name in self.tokenizer.outputs()[1] if name not in columns)]

    def setup_on_node(self, node_info: NodeInfo | None = None, worker_metadata: WorkerMetadata | None = None) -> None:
        """Set every member up on the node."""
        for member in self.members:
            member.setup_on_node(node_info, worker_metadata)

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Set every member up in the worker."""
        for member in self.members:
            member.setup(worker_metadata)

    def teardown(self) -> None:
        """Tear every member down."""
        for member in reversed(self.members):
            member.teardown()

    def process(self, task: DocumentBatch) -> DocumentBatch | None:
        """Classify, drop, and derive the tokens of the next classifier from the existing ones."""
        batch = self.model.run(task, keep_tokens=True)
        for stage in self.between:
            if batch is None:
                break
            batch = self._filtered(stage, batch)
        if batch is not None and batch.num_items:
            batch = self.tokenizer.reuse(batch)
        for member in self.members:
            self._log_metrics(member._consume_custom_metrics())
        return batch

    def _filtered(self, stage: ProcessingStage[Any, Any], batch: DocumentBatch) -> DocumentBatch | None:
        given: Any = batch.decided_by(stage.name, stage.process)
        kept: DocumentBatch | None = given
        return kept
