"""The workflow that removes repeated passages."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import get_args

from gristmill.errors import UsageError
from gristmill.stages.deduplication.repeated.counting import PartWriter, RepeatedParts
from gristmill.stages.deduplication.repeated.lines import Keep
from gristmill.stages.deduplication.repeated.substrings import PassageRemoval, WindowHashes, WindowRule, WindowUnit
from gristmill.stages.deduplication.repeated.workflow import RepeatedTextWorkflow
from gristmill.stages.deduplication.sorted_runs import RunFiles
from gristmill.stages.deduplication.workflow_steps import Steps


@dataclass(eq=False, repr=False)
class SubstringDeduplicationWorkflow(RepeatedTextWorkflow):
    """Removes passages of at least `min_length` words or bytes that occur more than once, as Lee et al. (2021) do.

    The result is that of a suffix array: every window of `min_length` units that occurs elsewhere, in the same document
    or another, is found (by 128-bit hashes), and nothing else. The first occurrence in source order stays, or none.
    Memory does not grow with the data, and the result is the same for any number of workers. Every passage that is cut
    is in the ledger of the output; a document of which nothing is left is dropped as `nothing_left`.

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
        unit: "token", words that white space separates, or "byte".
        min_length: The shortest passage, in units.
        keep: "first" keeps the first occurrence in source order, "none" removes all of them.
        action: "cut", "mark" (leave the documents and write the places to `marks_field`), or "drop" (drop documents
            above `max_share` and leave the others as they are).
        marks_field: The column for marks: a list of start, end (in characters) and reason.
        max_share: Drop documents of which a higher share repeats.
        cache_path: Where intermediate files go; by default to `steps` in the record.
        files_per_partition: As in the readers, instead of `input_blocksize`.
        output_filetype: "jsonl" or "parquet"; by default as the input.
        record_path: Where the record of the run is kept, instead of beside the output in `OUTPUT.gristmill`.

    Example:
        >>> workflow = SubstringDeduplicationWorkflow(input_path="crawl/", output_path="clean/", min_length=50)
        >>> result = workflow.run()
        >>> result.get_metadata("passages")
    """

    name = "substring_deduplication"
    reason = "repeated_passage"

    _: KW_ONLY
    unit: WindowUnit = "token"
    min_length: int = 50
    keep: Keep = "first"

    # Sequences of all documents (one for about 13 words), and windows of what repeats.
    bytes_per_text_byte = 1.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep not in get_args(Keep):
            raise UsageError(f"keep={self.keep!r}: give 'first' or 'none'.")
        self.window_rule = WindowRule(self.unit, self.min_length)

    def _first_stage(self) -> WindowHashes:
        return WindowHashes(self.text_field, rule=self.window_rule)

    def _find(self, steps: Steps) -> RunFiles:
        first = self.keep == "first"
        steps.run(
            "signatures",
            [steps.source.reader([self.text_field]), self._first_stage(), steps.writer("signatures", PartWriter)],
            id_field=None,
        )
        steps.check_input()
        rule = RepeatedParts(max_count=1, keep_first=False, by_document=True)
        chosen = self._listed(steps, "signatures", "sequences", rule)
        windows = WindowHashes(self.text_field, rule=self.window_rule, chosen=chosen)
        reader = steps.source.reader([self.text_field])
        steps.run("windows", [reader, windows, steps.writer("windows", PartWriter)], id_field=None)
        steps.check_input()
        rule = RepeatedParts(max_count=1, keep_first=first, by_document=True)
        return self._listed(steps, "windows", "repeats", rule)

    def _cutting_stage(self, repeats: RunFiles) -> PassageRemoval:
        return PassageRemoval(
            repeats,
            self.text_field,
            rule=self.window_rule,
            action=self.action,
            marks_field=self.marks_field,
            max_share=self.max_share,
        )
