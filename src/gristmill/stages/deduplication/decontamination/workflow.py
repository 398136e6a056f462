"""`DecontaminationWorkflow`: finds documents that contain benchmark items, and drops, cuts or marks them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, get_args

from gristmill.errors import UsageError
from gristmill.ledger.record.contamination import write_contamination
from gristmill.ledger.record.manifest import Manifest
from gristmill.stages.deduplication.decontamination.benchmarks import find_benchmarks, parse_fields
from gristmill.stages.deduplication.decontamination.index import (
    BenchmarkFiles,
    BenchmarkIndex,
    BenchmarkReader,
    GramRule,
    ItemList,
)
from gristmill.stages.deduplication.decontamination.removal import Action, ContaminationRemoval
from gristmill.stages.deduplication.decontamination.search import CommonGrams, ContaminatedItems, GramHits
from gristmill.stages.deduplication.decontamination.similarity import (
    DEFAULT_EPS,
    DEFAULT_MODEL,
    BenchmarkItems,
    ItemTexts,
    ItemVectors,
    SimilarItems,
    SimilarPairs,
    embedder,
    item_cuts,
)
from gristmill.stages.deduplication.decontamination.summary import summarize
from gristmill.stages.deduplication.deduplication_workflow import DeduplicationWorkflow
from gristmill.stages.deduplication.key_ranges import KeyRanges, RangeReader, document_cuts, hash_cuts, range_count
from gristmill.stages.deduplication.semantic.vectors import WithText
from gristmill.stages.deduplication.sorted_runs import RunFiles, count_distinct
from gristmill.stages.deduplication.workflow_steps import Stage, Steps
from gristmill.storage.files import InputFile

Match = Literal["13gram", "8gram", "fuzzy", "semantic"]

_RULES: dict[str, tuple[GramRule, float]] = {
    "13gram": (GramRule(13, 13, 8), 0.0),
    "8gram": (GramRule(8, 8, 8), math.nextafter(0.5, 1)),  # more than half
    "fuzzy": (GramRule(5, 13, 8), 0.6),
    "semantic": (GramRule(13, 13, 8), 0.0),  # of which only `min_words` is used
}
_OF_NGRAMS = ("ngram", "min_share", "max_documents")
_OF_EMBEDDINGS = ("eps", "model_identifier")
_RANGE_BYTES = 24 << 20
SAMPLE_BYTES = 1 << 18
"""How much of the input a forecast embeds."""


@dataclass(eq=False, repr=False)
class DecontaminationWorkflow(DeduplicationWorkflow):
    """Finds documents that contain benchmark items, and drops them, cuts the passages out, or marks them.

    Words are compared in lower case and without punctuation, split at whitespace (Brown et al. 2020, appendix C). The
    fields of an item (and each of its choices) are searched for separately. N-grams are found by hash, and every match
    is verified letter by letter. The results are in `contamination.json` of the record: for each benchmark and item its
    share, the documents and the passage.

    Args:
        input_path: The documents: a file, folder, glob or URL, or a list of these.
        output_path: Output folder for the remaining documents.
        benchmarks: A folder of benchmark files (JSONL, Parquet or Arrow). Each file directly in it is a benchmark, and
            so is each subfolder.
        match: What counts as contaminated. "13gram": any 13 words in a row, as for GPT-3 (Brown et al. 2020). "8gram":
            more than half of an item's words are in 8-grams shared with one document, as for Tülu 3 and OLMo 2 (Lambert
            et al. 2024). "fuzzy": 60 % of them are in shared 5-grams, which finds an item with a word in ten replaced.
            "semantic": the embedding of the document is within `eps` of that of the item, which finds paraphrases. A
            document is embedded as a whole, up to the model's limit (256 tokens for the default model), which misses a
            paraphrase among much other text.
        action: "drop" drops contaminated documents, "cut" removes the passages, "mark" adds a column `contamination`.
            "semantic" finds no passages, so it cannot cut.
        fields: The fields of an item to search for; `NAME:FIELD` for one benchmark. Defaults to question, answer and
            choices, if present.
        ngram: Number of words in an n-gram, instead of that of `match`.
        min_share: Minimum share of an item's words that one document must contain, instead of that of `match`; 0 for
            any n-gram.
        min_words: Texts with fewer words are not searched for, because they are found everywhere; the report counts
            them. Texts shorter than an n-gram (than 13 words with "fuzzy") are searched for as a whole.
        eps: With "semantic", the maximum distance (1 - cosine) between an item and a document; defaults to 0.15.
        model_identifier: With "semantic", the sentence model: a hub id, a local folder, or `package:NAME`; defaults to
            all-MiniLM-L6-v2, whose weights are installed with the extra `semantic`.
        max_documents: Ignore n-grams that occur in more documents; GPT-3 used 10. By default none is ignored: a leaked
            item often has many copies.
        window_chars: When cutting, also cut this many characters on either side of a passage (GPT-3: 200).
        min_piece_chars: When cutting, remove remaining pieces shorter than this (GPT-3: 200).
        max_pieces: When cutting, drop documents that would fall into more pieces (GPT-3: 10).
        text_field: Column that holds the text.
        id_field: Column that holds document ids (the ledger always looks for `id`).
        input_filetype: "jsonl" or "parquet"; detected from the file names by default.
        input_blocksize: See `blocksize` of the readers.
        files_per_partition: See the readers; instead of `input_blocksize`.
        input_file_extensions: Extensions of the files to read in a folder.
        output_filetype: "jsonl" or "parquet"; defaults to the input format.
        read_kwargs: See the readers.
        write_kwargs: See the writers.
        cache_path: Folder for intermediate files; defaults to `steps` in the record.
        record_path: Where to keep the record of the run, instead of `OUTPUT.gristmill` beside the output.

    Example:
        >>> workflow = DecontaminationWorkflow("crawl/", "clean/", benchmarks="benchmarks/")
        >>> workflow.run().get_metadata("contaminated")
    """

    name = "decontamination"
    reason = "contaminated"
    ids_folder = "ContaminatedIds"
    id_generator_file = "decontamination_id_generator.json"
    first_step = "matches"
    earlier_steps = ("benchmarks", "item_vectors")
    perform_removal = True
    survivor = None
    score_field = None
    source_priority = None

    input_path: str | Sequence[str] | None
    output_path: str
    benchmarks: str | Sequence[str] = ""
    _: KW_ONLY
    match: Match = "13gram"
    action: Action = "drop"
    fields: Sequence[str] | None = None
    ngram: int | None = None
    min_share: float | None = None
    min_words: int | None = None
    max_documents: int | None = None
    window_chars: int = 200
    min_piece_chars: int = 200
    max_pieces: int = 10
    eps: float | None = None
    model_identifier: str | None = None
    text_field: str = "text"
    id_field: str | None = None
    input_filetype: str | None = None
    input_blocksize: int | str | None = None
    files_per_partition: int | None = None
    input_file_extensions: Sequence[str] | None = None
    output_filetype: str | None = None
    read_kwargs: Mapping[str, Any] | None = None
    write_kwargs: Mapping[str, Any] | None = None
    cache_path: str | None = None
    record_path: str | None = None

    bytes_per_document = 8.0
    bytes_per_text_byte = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, kind in (("match", Match), ("action", Action)):
            if getattr(self, option) not in get_args(kind):
                raise UsageError(f"{option}={getattr(self, option)!r}: must be one of {', '.join(get_args(kind))}.")
        if not self.benchmarks:
            raise UsageError("benchmarks='': set the folder of benchmark files (--benchmarks DIR).")
        self._check_match()
        rule, share = _RULES[self.match]
        ngram = rule.ngram if self.ngram is None else self.ngram
        words = rule.min_words if self.min_words is None else self.min_words
        self.gram_rule = GramRule(ngram, max(ngram, rule.whole_below if self.ngram is None else ngram), words)
        self.share = share if self.min_share is None else float(self.min_share)
        if not 0 <= self.share <= 1:
            raise UsageError(f"min_share={self.min_share!r}: must be between 0 and 1.")
        self.distance = DEFAULT_EPS if self.eps is None else float(self.eps)
        if not 0 <= self.distance < 1:
            raise UsageError(f"eps={self.eps!r}: a distance (1 - cosine) must be at least 0 and below 1.")
        if self.match == "semantic":
            self.share = 1.0 - self.distance
            self.sample_bytes = SAMPLE_BYTES  # only a few hundred texts per second are embedded
        for option, least in (("max_documents", 1), ("window_chars", 0), ("min_piece_chars", 0), ("max_pieces", 1)):
            value = getattr(self, option)
            if value is not None and (not isinstance(value, int) or value < least):
                raise UsageError(f"{option}={value!r}: must be a whole number, at least {least}.")

    def _check_match(self) -> None:
        """Reject options that do not apply to this kind of matching."""
        semantic = self.match == "semantic"
        if semantic and self.action == "cut":
            raise UsageError(
                "action='cut' with match='semantic': documents are compared as a whole, so there is no passage to "
                "cut. Use 'drop' or 'mark', or match='fuzzy', which finds passages."
            )
        for option in _OF_NGRAMS if semantic else _OF_EMBEDDINGS:
            if getattr(self, option) is not None:
                uses = "which compares embeddings" if semantic else "which compares words: use match='semantic'"
                raise UsageError(f"{option}={getattr(self, option)!r} does not apply to match={self.match!r}, {uses}.")

    # --- the steps ---

    def _first_stage(self) -> Stage:
        id_field = self.id_field or "id"
        if self.match == "semantic":
            return SimilarItems(RunFiles(()), self.text_field, eps=self.distance, id_field=id_field)
        return GramHits(RunFiles(()), self.text_field, id_field=id_field)

    def _first_stages(self) -> list[Stage]:
        last = self._first_stage()
        return [last] if self.match != "semantic" else [*self._embedding_stages(), last]

    def _forecast_stages(self) -> list[Stage]:
        if self.match == "semantic":
            return self._first_stages()
        table = self._benchmark_reader(self._found_benchmarks()).table()
        return [GramHits(RunFiles(()), self.text_field, id_field=self.id_field or "id", table=table)]

    def _embedding_stages(self) -> list[Stage]:
        model = self.model_identifier or DEFAULT_MODEL
        return [WithText(self.text_field), embedder(model, self.text_field)]

    def _found_benchmarks(self) -> dict[str, list[InputFile]]:
        return find_benchmarks(self.benchmarks, (self.read_kwargs or {}).get("storage_options"))

    def _benchmark_reader(self, benchmarks: Mapping[str, Sequence[InputFile]]) -> BenchmarkReader:
        storage = (self.read_kwargs or {}).get("storage_options")
        fields = parse_fields(self.fields, list(benchmarks))
        if self.match == "semantic":
            return BenchmarkItems(benchmarks, fields, self.gram_rule.min_words, storage_options=storage)
        return BenchmarkIndex(benchmarks, fields, self.gram_rule, storage_options=storage)

    def _find(self, steps: Steps) -> RunFiles:
        benchmarks = self._found_benchmarks()
        reader = self._benchmark_reader(benchmarks)
        steps.run("benchmarks", [BenchmarkFiles(benchmarks), reader, steps.writer("benchmarks")], id_field=None)
        index = steps.runs("benchmarks")
        common = None
        if self.match == "semantic":
            found = self._find_similar(steps, index)
        else:
            found, common = self._find_grams(steps, index)
        self._report = self._summary(steps, index, found, common)
        write_contamination(self.folder, self._report)
        return found

    def _find_grams(self, steps: Steps, index: RunFiles) -> tuple[RunFiles, RunFiles | None]:
        matches = self._match(steps, [GramHits(index, self.text_field, id_field=self.id_field or "id")])
        common = None
        if self.max_documents is not None:
            source = KeyRanges(matches, hash_cuts(1))
            steps.run("common", [source, CommonGrams(self.max_documents), steps.writer("common")], id_field=None)
            common = steps.runs("common")
        pairs = ContaminatedItems(index, min_share=self.share, common=common)
        return self._pair(steps, matches, pairs), common

    def _find_similar(self, steps: Steps, index: RunFiles) -> RunFiles:
        model = self.model_identifier or DEFAULT_MODEL
        source = KeyRanges(index, item_cuts(ItemList(index)))
        embedded: list[Stage] = [ItemTexts(), embedder(model, "text"), ItemVectors()]
        steps.run("item_vectors", [source, *embedded, steps.writer("item_vectors")], id_field=None)
        similar = SimilarItems(
            steps.runs("item_vectors"), self.text_field, eps=self.distance, id_field=self.id_field or "id"
        )
        matches = self._match(steps, [*self._embedding_stages(), similar])
        return self._pair(steps, matches, SimilarPairs())

    def _match(self, steps: Steps, stages: Sequence[Stage]) -> RunFiles:
        """Run the step that reads the documents."""
        reader = steps.source.reader([self.text_field, self.id_field or "id"])
        steps.run("matches", [reader, *stages, steps.writer("matches")])
        steps.check_input()
        return steps.runs("matches")

    def _pair(self, steps: Steps, matches: RunFiles, pairs: RangeReader) -> RunFiles:
        """Run the step that lists contaminated documents with their items."""
        source = KeyRanges(matches, document_cuts(matches, range_count(matches.size, _RANGE_BYTES)))
        steps.run("contaminated", [source, pairs, steps.writer("contaminated")], id_field=None)
        return steps.runs("contaminated")

    def _summary(self, steps: Steps, index: RunFiles, found: RunFiles, common: RunFiles | None) -> dict[str, Any]:
        if self.match == "semantic":
            how: dict[str, Any] = {"eps": self.distance, "model": self.model_identifier or DEFAULT_MODEL}
        else:
            how = {"ngram": self.gram_rule.ngram, "min_share": round(self.share, 6)}
        settings = {
            "match": self.match,
            **how,
            "min_words": self.gram_rule.min_words,
            "max_documents": self.max_documents,
            "action": self.action,
            "contaminated": count_distinct(found, "document"),
            "common_ngrams": 0 if common is None else sum(map(len, common.parts("gram"))),
        }
        return {**settings, **summarize(ItemList(index), found, steps.partition_ids)}

    def _remover(self, steps: Steps, removals: RunFiles, *, step: str | None = None) -> Stage:
        return ContaminationRemoval(
            removals,
            steps.runs("benchmarks"),
            self.text_field,
            action=self.action,
            min_share=self.share,
            by_meaning=self.match == "semantic",
            window_chars=self.window_chars,
            min_piece_chars=self.min_piece_chars,
            max_pieces=self.max_pieces,
        )

    def _facts(self, steps: Steps, removals: RunFiles | None) -> dict[str, Any]:
        first = Manifest(steps.folder(self.first_step)).load().values()
        output = Manifest(self.folder).load().values()
        return {
            "documents": sum(entry.rows_read for entry in first),
            "quarantined": sum(entry.quarantined for entry in first),
            "damaged": [f"{file}." for entry in first for file in entry.damaged or ()],
            "num_removed": sum(entry.rows_dropped for entry in output),
            "perform_removal": True,
            "output": self.output_path,
            **{name: self._report[name] for name in ("match", "action", "contaminated", "common_ngrams", "benchmarks")},
        }
