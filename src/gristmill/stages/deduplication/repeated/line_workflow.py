"""The workflow that removes repeated lines, paragraphs or sentences."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from gristmill.errors import UsageError
from gristmill.stages.deduplication.repeated.counting import RepeatedParts
from gristmill.stages.deduplication.repeated.lines import Scope, Unit, UnitHashes, UnitRemoval, UnitRule
from gristmill.stages.deduplication.repeated.workflow import RepeatedTextWorkflow
from gristmill.stages.deduplication.sorted_runs import RunFiles
from gristmill.stages.deduplication.workflow_steps import Steps


@dataclass(eq=False, repr=False)
class LineDeduplicationWorkflow(RepeatedTextWorkflow):
    """Removes lines, paragraphs or sentences that occur more than `max_count` times.

    Units are compared without surrounding whitespace, with runs of ASCII whitespace as one. Counts are exact (by
    128-bit hashes), kept on disk, and the same for any number of workers. Every passage that is cut is in the ledger of
    the output; a document with nothing left is dropped as `nothing_left`.

    Args:
        output_path: Output folder.
        input_path: A file, folder, glob or URL, or a list of these.
        input_filetype: "jsonl" or "parquet"; detected from the file names by default.
        input_blocksize: See `blocksize` of the readers.
        input_file_extensions: Extensions of the files to read in a folder.
        read_kwargs: See the readers.
        write_kwargs: See the writers.
        id_field: Column that holds document ids (the ledger always looks for `id`).
        text_field: Column that holds the text.
        unit: "line", "paragraph" (lines up to a blank one) or "sentence".
        scope: Where to count repetitions: within a "document", a "domain" (the host in `url_field`) or "all".
        max_count: Units that occur more often than this are repeated.
        keep: "first" keeps the first occurrence in source order, "none" removes all of them.
        min_chars: Ignore shorter units.
        loose: Ignore case and ASCII punctuation, and treat all digits as equal, as CCNet does (Wenzek et al. 2019).
        url_field: Column that holds the URL, for scope="domain"; a document without one is compared with itself only.
        action: "cut", "mark" (do not change the documents, but write the positions to `marks_field`), or "drop" (drop
            documents above `max_share` and leave the others unchanged).
        marks_field: Column for marks: a list of start, end (in characters) and reason.
        max_share: Drop documents with a larger share of repeated text.
        cache_path: Folder for intermediate files; defaults to `steps` in the record.
        files_per_partition: See the readers; instead of `input_blocksize`.
        output_filetype: "jsonl" or "parquet"; defaults to the input format.
        record_path: Where to keep the record of the run, instead of `OUTPUT.gristmill` beside the output.

    Example:
        >>> workflow = LineDeduplicationWorkflow(input_path="crawl/", output_path="clean/", unit="paragraph")
        >>> result = workflow.run()
        >>> result.get_metadata("passages")
    """

    name = "line_deduplication"
    removal = UnitRemoval

    _: KW_ONLY
    unit: Unit = "line"
    scope: Scope = "all"
    max_count: int = 1
    min_chars: int = 20
    loose: bool = False
    url_field: str = "url"

    # A unit of about 70 bytes leaves 40, and 40 more where it repeats.
    bytes_per_text_byte = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_count < 1:
            raise UsageError(f"max_count={self.max_count!r}: must be a whole number, at least 1.")
        self.reason = f"repeated_{self.unit}"

    def _rule_of_text(self) -> UnitRule:
        return UnitRule(self.unit, self.scope, self.min_chars, self.loose, self.url_field)

    def _first_stage(self) -> UnitHashes:
        return UnitHashes(self.text_field, rule=self.rule_of_text, max_count=self.max_count)

    def _find(self, steps: Steps) -> RunFiles:
        self._count(steps, "signatures", self._first_stage(), self.rule_of_text.columns)
        repeated = RepeatedParts(max_count=self.max_count, keep_first=self.keep == "first", by_document=False)
        return self._listed(steps, "signatures", "repeats", repeated)
