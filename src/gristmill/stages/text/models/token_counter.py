"""Counts the tokens of documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.text.models.text_encoder import EncoderSource
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.backends.base import NodeInfo, WorkerMetadata


class TokenCounter(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds the number of tokens of each document; 0 for a document without text.

    `gristmill tokens count` adds them up, optionally by source.

    Args:
        tokenizer: A folder with a `tokenizer.json` or SentencePiece model (or anything that transformers loads), the
            file itself, `package:NAME`, or a hub id.
        text_field: Column that holds the text.
        count_field: Column for the counts.
        add_special_tokens: Also count the tokenizer's special tokens.
        cache_dir: Cache folder for hub downloads.
        hf_token: Access token for gated models; it is never shown.
        transformers_init_kwargs: Options for transformers' `from_pretrained`, which then loads the tokenizer.

    Example:
        >>> pipeline.add_stage(TokenCounter("my-tokenizer/", count_field="tokens"))
    """

    name = "token_counter"
    fork_safe = True
    never_drops = True
    notes_changes = True
    for_dropped = "pass"
    text_parameter = "text_field"
    fills_text = False

    def __init__(
        self,
        tokenizer: str,
        *,
        text_field: str = "text",
        count_field: str = "token_count",
        add_special_tokens: bool = False,
        cache_dir: str | None = None,
        hf_token: str | None = None,
        transformers_init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._source = EncoderSource(
            tokenizer, cache_dir=cache_dir, hf_token=hf_token, init_options=transformers_init_kwargs
        )
        self.tokenizer = self._source.identifier
        self.text_field = text_field
        self.count_field = count_field
        self.add_special_tokens = add_special_tokens
        self.cache_dir = cache_dir
        self.transformers_init_kwargs = dict(transformers_init_kwargs or {})

    def inputs(self) -> Spec:
        """The text."""
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        """The text and the count."""
        return ["data"], [self.text_field, self.count_field]

    def content_digest(self) -> str | None:
        """The fingerprint of the tokenizer's files, if they are on this machine."""
        return self._source.digest()

    def check_environment(self) -> None:
        """Reject a tokenizer that is missing or cannot be read."""
        if self._source.is_here():
            self._source.load()

    def setup_on_node(self, _node_info: NodeInfo | None = None, _worker_metadata: WorkerMetadata | None = None) -> None:
        """Download the tokenizer's files, once per node."""
        self._source.fetch()

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Load the tokenizer from local files, once per worker."""
        self._source.load(threads=None if worker_metadata is None else self.resources.cpus > 1)

    def teardown(self) -> None:
        """Release the tokenizer."""
        self._source.forget()

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with the counts."""
        text = batch.text(self.text_field)
        counts = self._source.load().count(text, special=self.add_special_tokens)
        self._log_metric("tokens", float(counts.sum()))
        return batch.with_column(self.count_field, pa.array(counts))
