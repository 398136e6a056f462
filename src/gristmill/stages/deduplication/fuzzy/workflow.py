"""`FuzzyDeduplicationWorkflow`: removes documents that share most of their word sequences with another one."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, get_args

import numpy as np

from gristmill.backends.base import BaseExecutor
from gristmill.errors import UsageError
from gristmill.stages.deduplication.deduplication_workflow import DeduplicationWorkflow
from gristmill.stages.deduplication.fuzzy.banding import (
    Banding,
    ComparedPairs,
    derive_banding,
    estimated_precision,
    near_threshold,
    random_sample,
    recall_of_estimates,
)
from gristmill.stages.deduplication.fuzzy.candidates import BandGroups, NewBandGroups
from gristmill.stages.deduplication.fuzzy.checked_sample import SampledPairs, checked
from gristmill.stages.deduplication.fuzzy.clusters import Clusters, UnverifiedPairs, VerifiedPairs
from gristmill.stages.deduplication.fuzzy.index import FuzzyIndex, fingerprint_of, is_index
from gristmill.stages.deduplication.fuzzy.shingle_store import CandidateShingles, Kept
from gristmill.stages.deduplication.fuzzy.signatures import (
    BANDS_ENDING,
    SHINGLES_ENDING,
    BandWriter,
    IndexWriter,
    MinHashes,
)
from gristmill.stages.deduplication.key_ranges import KeyRanges, RangeReader, document_cuts, hash_cuts, range_count
from gristmill.stages.deduplication.removal import document_names
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, joined, open_run
from gristmill.stages.deduplication.source import DocumentSource, Keys
from gristmill.stages.deduplication.workflow_steps import Stage, Steps
from gristmill.stages.resources import Resources
from gristmill.storage.partitions import Partition

Verify = Literal["pairs", "cluster", "signature"]
Device = Literal["auto", "cpu", "cuda"]
_GPU_SHARE = 0.25
"""GPU share of a worker that computes signatures; it makes shingles on the CPU at the same time."""
_PAIR_RANGE_BYTES = 4 << 20
_MOST_RETRACTED = 1000
INDEX_STEPS = {
    "bands": ("signatures", BANDS_ENDING),
    "shingles": ("signatures", SHINGLES_ENDING),
    "pairs": ("pairs", ""),
}
"""What an index keeps of a run: the steps that produce it, and the file name endings."""
DEFAULT_THRESHOLD = 0.8

_BANDS, _ROWS = 20, 13
"""The default of each option if only the other is set, as in NeMo Curator."""


@dataclass(eq=False, repr=False)
class FuzzyDeduplicationWorkflow(DeduplicationWorkflow):
    """Keeps one document of every group of near-duplicates.

    MinHash and locality-sensitive hashing find candidate pairs; then their similarity (the Jaccard similarity of their
    shingles) is computed exactly, and only pairs at or above the threshold count. Six pipelines with files between
    them; memory does not grow with the documents, and the survivors are the same for any number of workers.

    Shingles are sequences of five lower-case words. A document with fewer words has one shingle, all of its words, so
    it only matches documents with the same words; one without any word matches only the same text. Empty documents
    match none.

    Args:
        output_path: Output folder for the remaining documents, or for the ids of the others without `perform_removal`.
        cache_path: Folder for intermediate files; defaults to `steps` in the record.
        record_path: Where to keep the record of the run, instead of `OUTPUT.gristmill` beside the output.
        input_path: A file, folder, glob or URL, or a list of these.
        input_filetype: "jsonl" or "parquet"; detected from the file names by default.
        input_blocksize: See `blocksize` of the readers.
        input_file_extensions: Extensions of the files to read in a folder.
        read_kwargs: See the readers.
        write_kwargs: See the writers.
        text_field: Column that holds the text.
        perform_removal: If True, write the remaining documents; otherwise only the ids of those to remove, to
            `FuzzyDuplicateIds/`.
        seed: Seed of the hash functions.
        char_ngrams: Use shingles of this many characters instead of words.
        num_bands: Number of bands of a signature; 20 if only `minhashes_per_band` is set, and if neither is, both are
            derived from the threshold.
        minhashes_per_band: Number of hashes per band; 13 if only `num_bands` is set.
        use_64_bit_hash: Accepted for compatibility; shingles always have 64 bits here.
        bands_per_iteration: Accepted and checked; all bands are written at once.
        env_vars: Accepted for compatibility; has no effect.
        threshold: Minimum Jaccard similarity of duplicates.
        word_ngrams: Number of words per shingle.
        verify: How to verify candidates. "pairs" compares every candidate pair exactly; "cluster" also splits clusters
            linked only transitively, so that each removed document reaches the threshold with its survivor; "signature"
            compares signatures of 256 hashes instead of shingles, which takes less disk and has an error of about
            0.025; None treats every candidate as a duplicate.
        assign_id: Identify documents in the list of duplicates by partition and row; the default without `id_field`.
        id_field: Column that holds document ids (the ledger always looks for `id`).
        files_per_partition: See the readers; instead of `input_blocksize`.
        output_filetype: "jsonl" or "parquet"; defaults to the input format.
        survivor: Which document of a group to keep: "first" in source order, "longest", "best" or "newest" by
            `score_field`, or by "priority" of sources.
        score_field: Column of numbers for survivor="best" (the highest is kept), or of dates for "newest".
        source_priority: Patterns of source paths for survivor="priority", the preferred ones first.
        merge_empty: Whether empty and missing texts count as duplicates of each other.
        device: Where to compute signatures: "cpu", "cuda", or "auto", which uses GPUs if the executor has some and
            torch is installed. The result is the same.
        normalize_text: Accepted for compatibility; words are always compared in lower case.
        cache_kwargs: Accepted for compatibility; intermediate files use the options of `write_kwargs`.
        use_async_memory: For GPUs; has no effect.
        lsh_num_output_partitions: Accepted for compatibility; the number of buckets depends on the amount of data.
        lsh_rmm_pool_size: For GPUs; has no effect.
        lsh_spill_memory_limit: For GPUs; has no effect.
        against: Other documents (see `input_path`) to compare with. They are not changed, and input documents that
            duplicate them are removed.

    Example:
        >>> workflow = FuzzyDeduplicationWorkflow(input_path="crawl/", output_path="unique/", perform_removal=True)
        >>> result = workflow.run()
        >>> result.get_metadata("recall")
    """

    name = "fuzzy_deduplication"
    reason = "near_duplicate"
    ids_folder = "FuzzyDuplicateIds"
    id_generator_file = "fuzzy_id_generator.json"

    without_effect = (
        "use_64_bit_hash",
        "bands_per_iteration",
        "env_vars",
        "normalize_text",
        "cache_kwargs",
        "use_async_memory",
        "lsh_num_output_partitions",
        "lsh_rmm_pool_size",
        "lsh_spill_memory_limit",
    )

    cache_path: str | None = None
    output_path: str = ""
    input_path: str | Sequence[str] | None = None
    input_filetype: str | None = None
    input_blocksize: int | str | None = None
    input_file_extensions: Sequence[str] | None = None
    read_kwargs: Mapping[str, Any] | None = None
    write_kwargs: Mapping[str, Any] | None = None
    text_field: str = "text"
    perform_removal: bool = False
    seed: int = 42
    char_ngrams: int | None = None
    num_bands: int | None = None
    minhashes_per_band: int | None = None
    use_64_bit_hash: bool | None = None
    bands_per_iteration: int | None = None
    env_vars: Mapping[str, Any] | None = None
    _: KW_ONLY
    threshold: float = DEFAULT_THRESHOLD
    word_ngrams: int = 5
    verify: Verify | None = "pairs"
    assign_id: bool | None = None
    id_field: str | None = None
    files_per_partition: int | None = None
    output_filetype: str | None = None
    survivor: str | None = "first"
    score_field: str | None = None
    source_priority: Sequence[str] | None = None
    merge_empty: bool = False
    device: Device = "auto"
    normalize_text: bool | None = None
    cache_kwargs: Mapping[str, Any] | None = None
    use_async_memory: bool | None = None
    lsh_num_output_partitions: int | None = None
    lsh_rmm_pool_size: int | str | None = None
    lsh_spill_memory_limit: int | str | None = None
    record_path: str | None = None
    against: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._index: FuzzyIndex | None = None
        if not 0 < self.threshold <= 1:
            raise UsageError(f"threshold={self.threshold!r}: a Jaccard similarity must be above 0 and at most 1.")
        if self.verify not in ("pairs", "cluster", "signature", None):
            raise UsageError(f"verify={self.verify!r}: must be 'pairs', 'cluster', 'signature' or None.")
        for option, value in (("word_ngrams", self.word_ngrams), ("char_ngrams", self.char_ngrams)):
            if value is not None and not 1 <= value <= 1000:
                raise UsageError(f"{option}={value!r}: must be a whole number from 1 to 1000.")
        if self.device not in get_args(Device):
            raise UsageError(f"device={self.device!r}: must be one of {', '.join(get_args(Device))}.")
        self.banding = _banding(self.threshold, self.num_bands, self.minhashes_per_band)
        rounds = self.bands_per_iteration
        if rounds is not None and not 1 <= rounds <= self.banding.bands:
            raise UsageError(f"bands_per_iteration={rounds}: must be between 1 and the {self.banding.bands} bands.")

    # The shingles of candidates are kept; on web text these are about a fifth of all documents.
    bytes_per_text_byte = 0.25
    # A dozen numbers for each candidate, to form clusters.
    memory_per_document = 24.0

    @property
    def bytes_per_document(self) -> float:  # type: ignore[override]
        """Approximate bytes of intermediate files per document: three numbers for each band."""
        return 24.0 * self.banding.bands

    def _first_stage(self) -> MinHashes:
        return MinHashes(
            self.text_field,
            banding=self.banding,
            word_ngrams=self.word_ngrams,
            char_ngrams=self.char_ngrams,
            seed=self.seed,
            merge_empty=self.merge_empty,
            keep_shingles=self._index is not None,
            id_field=self.id_field or "id",
        )

    def _notes(self) -> list[str]:
        return [f"signatures: {self.banding}", *super()._notes()]

    def _on_gpu(self, executor: BaseExecutor) -> bool:
        """Whether workers should compute signatures on GPUs; those without CUDA fall back to the kernel."""
        if self.device == "cpu":
            return False
        torch, gpus = importlib.util.find_spec("torch") is not None, executor.capacity().gpus
        if self.device == "cuda" and not (torch and gpus):
            found = f"torch is {'installed' if torch else 'not installed'}, and the executor has {gpus:g} GPUs"
            raise UsageError(f"device='cuda': {found}. Use device='auto' to use GPUs only if available.")
        return torch and gpus > 0

    def _find(self, steps: Steps) -> RunFiles:
        id_field = self.id_field or "id"
        hashes: Stage = self._first_stage()
        if self._on_gpu(steps.executor):
            hashes = hashes.with_(resources=Resources(cpus=1.0, gpus=_GPU_SHARE))
        index = self._index
        kind = BandWriter if index is None else IndexWriter
        fields = [self.text_field, *([] if index is None else [id_field])]
        bands = steps.run_on_documents("signatures", [hashes], fields, kind=kind, id_field=None)
        if index is not None:
            bands = steps.runs("signatures", ending=BANDS_ENDING)
        source = KeyRanges(bands, hash_cuts(range_count(bands.size)))
        groups = BandGroups() if index is None else NewBandGroups(index.runs("bands"), first_new=steps.first_key)
        steps.run("candidates", [source, groups, steps.writer("candidates")], id_field=None)
        candidates = steps.runs("candidates")
        columns = [self.text_field, id_field, *self.rule.columns]
        kept: Kept = "signatures" if self.verify == "signature" else "sets"
        if index is not None:
            kept = "lists"
            documents = joined(index.runs("shingles"), steps.runs("signatures", ending=SHINGLES_ENDING))
        else:
            # Different hash functions from those of the bands, which selected pairs that agree by chance.
            shingles = self._shingles(candidates, seed=self.seed + 1 if kept == "signatures" else None)
            documents = steps.run_on_documents("shingles", [shingles], columns)
        count = range_count(candidates.size, _PAIR_RANGE_BYTES)
        source = KeyRanges(candidates, document_cuts(candidates, count))
        pairs = UnverifiedPairs() if self.verify is None else VerifiedPairs(documents, kept)
        steps.run("pairs", [source, pairs, steps.writer("pairs")], id_field=None)
        edges = steps.runs("pairs") if index is None else joined(index.runs("pairs"), steps.runs("pairs"))
        clusters = Clusters(documents, kept, threshold=self.threshold, chains=self.verify != "cluster")
        listing = clusters if index is not None else steps.removing(clusters)
        steps.run("clusters", [KeyRanges(edges, hash_cuts(1)), listing, steps.writer("clusters")], id_field=None)
        removals = steps.runs("clusters")
        if index is not None:  # the index keeps the whole list, the output uses its own part
            source = KeyRanges(removals, hash_cuts(1))
            steps.run(
                "own_removals", [source, steps.removing(RangeReader()), steps.writer("own_removals")], id_field=None
            )
            removals = steps.runs("own_removals")
        if kept == "signatures":
            sampled = SampledPairs(removals, threshold=self.threshold, seed=self.seed)
            steps.run("sample", [KeyRanges(edges, hash_cuts(1)), sampled, steps.writer("sample")], id_field=None)
            again = self._shingles(steps.runs("sample"))
            steps.run_on_documents("sample_shingles", [again], columns)
        return removals

    def _shingles(self, candidates: RunFiles, *, seed: int | None = None) -> CandidateShingles:
        return CandidateShingles(
            candidates,
            self.text_field,
            id_field=self.id_field or "id",
            rule=self.rule,
            word_ngrams=self.word_ngrams,
            char_ngrams=self.char_ngrams,
            signature_seed=seed,
        )

    # --- the index ---

    def _against_source(self) -> DocumentSource | None:
        return None if is_index(self.against) else super()._against_source()

    def index_settings(self) -> dict[str, Any]:
        """The settings that must equal those of an index."""
        return {
            "kind": "fuzzy",
            "threshold": self.threshold,
            "num_bands": self.banding.bands,
            "minhashes_per_band": self.banding.rows,
            "word_ngrams": self.word_ngrams,
            "char_ngrams": self.char_ngrams,
            "seed": self.seed,
            "verify": self.verify,
            "merge_empty": self.merge_empty,
        }

    def _known_partitions(self, partitions: Sequence[Partition]) -> list[str]:
        self._index = None
        if not is_index(self.against):
            return []
        if self.rule.survivor != "first" or self.verify not in ("pairs", "cluster"):
            raise UsageError(
                f"--keep {self.rule.survivor} with --verify {self.verify}: against an index, the first document in "
                "source order is kept, and candidates are verified by pairs or cluster, so that documents kept "
                "before are kept again."
            )
        index = FuzzyIndex.load(str(self.against), check="touched").before(fingerprint_of(partitions), self.output_path)
        mine = self.index_settings()
        differing = {name: value for name, value in index.settings.items() if mine.get(name) != value}
        if differing:
            wanted = ", ".join(f"{name}={value!r} (here {mine.get(name)!r})" for name, value in differing.items())
            raise UsageError(
                f"The index {self.against} was made with {wanted}. Use the same settings, or create another index."
            )
        self._index = index
        return index.partitions

    def _ended(self, steps: Steps) -> None:
        if self._index is None:
            return
        parts = {name: steps.runs(step, ending=ending) for name, (step, ending) in INDEX_STEPS.items()}
        whole, before = steps.runs("clusters"), self._index.removed
        gone = np.concatenate([np.empty(0, np.uint64), *whole.parts("document")])
        known = np.concatenate([np.empty(0, np.uint64), *before.parts("document")])
        retracted = np.setdiff1d(gone[gone < np.uint64(steps.first_key)], known)
        ids = whole_ids(whole, retracted)
        names = document_names(retracted, ids, steps.partition_ids)
        steps.result.extend_metadata({"num_retracted": len(names), "retracted": names[:_MOST_RETRACTED]})
        paths = self.input_path if isinstance(self.input_path, str) else " ".join(map(str, self.input_path or ()))
        self._index.add(
            paths.rstrip("/").rpartition("/")[2] or "source",
            fingerprint=fingerprint_of(steps.partitions),
            output=self.output_path,
            partitions=[partition.id for partition in steps.partitions],
            parts=parts,
            removed=whole,
        )

    def _facts(self, steps: Steps, removals: RunFiles | None) -> dict[str, Any]:
        assert removals is not None
        compared = ComparedPairs.of(steps.runs("pairs").parts("similarity"), self.threshold, self.banding)
        recall, near = compared.recall, compared.near
        alike = random_sample(removals.parts("similarity"), seed=self.seed)
        if self.verify == "signature":
            sample, again = steps.runs("sample"), steps.all_runs("sample_shingles")
            estimates, exact = checked(sample, again, removed=False)
            near = near_threshold(estimates, exact, self.threshold, self.banding)
            recall = recall_of_estimates(
                recall, compared.certain, compared.doubtful, estimates >= self.threshold, exact >= self.threshold
            )
            # Texts with the same words were not sampled: there is nothing to estimate about them.
            differs = checked(sample, again, removed=True)[1]
            same = round(len(differs) * float(np.sum(alike == 1.0)) / max(1.0, float(np.sum(alike < 1.0))))
            alike = np.concatenate([differs, np.ones(same)]) if len(differs) else alike
        facts = super()._facts(steps, removals)
        facts.update(
            threshold=self.threshold,
            num_bands=self.banding.bands,
            minhashes_per_band=self.banding.rows,
            verify=self.verify,
            pairs_compared=compared.count,
            false_candidates=compared.below,
            near_threshold=near,
            precision=estimated_precision(alike, self.threshold),
            recall=recall,
        )
        return facts


def _banding(threshold: float, bands: int | None, rows: int | None) -> Banding:
    if bands is None and rows is None:
        return derive_banding(threshold)
    return Banding(_BANDS if bands is None else bands, _ROWS if rows is None else rows)


def whole_ids(removals: RunFiles, documents: Keys) -> list[str | None]:
    """The ids of removed documents, by their keys."""
    found: dict[int, str | None] = {}
    for file in removals.files:
        table = open_run(file.path, storage_options=removals.storage_options)
        places = np.flatnonzero(np.isin(column(table, "document"), documents))
        ids = table.column("id").take(places).to_pylist()
        found.update(zip(column(table, "document")[places].tolist(), ids, strict=True))
    return [found[key] for key in documents.tolist()]
