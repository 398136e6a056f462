"""The workflow that removes repeated passages."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from gristmill.stages.deduplication.repeated.counting import RepeatedParts
from gristmill.stages.deduplication.repeated.substrings import PassageRemoval, WindowHashes, WindowRule, WindowUnit
from gristmill.stages.deduplication.repeated.workflow import RepeatedTextWorkflow
from gristmill.stages.deduplication.sorted_runs import RunFiles
from gristmill.stages.deduplication.workflow_steps import Steps


@dataclass(eq=False, repr=False)
class SubstringDeduplicationWorkflow(RepeatedTextWorkflow):
    """Removes passages of at least `min_length` words or bytes that occur more than once, as Lee et al. (2021) do.

    The result is that of a suffix array: finds exactly the windows of `min_length` units that occur elsewhere, in the
    same document or another (by 128-bit hashes). Keeps the first occurrence in source order, or none. Memory does not
    grow with the data, and the result is the same for any number of workers. Every passage that is cut is in the ledger
    of the output; a document with nothing left is dropped as `nothing_left`.

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
        unit: "token" (whitespace-separated words) or "byte".
        min_length: Minimum length of a passage, in units.
        keep: "first" keeps the first occurrence in source order, "none" removes all of them.
        action: "cut", "mark" (do not change the documents, but write the positions to `marks_field`), or "drop" (drop
            documents above `max_share` and leave the others unchanged).
        marks_field: Column for marks: a list of start, end (in characters) and reason.
        max_share: Drop documents with a larger share of repeated text.
        cache_path: Folder for intermediate files; defaults to `steps` in the record.
        files_per_partition: See the readers; instead of `input_blocksize`.
        output_filetype: "jsonl" or "parquet"; defaults to the input format.
        record_path: Where to keep the record of the run, instead of `OUTPUT.gristmill` beside the output.

    Example:
        >>> workflow = SubstringDeduplicationWorkflow(input_path="crawl/", output_path="clean/", min_length=50)
        >>> result = workflow.run()
        >>> result.get_metadata("passages")
    """

    name = "substring_deduplication"
    reason = "repeated_passage"
    removal = PassageRemoval

    _: KW_ONLY
    unit: WindowUnit = "token"
    min_length: int = 50

    # Sequences of all documents (one for about 13 words), and windows of what repeats.
    bytes_per_text_byte = 1.2

    def _rule_of_text(self) -> WindowRule:
        return WindowRule(self.unit, self.min_length)

    def _first_stage(self) -> WindowHashes:
        return WindowHashes(self.text_field, rule=self.rule_of_text)

    def _find(self, steps: Steps) -> RunFiles:
        self._count(steps, "signatures", self._first_stage(), ())
        rule = RepeatedParts(max_count=1, keep_first=False, by_document=True)
        chosen = self._listed(steps, "signatures", "sequences", rule)
        self._count(steps, "windows", WindowHashes(self.text_field, rule=self.rule_of_text, chosen=chosen), ())
        rule = RepeatedParts(max_count=1, keep_first=self.keep == "first", by_document=True)
        return self._listed(steps, "windows", "repeats", rule)
