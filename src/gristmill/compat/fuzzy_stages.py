"""Fuzzy deduplication as single stages, under the names in `nemo_curator.stages.deduplication.fuzzy`.

Each stage writes the folder and the columns that scripts look for. Steps that compare all documents run in one worker;
`FuzzyDeduplicationWorkflow` does the same in parallel, spills to disk and verifies candidates before it removes any.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from gristmill.compat.id_generator import CURATOR_DEDUP_ID_STR
from gristmill.compat.step_stages import AllFilesStage, FolderStage, Options, options_of, read_columns
from gristmill.errors import UsageError
from gristmill.figures import plural
from gristmill.stages.base import Spec
from gristmill.stages.text.io.reader.jsonl import JsonlReaderStage
from gristmill.stages.text.io.reader.parquet import ParquetReaderStage
from gristmill.storage.formats import format_of
from gristmill.storage.partitions import is_whole_file
from gristmill.tasks.base import Task
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask

CURATOR_DEFAULT_MINHASH_FIELD = "_minhash_signature"
CURATOR_LSH_BUCKET_FIELD = "_bucket_id"
CURATOR_FUZZY_DUPLICATE_GROUP_FIELD = "_duplicate_group_id"
DUPLICATE_IDS_SUBDIR = "FuzzyDuplicateIds"


class MinHash:
    """MinHash signatures of texts by their character n-grams (Broder 1997).

    Args:
        seed: Chooses the hash functions.
        num_hashes: The length of a signature.
        char_ngrams: Characters of a shingle.
        use_64bit_hash: Accepted; hashes have 32 bits here.

    Example:
        >>> one, other = MinHash(num_hashes=64, char_ngrams=3).compute_minhashes(["same text", "same text"])
        >>> bool((one == other).all())
        True
    """

    def __init__(
        self, seed: int = 42, num_hashes: int = 260, char_ngrams: int = 24, use_64bit_hash: bool = False
    ) -> None:
        self.seed = seed
        self.num_hashes = num_hashes
        self.char_ngrams = char_ngrams
        self.use_64bit_hash = use_64bit_hash

    def generate_seeds(self, n_permutations: int = 260, seed: int = 0, bit_width: int = 32) -> npt.NDArray[np.uint32]:
        """The two factors of each hash function."""
        from gristmill.kernels.minhash import hash_factors

        return np.stack(hash_factors(n_permutations, seed), axis=1)

    def compute_minhashes(self, text_series: Any) -> npt.NDArray[np.uint32]:
        """One signature per text: the minimum hash under each function, or the largest number for an empty text."""
        from gristmill.kernels.minhash import hash_factors, signature_sets
        from gristmill.kernels.shingles import CHARACTERS, shingle_lists, word_tables
        from gristmill.kernels.text_column import text_column

        given = text_series.to_list() if hasattr(text_series, "to_list") else text_series
        texts = given if isinstance(given, pa.Array) else pa.array(given, pa.large_string())
        column = text_column(texts.cast(pa.large_string()).fill_null(""))
        shingles, bounds, _ = shingle_lists(
            column.data, column.offsets, np.arange(len(texts)), *word_tables(), self.char_ngrams, CHARACTERS, False
        )
        values, sizes = signature_sets(shingles, bounds, *hash_factors(self.num_hashes, self.seed))
        found = np.full((len(texts), self.num_hashes), 0xFFFFFFFF, np.uint32)
        found[np.diff(sizes) > 0] = values.astype(np.uint32).reshape(-1, self.num_hashes)
        return found


class MinHashStage(FolderStage):
    """Writes the MinHash signatures of documents to `OUTPUT/MinHashStage/`, with their ids.

    Args:
        output_path: The folder above.
        text_field: The column with the text.
        minhash_field: The column for signatures.
        char_ngrams: Characters of a shingle.
        num_hashes: The length of a signature.
        seed: Chooses the hash functions.
        use_64bit_hash: Accepted; hashes have 32 bits here.
        normalize_text: Accepted; shingles are always of lower-case text.
        read_format: "jsonl" or "parquet"; by default from the file names.
        read_kwargs: `storage_options` for URLs.
        write_kwargs: `storage_options` for URLs.
        pool: Accepted; for GPUs.
    """

    assigns_ids = True

    def __init__(
        self,
        output_path: str,
        text_field: str = "text",
        minhash_field: str = CURATOR_DEFAULT_MINHASH_FIELD,
        char_ngrams: int = 24,
        num_hashes: int = 260,
        seed: int = 42,
        use_64bit_hash: bool = False,
        normalize_text: bool = False,
        read_format: str | None = None,
        read_kwargs: Options = None,
        write_kwargs: Options = None,
        pool: bool = True,
    ) -> None:
        self.name = type(self).__name__
        self.folder = self.output_path = f"{str(output_path).rstrip('/')}/{self.name}"
        self.text_field = text_field
        self.minhash_field = minhash_field
        self.hashing = MinHash(seed, num_hashes, char_ngrams, use_64bit_hash)
        self.read_format = read_format
        self.read_kwargs = dict(read_kwargs or {})
        self.storage_options = options_of(write_kwargs)

    def inputs(self) -> dict[type[Task[Any]], Spec]:  # type: ignore[override]
        return {FileGroupTask: (["data"], []), DocumentBatch: (["data"], [CURATOR_DEDUP_ID_STR, self.text_field])}

    def process(self, task: FileGroupTask | DocumentBatch) -> FileGroupTask:
        tables = [self._signatures(ids, texts) for ids, texts in self._documents(task)]
        if not tables:
            tables = [self._signatures(pa.array([], pa.large_string()), pa.array([], pa.large_string()))]
        name = task.partition_id.replace("/", "__") or task.get_deterministic_id() or "documents"
        if isinstance(task, DocumentBatch):
            name = task.task_id.replace("/", "__") or name
        return self.done(task, [self.write(pa.concat_tables(tables), name)])

    def _documents(self, task: FileGroupTask | DocumentBatch) -> Iterator[tuple[Any, pa.Array]]:
        if isinstance(task, DocumentBatch):
            yield task.column(CURATOR_DEDUP_ID_STR), task.text(self.text_field)
            return
        if not is_whole_file(task.partition_id):
            raise UsageError(
                f"{self.name} got {plural(len(task.data), 'file')} as the partition {task.partition_id!r}, but ids of "
                "documents follow from whole files: use FilePartitioningStage without blocksize and with "
                "files_per_partition=1."
            )
        kind = self.read_format or (format_of(task.data[0]) if task.data else "jsonl")
        stage = ParquetReaderStage if kind == "parquet" else JsonlReaderStage
        for batch in stage([self.text_field], storage_options=options_of(self.read_kwargs)).process(task):
            ids = pa.array([f"{task.partition_id}:{row}" for row in batch.rows.tolist()], pa.large_string())
            yield ids, batch.text(self.text_field)

    def _signatures(self, ids: Any, texts: pa.Array) -> pa.Table:
        found = self.hashing.compute_minhashes(texts)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(found.reshape(-1)), self.hashing.num_hashes)
        return pa.table({CURATOR_DEDUP_ID_STR: ids, self.minhash_field: lists.cast(pa.large_list(pa.uint32()))})


class LSHStage(AllFilesStage):
    """Writes the buckets that hold several documents to `OUTPUT/LSHStage/band_…/`: `_bucket_id` and a list of ids.

    Args:
        num_bands: Bands of a signature.
        minhashes_per_band: Hashes of a band.
        id_field: The column with ids.
        minhash_field: The column with signatures.
        output_path: The folder above.
        read_kwargs: `storage_options` for URLs.
        write_kwargs: `storage_options` for URLs.
        bands_per_iteration: Number of bands per folder.
        **_: Options for GPUs, which have no effect.
    """

    def __init__(
        self,
        num_bands: int,
        minhashes_per_band: int,
        id_field: str = CURATOR_DEDUP_ID_STR,
        minhash_field: str = CURATOR_DEFAULT_MINHASH_FIELD,
        output_path: str = "./",
        read_kwargs: Options = None,
        write_kwargs: Options = None,
        rmm_pool_size: Any = "auto",
        spill_memory_limit: Any = "auto",
        enable_statistics: bool = False,
        bands_per_iteration: int = 5,
        total_nparts: int | None = None,
        use_async_memory: bool = True,
    ) -> None:
        self.name = type(self).__name__
        if not 1 <= bands_per_iteration <= num_bands:
            raise UsageError(
                f"LSHStage(bands_per_iteration={bands_per_iteration}): must be in 1 to num_bands={num_bands}."
            )
        self.num_bands = num_bands
        self.minhashes_per_band = minhashes_per_band
        self.id_field = id_field
        self.minhash_field = minhash_field
        self.output_path = output_path
        self.folder = f"{str(output_path).rstrip('/')}/{self.name}"
        self.read_kwargs = dict(read_kwargs or {})
        self.storage_options = options_of(write_kwargs)
        self.bands_per_iteration = bands_per_iteration

    def get_band_iterations(self) -> Iterator[tuple[int, int]]:
        """The first band of each folder and the one past its last."""
        for start in range(0, self.num_bands, self.bands_per_iteration):
            yield start, min(start + self.bands_per_iteration, self.num_bands)

    def process(self, task: FileGroupTask) -> FileGroupTask:
        table = read_columns(task.data, [self.id_field, self.minhash_field], options_of(self.read_kwargs))
        ids = pl.Series(self.id_field, pl.from_arrow(table.column(self.id_field)))
        flat = table.column(self.minhash_field).combine_chunks().flatten().to_numpy()
        signatures = flat.reshape(len(ids), -1) if len(ids) else np.empty((0, self.num_bands * self.minhashes_per_band))
        needed = self.num_bands * self.minhashes_per_band
        if signatures.shape[1] < needed:
            raise UsageError(
                f"{self.num_bands} bands of {self.minhashes_per_band} hashes need signatures of {needed}; they have "
                f"{signatures.shape[1]}. Set num_hashes={needed} in MinHashStage."
            )
        paths = []
        for first, last in self.get_band_iterations():
            frames = [self._buckets(ids, signatures, band) for band in range(first, last)]
            found = pl.concat(frames).sort(CURATOR_LSH_BUCKET_FIELD).to_arrow()
            paths.append(self.write(found, f"band_{first}-band_{last}/part.0"))
        return self.done(task, paths)

    def _buckets(self, ids: pl.Series, signatures: npt.NDArray[Any], band: int) -> pl.DataFrame:
        part = np.ascontiguousarray(
            signatures[:, band * self.minhashes_per_band : (band + 1) * self.minhashes_per_band].astype(np.uint32)
        )
        # Compare the bytes themselves: a hash of them could merge two buckets.
        keys = [f"b{band}_{row.tobytes().hex()}" for row in part]
        empty = (part == np.uint32(0xFFFFFFFF)).all(axis=1) if len(part) else np.empty(0, bool)
        frame = pl.DataFrame({self.id_field: ids, CURATOR_LSH_BUCKET_FIELD: keys}).filter(~pl.Series(empty))
        grouped = frame.group_by(CURATOR_LSH_BUCKET_FIELD).agg(pl.col(self.id_field).sort())
        return grouped.filter(pl.col(self.id_field).list.len() > 1)


class BucketsToEdgesStage(FolderStage):
    """Writes pairs of neighbours in buckets to `OUTPUT/BucketsToEdgesStage/`: the columns `ID_x` and `ID_y`."""

    def __init__(
        self,
        output_path: str,
        document_id_field: str = CURATOR_DEDUP_ID_STR,
        read_kwargs: Options = None,
        write_kwargs: Options = None,
    ) -> None:
        self.name = type(self).__name__
        self.folder = self.output_path = f"{str(output_path).rstrip('/')}/{self.name}"
        self.document_id_field = document_id_field
        self.read_kwargs = dict(read_kwargs or {})
        self.storage_options = options_of(write_kwargs)

    def process(self, task: FileGroupTask) -> FileGroupTask:
        table = read_columns(task.data, [self.document_id_field], options_of(self.read_kwargs))
        field = pl.col(self.document_id_field)
        ends = pl.DataFrame(table).select(
            field.list.slice(0, field.list.len() - 1).alias("x"), field.list.slice(1).alias("y")
        )
        names = {"x": f"{self.document_id_field}_x", "y": f"{self.document_id_field}_y"}
        edges = ends.explode("x", "y", empty_as_null=False).drop_nulls().unique(maintain_order=True).rename(names)
        name = task.partition_id.replace("/", "__") or task.get_deterministic_id()
        return self.done(task, [self.write(edges.to_arrow(), name)], num_edges=len(edges))


class ConnectedComponentsStage(AllFilesStage):
    """Writes the group of every document that has an edge to `OUTPUT/ConnectedComponentsStage/`."""

    def __init__(
        self,
        output_path: str,
        source_field: str | None = None,
        destination_field: str | None = None,
        read_kwargs: Options = None,
        write_kwargs: Options = None,
    ) -> None:
        self.name = type(self).__name__
        self.folder = self.output_path = f"{str(output_path).rstrip('/')}/{self.name}"
        self.source_field = source_field or f"{CURATOR_DEDUP_ID_STR}_x"
        self.destination_field = destination_field or f"{CURATOR_DEDUP_ID_STR}_y"
        self.read_kwargs = dict(read_kwargs or {})
        self.storage_options = options_of(write_kwargs)

    def process(self, task: FileGroupTask) -> FileGroupTask:
        from gristmill.kernels.union_find import join, settle

        fields = [self.source_field, self.destination_field]
        edges = pl.DataFrame(read_columns(task.data, fields, options_of(self.read_kwargs)))
        nodes = pl.concat([edges[self.source_field], edges[self.destination_field]]).unique().sort()
        places = pl.DataFrame({"node": nodes, "place": np.arange(len(nodes))})
        parents = np.arange(len(nodes))
        ends = [
            edges.select(pl.col(field).alias("node")).join(places, on="node", how="left", maintain_order="left")[
                "place"
            ]
            for field in fields
        ]
        if len(edges):
            join(parents, *(end.to_numpy().astype(np.int64) for end in ends))
            settle(parents)
        found = pl.DataFrame({CURATOR_DEDUP_ID_STR: nodes, CURATOR_FUZZY_DUPLICATE_GROUP_FIELD: parents})
        return self.done(task, [self.write(found.to_arrow(), "components")], num_vertices=len(nodes))


class IdentifyDuplicatesStage(AllFilesStage):
    """Writes the ids of all documents of a group but the first to `OUTPUT/FuzzyDuplicateIds/`."""

    def __init__(
        self,
        duplicate_group_field: str = CURATOR_FUZZY_DUPLICATE_GROUP_FIELD,
        document_id_field: str = CURATOR_DEDUP_ID_STR,
        total_nparts: int | None = None,
        output_path: str = "./",
        read_kwargs: Options = None,
        write_kwargs: Options = None,
        rmm_pool_size: Any = "auto",
        spill_memory_limit: Any = "auto",
        enable_statistics: bool = False,
    ) -> None:
        self.name = type(self).__name__
        self.duplicate_group_field = duplicate_group_field
        self.document_id_field = document_id_field
        self.folder = self.output_path = f"{str(output_path).rstrip('/')}/{DUPLICATE_IDS_SUBDIR}"
        self.read_kwargs = dict(read_kwargs or {})
        self.storage_options = options_of(write_kwargs)

    def process(self, task: FileGroupTask) -> FileGroupTask:
        fields = [self.document_id_field, self.duplicate_group_field]
        groups = pl.DataFrame(read_columns(task.data, fields, options_of(self.read_kwargs))).sort(fields)
        first = pl.col(self.document_id_field).is_first_distinct()
        ids = groups.filter(first).filter(pl.col(self.duplicate_group_field).is_first_distinct().not_())
        removed = ids.select(self.document_id_field).sort(self.document_id_field)
        return self.done(task, [self.write(removed.to_arrow(), "part.0")], num_removal_ids=len(removed))
