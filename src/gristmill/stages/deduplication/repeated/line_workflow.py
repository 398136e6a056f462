"""The workflow that removes repeated lines, paragraphs or sentences."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import get_args

from gristmill.errors import UsageError
from gristmill.stages.deduplication.repeated.counting import PartWriter, RepeatedParts
from gristmill.stages.deduplication.repeated.lines import Keep, Scope, Unit, UnitHashes, UnitRemoval, UnitRule
from gristmill.stages.deduplication.repeated.workflow import RepeatedTextWorkflow
from gristmill.stages.deduplication.sorted_runs import RunFiles
from gristmill.stages.deduplication.workflow_steps import Steps


@dataclass(eq=False, repr=False)
class LineDeduplicationWorkflow(RepeatedTextWorkflow):
    """Removes lines, paragraphs or sentences that occur more than `max_count` times.

    Units are compared without the white space around them, with runs of ASCII white space as one. Counts are exact
    (by 128-bit hashes), kept on disk, and the same for any number of workers. Every passage that is cut is in the
    ledger of the output; a document of which nothing is left is dropped as `nothing_left`.

    Args:
        output_path: Where the documents are written.
        input_path: A file, a folder, a glob, a URL, or a list of these.
        input_filetype: "jsonl" or "parquet"; found out by the names of the files when not given.
        input_blocksize: As `blocksize` of the readers.
        input_file_extensions: Which files of a folder to take.
        read_kwargs: As in the readers.
        write_kwargs: As in the writers.
        id_field: The column with the documents' ids (the ledger looks for `id` in any case).
        text_field: The column with the text.
        unit: "line", "paragraph" (lines up to a blank one) or "sentence".
        scope: Where repetitions count: within a "document", a "domain" (the host in `url_field`) or "all".
        max_count: Units that occur more often than this are repeated.
        keep: "first" keeps the first occurrence in source order, "none" removes all of them.
        min_chars: Leave shorter units alone.
        loose: Ignore case, ASCII punctuation and which digit a digit is, as CCNet does (Wenzek et al. 2019).
        url_field: The column with the URL, for scope="domain"; a document without one is compared with itself only.
        action: "cut", "mark" (leave the documents and write the places to `marks_field`), or "drop" (drop documents
            above `max_share` and leave the others as they are).
        marks_field: The column for marks: a list of start, end (in characters) and reason.
        max_share: Drop documents of which a higher share repeats.
        cache_path: Where intermediate files go; by default to `steps` in the record.
        files_per_partition: As in the readers, instead of `input_blocksize`.
        output_filetype: "jsonl" or "parquet"; by default as the input.
        record_path: Where the record of the run is kept, instead of beside the output in `OUTPUT.gristmill`.

    Example:
        >>> workflow = LineDeduplicationWorkflow(input_path="crawl/", output_path="clean/", unit="paragraph")
        >>> result = workflow.run()
        >>> result.get_metadata("passages")
    """

    name = "line_deduplication"

    _: KW_ONLY
    unit: Unit = "line"
    scope: Scope = "all"
    max_count: int = 1
    keep: Keep = "first"
    min_chars: int = 20
    loose: bool = False
    url_field: str = "url"

    # A unit of about 70 bytes leaves 40, and 40 more where it repeats.
    bytes_per_text_byte = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep not in get_args(Keep):
            raise UsageError(f"keep={self.keep!r}: give 'first' or 'none'.")
        if self.max_count < 1:
            raise UsageError(f"max_count={self.max_count!r}: give a whole number from 1 on.")
        self.unit_rule = UnitRule(self.unit, self.scope, self.min_chars, self.loose, self.url_field)
        self.reason = f"repeated_{self.unit}"

    def _first_stage(self) -> UnitHashes:
        return UnitHashes(self.text_field, rule=self.unit_rule, max_count=self.max_count)

    def _find(self, steps: Steps) -> RunFiles:
        reader = steps.source.reader([self.text_field, *self.unit_rule.columns])
        steps.run("signatures", [reader, self._first_stage(), steps.writer("signatures", PartWriter)], id_field=None)
        steps.check_input()
        repeated = RepeatedParts(max_count=self.max_count, keep_first=self.keep == "first", by_document=False)
        return self._listed(steps, "signatures", "repeats", repeated)

    def _cutting_stage(self, repeats: RunFiles) -> UnitRemoval:
        return UnitRemoval(
            repeats,
            self.text_field,
            rule=self.unit_rule,
            action=self.action,
            marks_field=self.marks_field,
            max_share=self.max_share,
            reason=self.reason,
        )
