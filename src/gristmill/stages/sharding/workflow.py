"""Base class of shuffling and mixing: documents scattered by a random key, shards gathered from them, one record.

Ordinary pipelines with files between them: `scatter` (one for each source) writes documents sorted by key, the last one
writes the shards, and `documents` writes the table that maps a document to its shard.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from gristmill.backends.base import BaseExecutor
from gristmill.backends.registry import as_executor
from gristmill.errors import UsageError, did_you_mean
from gristmill.figures import parse_size
from gristmill.ledger.record.layout import STEPS_FOLDER, RunFolder
from gristmill.observe.events import Listener
from gristmill.pipeline.workflow import WorkflowBase, WorkflowRunResult
from gristmill.stages.base import ProcessingStage
from gristmill.stages.deduplication.deduplication_workflow import missing_column
from gristmill.stages.deduplication.source import (
    FILETYPES,
    DocumentSource,
    find_filetype,
)
from gristmill.stages.sharding.keys import Placement, checked_splits
from gristmill.stages.sharding.sharding_run import ShardingRun, Source
from gristmill.storage.files import is_local

Stage = ProcessingStage[Any, Any]

TOKEN_COLUMN = "gristmill_token_count"
"""Temporary column for token counts; it is not written."""
_BLOCKSIZE = "128MiB"
_LENGTHS = ("length",)


@dataclass(eq=False, repr=False)
class ShardingWorkflow(WorkflowBase):
    """Base class of `ShuffleWorkflow` and `MixWorkflow`; see the first for the arguments that both share."""

    name = "sharding"

    output_path: str
    _: KW_ONLY
    seed: int = 0
    shard_size: int | str | None = None
    shard_documents: int | None = None
    shard_tokens: int | None = None
    splits: Mapping[str, float | None] | None = None
    split_field: str | None = None
    balance: str | None = None
    token_count_field: str | None = None
    tokenizer: str | None = None
    text_field: str = "text"
    id_field: str | None = None
    license_field: str | None = None
    output_filetype: str | None = None
    input_blocksize: int | str | None = None
    read_kwargs: Mapping[str, Any] | None = None
    write_kwargs: Mapping[str, Any] | None = None
    record_path: str | None = None
    cache_path: str | None = None
    keep_steps: bool = False

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if not str(self.output_path):
            raise UsageError(f"{kind}(output_path=''): set the folder to write to.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise UsageError(f"{kind}(seed={self.seed!r}): must be a whole number.")
        if self.output_filetype is not None and self.output_filetype not in FILETYPES:
            raise UsageError(
                f"{kind}(output_filetype={self.output_filetype!r}): must be 'jsonl' or "
                f"'parquet'.{did_you_mean(str(self.output_filetype), FILETYPES)}"
            )
        if self.balance is not None and self.balance not in _LENGTHS:
            raise UsageError(f"{kind}(balance={self.balance!r}): must be 'length' or None.")
        given = [name for name in ("shard_size", "shard_documents", "shard_tokens") if getattr(self, name) is not None]
        if len(given) > 1:
            raise UsageError(f"{kind}: {' and '.join(given)} are set. Measure shards in only one of them.")
        for name in given[:1] if given and given[0] != "shard_size" else []:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{kind}({name}={value!r}): must be a whole number, at least 1.")
        if self.shard_size is not None and parse_size(self.shard_size, name="shard_size") < 1:
            raise UsageError(f"{kind}(shard_size={self.shard_size!r}): must be a size such as '256MB'.")
        if self.token_count_field is not None and self.tokenizer is not None:
            raise UsageError(f"{kind}: token_count_field and tokenizer are set. Use only one of them to count tokens.")
        if self.shard_tokens is not None and not self.counts_tokens:
            raise UsageError(
                f"{kind}(shard_tokens={self.shard_tokens}): set token_count_field (a column with counts) or tokenizer "
                "(a folder) to count tokens."
            )
        self.output_path = str(self.output_path)
        self.fractions = checked_splits(self.splits)
        if self.split_field is not None and len(self.fractions) < 2:
            raise UsageError(
                f"{kind}(split_field={self.split_field!r}): there are no splits to assign documents to. Set splits, "
                "such as {'train': 0.98, 'validation': 0.02}."
            )
        if self.folder.ending is not None:
            raise UsageError(
                f"{kind}(output_path={self.output_path!r}): shards need a folder, but this is a file name."
            )
        if not is_local(self._steps_path):
            raise UsageError(
                f"{kind}(output_path={self.output_path!r}): intermediate files are memory-mapped, so they must be on "
                "a local disk. Set a folder for them with cache_path (--cache)."
            )

    # --- what a kind defines ---

    @abstractmethod
    def _sources(self) -> list[Source]:
        """The inputs."""

    def _settings(self) -> dict[str, Any]:
        """The settings that the shards depend on, as plain values."""
        names = (
            "seed", "shard_size", "shard_documents", "shard_tokens", "split_field", "balance", "token_count_field",
            "tokenizer", "text_field", "id_field", "license_field", "output_filetype", "input_blocksize",
        )  # fmt: skip
        writing = {key: value for key, value in (self.write_kwargs or {}).items() if key != "storage_options"}
        splits = [[name, share] for name, share in self.fractions.items()]  # their order matters
        return {**{name: getattr(self, name) for name in names}, "splits": splits, "write": writing}

    def _prepare(self, run: ShardingRun) -> None:
        """Prepare everything that scattering depends on."""

    def _finish(self, run: ShardingRun, facts: dict[str, Any]) -> None:
        """Add facts about this kind to the record."""

    # --- places ---

    @property
    def counts_tokens(self) -> bool:
        """Whether documents have token counts."""
        return self.token_count_field is not None or self.tokenizer is not None

    @property
    def token_field(self) -> str | None:
        """The column of token counts, read or temporary."""
        return TOKEN_COLUMN if self.tokenizer is not None else self.token_count_field

    @property
    def folder(self) -> RunFolder:
        """The output with its record."""
        return RunFolder(self.output_path, self.storage_options, record_path=self.record_path)

    @property
    def storage_options(self) -> dict[str, Any] | None:
        """File system options of the output."""
        options = (self.write_kwargs or {}).get("storage_options")
        return None if options is None else dict(options)

    @property
    def _steps_path(self) -> str:
        return (str(self.cache_path) if self.cache_path else f"{self.folder.record}/{STEPS_FOLDER}").rstrip("/")

    # --- the run ---

    def run(
        self,
        executor: BaseExecutor | str | None = None,
        *,
        fresh: bool = False,
        error_budget: float | int | None = 0.01,
        salvage: bool = False,
        listeners: Sequence[Listener] = (),
        progress: bool | None = None,
    ) -> WorkflowRunResult:
        """Write the shards.

        A run can be interrupted at any time; run it again to resume. A finished run is not repeated.

        Args:
            executor: Where to run the pipelines: an executor or a name. Defaults to the local executor.
            fresh: If True, discard the results of an earlier run and start over.
            error_budget: See `Pipeline.run`.
            salvage: See `Pipeline.run`.
            listeners: Called with every event of every pipeline.
            progress: See `Pipeline.run`.

        Raises:
            InputChangedError: The input changed since an earlier, unfinished run read it.
            OutputExistsError: The output was made with other settings or from another input.
        """
        options = {
            "error_budget": error_budget, "salvage": salvage, "listeners": listeners, "progress": progress,
            "url_field": None,
        }  # fmt: skip
        run = ShardingRun(self, as_executor(executor), self._sources(), fresh=fresh, options=options)
        return run.result() if run.begin() else run.go()

    def tokenizer_stages(self) -> list[Stage]:
        """The stage that counts tokens of documents without counts."""
        if self.tokenizer is None:
            return []
        from gristmill.stages.text.models.token_counter import TokenCounter

        return [TokenCounter(self.tokenizer, text_field=self.text_field, count_field=TOKEN_COLUMN)]

    def placement(self, number: int, source: DocumentSource) -> Placement:
        """How the documents of a source are placed; columns that it does not have are omitted.

        Raises:
            MissingColumnError: A requested column is missing.
        """
        named = {
            "split_field": self.split_field,
            "id_field": self.id_field,
            "license_field": self.license_field,
            "token_count_field": self.token_count_field,
            "text_field": self.text_field if self.tokenizer is not None else None,
        }
        wanted = [name for name in named.values() if name is not None]
        found = source.look_for([*wanted, "id", "license"])
        available = [] if found is None else list(found.names)
        for option, name in named.items():
            if found is not None and name is not None and name not in available:
                raise missing_column(option, name, available, looked_at="" if found.complete else found.looked_at)
        by_id = self.id_field or ("id" if "id" in available else None)
        return Placement(
            seed=self.seed,
            source=number,
            splits=self.fractions,
            split_field=self.split_field or (by_id if len(self.fractions) > 1 else None),
            balance=self.balance,
            token_field=self.token_field,
            id_field=by_id,
            license_field=self.license_field or ("license" if "license" in available else None),
            drop_fields=(TOKEN_COLUMN,) if self.tokenizer is not None else (),
        )

    def document_source(self, paths: str | Sequence[str], filetype: str | None = None) -> DocumentSource:
        """The documents at some paths."""
        given = paths if isinstance(paths, str) else tuple(map(str, paths))
        storage = (self.read_kwargs or {}).get("storage_options")
        return DocumentSource(
            given,
            filetype or find_filetype(given, storage_options=storage),
            self.input_blocksize or _BLOCKSIZE,
            None,
            None,
            dict(self.read_kwargs) if self.read_kwargs else None,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(output_path={self.output_path!r})"
