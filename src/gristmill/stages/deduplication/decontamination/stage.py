"""Decontamination as a stage of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.pipeline.planner import expand
from gristmill.stages.base import Spec
from gristmill.stages.deduplication.decontamination.removal import MARK_FIELD, Action
from gristmill.stages.deduplication.decontamination.workflow import DecontaminationWorkflow, Match
from gristmill.stages.deduplication.stages import Deduplication


class Decontamination(Deduplication):
    """Drops documents that contain benchmark items, cuts the passages out, or marks them.

    The results are in `contamination.json` of the record; `gristmill contamination OUTPUT` shows them.

    Args:
        benchmarks: A folder of benchmark files (JSONL, Parquet or Arrow). Each file directly in it is a benchmark, and
            so is each subfolder.
        text_field: Column that holds the text.
        match: "13gram" (any 13 words in a row, as for GPT-3), "8gram" (more than half of an item's words in shared
            8-grams, as for Tülu 3 and OLMo 2), "fuzzy" (60 % of them in shared 5-grams) or "semantic" (embeddings
            within `eps`).
        action: "drop", "cut" (not with "semantic") or "mark", which adds a column `contamination`.
        fields: The fields of an item to search for; `NAME:FIELD` for one benchmark. Defaults to question, answer and
            choices, if present.
        ngram: Number of words in an n-gram, instead of that of `match`.
        min_share: Minimum share of an item's words that one document must contain, instead of that of `match`; 0 for
            any n-gram.
        min_words: Texts with fewer words are not searched for.
        max_documents: Ignore n-grams that occur in more documents; GPT-3 used 10.
        window_chars: When cutting, also cut this many characters on either side of a passage.
        min_piece_chars: When cutting, remove remaining pieces shorter than this.
        max_pieces: When cutting, drop documents that would fall into more pieces.
        eps: With "semantic", the maximum distance (1 - cosine) between an item and a document; defaults to 0.15.
        model_identifier: With "semantic", the sentence model; defaults to all-MiniLM-L6-v2.

    Example:
        >>> pipeline.add_stage(Decontamination("benchmarks/", match="8gram"))
    """

    notes_changes = True
    name = "Decontamination"
    score_field = None

    def __init__(
        self,
        benchmarks: str,
        text_field: str = "text",
        *,
        match: Match = "13gram",
        action: Action = "drop",
        fields: Sequence[str] | None = None,
        ngram: int | None = None,
        min_share: float | None = None,
        min_words: int | None = None,
        max_documents: int | None = None,
        window_chars: int = 200,
        min_piece_chars: int = 200,
        max_pieces: int = 10,
        eps: float | None = None,
        model_identifier: str | None = None,
    ) -> None:
        self.benchmarks = benchmarks
        self.text_field = text_field
        self.match: Match = match
        self.action: Action = action
        self.fields = None if fields is None else list(fields)
        self.ngram = ngram
        self.min_share = min_share
        self.min_words = min_words
        self.max_documents = max_documents
        self.window_chars = window_chars
        self.min_piece_chars = min_piece_chars
        self.max_pieces = max_pieces
        self.eps = eps
        self.model_identifier = model_identifier
        self.workflow(output_path="clean/")  # refuses invalid options

    def outputs(self) -> Spec:
        return ["data"], [MARK_FIELD] if self.action == "mark" else []

    def check_environment(self) -> None:
        for stage in expand(self.workflow(output_path="clean/")._first_stages()):
            stage.check_environment()

    def workflow(self, *, output_path: str, **places: Any) -> DecontaminationWorkflow:
        return DecontaminationWorkflow(None, output_path, **self.options_of(DecontaminationWorkflow), **places)
