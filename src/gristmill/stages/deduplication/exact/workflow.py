"""`ExactDeduplicationWorkflow`: removes documents whose text is identical to that of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, get_args

from gristmill.errors import UsageError
from gristmill.stages.deduplication.deduplication_workflow import DeduplicationWorkflow
from gristmill.stages.deduplication.exact.steps import ContentHashes, EqualHashes, Key
from gristmill.stages.deduplication.key_ranges import KeyRanges, hash_cuts, range_count
from gristmill.stages.deduplication.sorted_runs import RunFiles
from gristmill.stages.deduplication.workflow_steps import Steps


@dataclass(eq=False, repr=False)
class ExactDeduplicationWorkflow(DeduplicationWorkflow):
    """Keeps one document of every group of identical texts.

    Three pipelines with files between them: hash all texts, group equal hashes, remove duplicates. Memory does not grow
    with the data, the survivors are the same for any number of workers, and every removal is in the ledger of the
    output with its survivor.

    Args:
        output_path: Output folder for the remaining documents, or for the ids of the others without `perform_removal`.
        input_path: A file, folder, glob or URL, or a list of these.
        input_filetype: "jsonl" or "parquet"; detected from the file names by default.
        input_blocksize: See `blocksize` of the readers.
        identification_batchsize: Accepted for compatibility; batches are formed by size here.
        input_file_extensions: Extensions of the files to read in a folder.
        read_kwargs: See the readers.
        write_kwargs: See the writers.
        assign_id: Identify documents in the list of duplicates by partition and row; the default without `id_field`.
        id_field: Column that holds document ids (the ledger always looks for `id`).
        text_field: Column that holds the text.
        perform_removal: If True, write the remaining documents; otherwise only the ids of those to remove, to
            `ExactDuplicateIds/`.
        total_nparts: Accepted for compatibility; the number of buckets depends on the amount of data.
        rmm_pool_size: For GPUs; has no effect.
        spill_memory_limit: For GPUs; has no effect.
        env_vars: Accepted for compatibility; has no effect.
        use_async_memory: For GPUs; has no effect.
        cache_path: Folder for intermediate files; defaults to `steps` in the record.
        record_path: Where to keep the record of the run, instead of `OUTPUT.gristmill` beside the output.
        files_per_partition: See the readers; instead of `input_blocksize`.
        output_filetype: "jsonl" or "parquet"; defaults to the input format.
        survivor: Which document of a group to keep: "first" in source order, "longest" text, "best" by `score_field`,
            "newest" by the dates in `score_field`, or by "priority" of sources.
        score_field: Column of numbers for survivor="best" (the highest is kept), or of dates for "newest".
        source_priority: Patterns of source paths for survivor="priority", the preferred ones first.
        merge_empty: Whether empty and missing texts count as duplicates of each other.
        key: What to compare: "text", or the normalised "url" or "title". URLs are normalised by `UrlNormalizer`,
            without scheme and `www.`; titles ignore case, punctuation and repeated spaces.
        key_field: Column that holds the URL or title; defaults to `url` or `title`.
        against: Other documents (see `input_path`) to compare with. They are not changed, and input documents that
            duplicate them are removed.

    Example:
        >>> workflow = ExactDeduplicationWorkflow(input_path="crawl/", output_path="unique/", perform_removal=True)
        >>> result = workflow.run()
        >>> result.get_metadata("num_removed")
    """

    name = "exact_deduplication"
    reason = "exact_duplicate"
    ids_folder = "ExactDuplicateIds"
    id_generator_file = "exact_id_generator.json"

    without_effect = (
        "identification_batchsize",
        "total_nparts",
        "rmm_pool_size",
        "spill_memory_limit",
        "env_vars",
        "use_async_memory",
    )

    output_path: str
    input_path: str | Sequence[str] | None = None
    input_filetype: str | None = None
    input_blocksize: int | str | None = None
    identification_batchsize: int | None = None
    input_file_extensions: Sequence[str] | None = None
    read_kwargs: Mapping[str, Any] | None = None
    write_kwargs: Mapping[str, Any] | None = None
    assign_id: bool | None = None
    id_field: str | None = None
    text_field: str = "text"
    perform_removal: bool = False
    total_nparts: int | None = None
    rmm_pool_size: int | str | None = None
    spill_memory_limit: int | str | None = None
    env_vars: Mapping[str, Any] | None = None
    use_async_memory: bool | None = None
    _: KW_ONLY
    cache_path: str | None = None
    files_per_partition: int | None = None
    output_filetype: str | None = None
    survivor: str | None = "first"
    score_field: str | None = None
    source_priority: Sequence[str] | None = None
    merge_empty: bool = False
    key: Key = "text"
    key_field: str | None = None
    record_path: str | None = None
    against: str | Sequence[str] | None = None

    bytes_per_document = 64.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key not in get_args(Key):
            raise UsageError(f"key={self.key!r}: must be one of {', '.join(get_args(Key))}.")
        if self.key == "text" and self.key_field is not None:
            raise UsageError(
                f"key_field={self.key_field!r} applies to key='url' and 'title'; set the text column with text_field."
            )
        self.compared_field = self.text_field if self.key == "text" else self.key_field or self.key
        self.reason = "exact_duplicate" if self.key == "text" else f"same_{self.key}"

    @property
    def _named_columns(self) -> dict[str, str | None]:
        return {**super()._named_columns, "text_field" if self.key == "text" else "key_field": self.compared_field}

    def _first_stage(self) -> ContentHashes:
        id_field = self.id_field or "id"
        return ContentHashes(
            self.text_field,
            id_field=id_field,
            rule=self.rule,
            merge_empty=self.merge_empty,
            key=self.key,
            key_field=self.compared_field,
        )

    def _find(self, steps: Steps) -> RunFiles:
        id_field = self.id_field or "id"
        columns = [self.text_field, self.compared_field, id_field, *self.rule.columns]
        found = steps.run_on_documents("signatures", [self._first_stage()], columns)
        source = KeyRanges(found, hash_cuts(range_count(found.size)))
        steps.run("groups", [source, steps.removing(EqualHashes()), steps.writer("groups")], id_field=None)
        return steps.runs("groups")
