"""Counts the tokens of an input, by source, without keeping the documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from gristmill.advice.statistics import Collector
from gristmill.backends.base import BaseExecutor
from gristmill.observe.events import Listener
from gristmill.pipeline import Pipeline
from gristmill.pipeline.run import Options, begun_run
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.text.io.documents import DocumentReader
from gristmill.stages.text.models.text_encoder import EncoderSource
from gristmill.tasks.base import Task
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.backends.base import NodeInfo, WorkerMetadata

_MOST_SOURCES = 100_000
NO_VALUE = "(none)"
OTHERS = "(others)"
"""Name under which further sources are counted once there are very many."""


@dataclass(slots=True)
class SourceCount:
    """The counts of one source."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    empty: int = 0

    def add(self, other: SourceCount) -> None:
        """Add the counts of another part of the source."""
        self.documents += other.documents
        self.tokens += other.tokens
        self.bytes += other.bytes
        self.empty += other.empty


@dataclass(slots=True)
class TokenCounts:
    """Tokens by source.

    Attributes:
        sources: By name.
        longest: Maximum number of tokens of a document.
        unreadable: Number of records that could not be read.
        seconds: How long counting took.
    """

    sources: dict[str, SourceCount] = field(default_factory=dict)
    longest: int = 0
    unreadable: int = 0
    seconds: float = 0.0

    def merge(self, other: TokenCounts) -> None:
        """Add the counts of other documents."""
        self.longest = max(self.longest, other.longest)
        for name, count in other.sources.items():
            key = name if name in self.sources or len(self.sources) < _MOST_SOURCES else OTHERS
            self.sources.setdefault(key, SourceCount()).add(count)

    @property
    def total(self) -> SourceCount:
        """All sources together."""
        total = SourceCount()
        for count in self.sources.values():
            total.add(count)
        return total


class TokenCountsTask(Task[TokenCounts]):
    """The counts of a batch, to be sent to the driver."""

    @property
    def num_items(self) -> int:
        return 1


class CountingStage(ProcessingStage[DocumentBatch, TokenCountsTask]):
    """Turns documents into counts of their tokens.

    Args:
        source: The tokenizer.
        text_field: The column with the text.
        by: The column with the source of a document; None for the input file.
        add_special_tokens: Also count the tokens that the tokenizer puts around a text.
    """

    name = "token_counts"
    fork_safe = True

    def __init__(self, source: EncoderSource, *, text_field: str, by: str | None, add_special_tokens: bool) -> None:
        self.source = source
        self.text_field = text_field
        self.by = by
        self.add_special_tokens = add_special_tokens

    def inputs(self) -> Spec:
        return ["data"], [self.text_field, *([] if self.by is None else [self.by])]

    def outputs(self) -> Spec:
        return ["data"], []

    def check_environment(self) -> None:
        if self.source.is_here():
            self.source.load()

    def setup_on_node(self, _node_info: NodeInfo | None = None, _worker_metadata: WorkerMetadata | None = None) -> None:
        self.source.fetch()

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        self.source.load(threads=None if worker_metadata is None else self.resources.cpus > 1)

    def process(self, batch: DocumentBatch) -> TokenCountsTask:
        text = batch.text(self.text_field)
        tokens = self.source.load().count(text, special=self.add_special_tokens)
        sizes = pc.fill_null(pc.binary_length(text), 0).to_numpy()
        if self.by is None:
            names, places = batch.sources()
        else:
            encoded = pc.dictionary_encode(batch.text(self.by).fill_null(NO_VALUE))
            names, places = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        found = TokenCounts(longest=int(tokens.max(initial=0)))
        columns = [np.ones(len(tokens), np.int64), tokens, sizes, (sizes == 0).astype(np.int64)]
        sums = [np.bincount(places, column, len(names)).astype(np.int64).tolist() for column in columns]
        for name, *numbers in zip(names, *sums, strict=True):
            if numbers[0]:
                found.sources.setdefault(name, SourceCount()).add(SourceCount(*numbers))
        return TokenCountsTask(batch.dataset_name, found)


def count_tokens(
    inputs: Sequence[str],
    tokenizer: str,
    executor: BaseExecutor,
    *,
    by: str | None = None,
    text_field: str = "text",
    add_special_tokens: bool = False,
    filetype: Any = None,
    sample: float | None = None,
    seed: int = 0,
    max_documents: int | None = None,
    listeners: Iterable[Listener] = (),
) -> TokenCounts:
    """Read an input once and count its tokens.

    Args:
        inputs: Files, folders, globs or URLs.
        tokenizer: A tokenizer in a form that `TokenCounter` accepts.
        executor: Where to run.
        by: The column with the source of a document; by default the input file.
        text_field: The column with the text.
        add_special_tokens: Also count the tokens that the tokenizer puts around a text.
        filetype: Read only files of this format.
        sample: Read only a random share of the documents.
        seed: Random seed of the sample.
        max_documents: Read at most this many documents.
        listeners: Called with every event of the run.

    Raises:
        InputNotFoundError: There is nothing to read.
        MissingColumnError: The input has no such column; names those that it has.
    """
    reader = DocumentReader(list(inputs), filetype, sample=sample, seed=seed, max_documents=max_documents)
    stage = CountingStage(EncoderSource(tokenizer), text_field=text_field, by=by, add_special_tokens=add_special_tokens)
    pipeline = Pipeline("tokens count", stages=[reader, stage])
    listeners = list(listeners)
    counts = TokenCounts()
    collector = Collector(listeners, counts)
    with begun_run(
        pipeline, executor, None, Options(error_budget=None), [*listeners, collector], progress=False
    ) as run:
        collector.results = run.work.results
        if len(run.work):
            executor.execute(run.work.plan, run.work)
        run.work.finish()
        collector.collect()
        counts.unreadable = run.work.budget.quarantined
    counts.seconds = run.result().report.seconds
    counts.sources = dict(sorted(counts.sources.items()))
    return counts
