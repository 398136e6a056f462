"""Lets classifiers that need the same tokens share one tokenization: the first hands its columns on to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gristmill.stages.base import FusedStage, ProcessingStage
from gristmill.stages.text.models.tokenizer import TokenizerStage
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.backends.base import NodeInfo, WorkerMetadata
    from gristmill.stages.text.models.token_batches import BudgetedModelStage


def share_tokens(model: BudgetedModelStage, following: Sequence[ProcessingStage[Any, Any]]) -> FusedStage | None:
    """One stage for `model`, the filter on its labels and the next classifier's tokenizer, if the tokens agree."""
    if model.token_settings is None or model.keep_tokens or not model.has_plain_process():
        return None
    between = list(following[:1]) if following and _only_drops(following[0]) else []
    rest = following[len(between) :]
    tokenizer = rest[0] if rest else None
    if not isinstance(tokenizer, TokenizerStage) or type(tokenizer) is not TokenizerStage:
        return None
    if not model.token_settings.gives_same_tokens(tokenizer.settings):
        return None
    return SharedTokens(model, between, tokenizer)


def _only_drops(stage: ProcessingStage[Any, Any]) -> bool:
    """Whether a stage leaves the texts alone and keeps the other columns of the rows that it keeps."""
    kind = type(stage)
    if kind.__module__ == "gristmill.stages.text.classifiers.label_filter":
        return True
    return kind.__name__ == "Filter" and kind.__module__.startswith("gristmill.stages.text.filters")


class SharedTokens(FusedStage):
    """A classifier's model with the tokenizer of the next one, which finds the tokens already there."""

    for_dropped = "pass"

    needs_own_worker = True
    runs_without_gpu = True

    def __init__(
        self, model: BudgetedModelStage, between: Sequence[ProcessingStage[Any, Any]], tokenizer: TokenizerStage
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
        """What the model and the tokenizer give."""
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
        """Classify, drop, and make the tokens of the next classifier from those that are there."""
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
