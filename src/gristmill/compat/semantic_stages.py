"""Semantic deduplication as single stages, under the names in `nemo_curator.stages.deduplication.semantic`.

Each stage writes the folders and columns that scripts look for. `SemanticDeduplicationWorkflow` does the same in
parallel, finds neighbours across cluster boundaries, and needs no such folders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from fsspec.core import url_to_fs

from gristmill.compat.files import get_all_file_paths_under, get_default_file_extensions, get_deterministic_hash
from gristmill.compat.step_stages import AllFilesStage, FolderStage, Options, options_of, read_columns
from gristmill.errors import InputNotFoundError, UsageError
from gristmill.stages.base import CompositeStage, ProcessingStage
from gristmill.stages.deduplication.semantic.clusters import nearest_centroids, spherical_kmeans
from gristmill.stages.deduplication.semantic.vectors import embedding_matrix, whole_vectors
from gristmill.stages.text.io.reader.jsonl import JsonlReaderStage
from gristmill.stages.text.io.reader.partitioning import FilePartitioningStage
from gristmill.tasks.base import EmptyTask
from gristmill.tasks.file_group import FileGroupTask

L2_DIST_TO_CENT_COL = "l2_dist_to_cent"
COSINE_DIST_TO_CENT_COL = "cosine_dist_to_cent"
_WHICH = {"hard": [False], "easy": [True]}
Matrix = npt.NDArray[np.float64]


class RankingStrategy:
    """The order of preference within a cluster: the first of two duplicates is kept.

    Args:
        metadata_cols: Columns to sort by.
        ascending: Whether low values come first; one for all columns or one each.
        strategy: "sort" or "random".
        random_seed: For "random".

    Example:
        >>> RankingStrategy.metadata_based(["score"], ascending=False).rank_cluster(pl.DataFrame({"score": [1, 3, 2]}))[
        ...     "score"
        ... ].to_list()
        [3, 2, 1]
    """

    def __init__(
        self,
        metadata_cols: Sequence[str],
        ascending: bool | Sequence[bool] = True,
        strategy: str = "sort",
        random_seed: int = 42,
    ) -> None:
        self.metadata_cols = list(metadata_cols)
        self.ascending = [ascending] * len(self.metadata_cols) if isinstance(ascending, bool) else list(ascending)
        if len(self.ascending) != len(self.metadata_cols) or strategy not in ("sort", "random"):
            raise UsageError(
                f"RankingStrategy(metadata_cols={self.metadata_cols!r}, ascending={ascending!r}, "
                f"strategy={strategy!r}): pass one `ascending` per column, and 'sort' or 'random'."
            )
        self.strategy = strategy
        self.random_seed = random_seed

    @classmethod
    def metadata_based(
        cls, metadata_cols: Sequence[str], ascending: bool | Sequence[bool] = True, random_seed: int = 42
    ) -> RankingStrategy:
        """Sort by columns."""
        return cls(metadata_cols, ascending, "sort", random_seed)

    @classmethod
    def random(cls, random_seed: int = 42) -> RankingStrategy:
        """In a random order, the same for the same seed."""
        return cls([], True, "random", random_seed)

    def rank_cluster(self, cluster_df: Any) -> Any:
        """The documents of a cluster (a Polars or a pandas frame) in order of preference."""
        is_polars = isinstance(cluster_df, pl.DataFrame)
        frame = cluster_df if is_polars else pl.from_pandas(cluster_df)
        if self.strategy == "random":
            ranked = frame.sample(fraction=1.0, shuffle=True, seed=self.random_seed)
        else:
            missing = [name for name in self.metadata_cols if name not in frame.columns]
            if missing:
                raise UsageError(
                    f"RankingStrategy sorts by {missing}, but the cluster has only {frame.columns}. Keep the columns "
                    "with metadata_fields of KMeansStage."
                )
            descending = [not ascending for ascending in self.ascending]
            ranked = frame.sort(self.metadata_cols, descending=descending, maintain_order=True) if descending else frame
        return ranked if is_polars else ranked.to_pandas()


class KMeansReadFitWriteStage(AllFilesStage):
    """Clusters embeddings and writes them to `OUTPUT/centroid=N/`, by spherical k-means.

    Takes the parameters of `KMeansStage`, without its input.
    """

    def __init__(
        self,
        id_field: str,
        embedding_field: str,
        output_path: str,
        filetype: str,
        n_clusters: int,
        metadata_fields: Sequence[str] | None = None,
        embedding_dim: int | None = None,
        verbose: bool = False,
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: int = 42,
        init: Any = "k-means||",
        n_init: Any = 1,
        oversampling_factor: float = 2.0,
        max_samples_per_batch: int = 1 << 15,
        fit_data_fraction: float | None = None,
        cache_path: str | None = None,
        read_kwargs: Options = None,
        write_kwargs: Options = None,
    ) -> None:
        self.name = "KMeansStage"
        self.id_field = id_field
        self.embedding_field = embedding_field
        self.folder = self.output_path = str(output_path)
        self.filetype = filetype
        self.n_clusters = n_clusters
        self.metadata_fields = list(metadata_fields or [])
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.cache_path = cache_path
        self.read_kwargs = dict(read_kwargs or {})
        self.storage_options = options_of(write_kwargs)

    def process(self, task: FileGroupTask) -> FileGroupTask:
        columns = list(dict.fromkeys([self.id_field, *self.metadata_fields, self.embedding_field]))
        table = self._read(task, columns)
        matrix, rows = embedding_matrix(table.column(self.embedding_field))
        vectors, usable = whole_vectors(matrix)
        if not usable.any():
            raise UsageError(
                f"Column {self.embedding_field!r} holds no embeddings; KMeansStage has nothing to cluster."
            )
        matrix, vectors, rows = matrix[usable], vectors[usable], rows[usable]
        count = min(self.n_clusters, len(vectors))
        centroids = spherical_kmeans(vectors, count, seed=self.random_state, max_iter=self.max_iter, tol=self.tol)
        labels, _ = nearest_centroids(vectors, centroids)
        unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        centers = centroids / np.linalg.norm(centroids, axis=1, keepdims=True)
        if self.cache_path is not None:
            fs, place = url_to_fs(self.cache_path, **dict(self.storage_options or {}))
            fs.makedirs(place, exist_ok=True)
            with fs.open(f"{place}/kmeans_centroids.npy", "wb") as file:
                np.save(file, centers.astype(np.float32))
        kept = pl.DataFrame(table.drop_columns([self.embedding_field]).take(pa.array(rows)))
        frame = kept.with_columns(
            pl.Series(self.embedding_field, unit.astype(np.float32)),
            pl.Series("centroid", labels),
            pl.Series(L2_DIST_TO_CENT_COL, np.linalg.norm(unit - centers[labels], axis=1).astype(np.float32)),
            pl.Series(COSINE_DIST_TO_CENT_COL, (1.0 - (unit * centers[labels]).sum(axis=1)).astype(np.float32)),
        )
        paths = []
        for (label,), part in frame.group_by("centroid", maintain_order=True):
            paths.append(self.write(part.drop("centroid").to_arrow(), f"centroid={label}/part.0"))
        return self.done(task, sorted(paths), num_rows=len(frame))

    def _read(self, task: FileGroupTask, columns: list[str]) -> pa.Table:
        if self.filetype == "parquet":
            return read_columns(task.data, columns, options_of(self.read_kwargs))
        reader = JsonlReaderStage(columns, storage_options=options_of(self.read_kwargs))
        return pa.concat_tables(
            [batch.to_pyarrow() for batch in reader.process(task)], promote_options="permissive"
        ).select(columns)


class KMeansStage(CompositeStage[EmptyTask, FileGroupTask]):
    """Reads embeddings, clusters them and writes `OUTPUT/centroid=N/`.

    Args:
        n_clusters: Number of clusters.
        id_field: The column with ids.
        embedding_field: The column with embeddings.
        input_path: Where they are.
        output_path: The folder for clusters.
        metadata_fields: Columns to keep, for a `RankingStrategy`.
        verbose: Accepted, as are `embedding_dim`, `init`, `n_init`, `oversampling_factor`, `max_samples_per_batch` and
            `fit_data_fraction`: k-means is spherical and exact here.
        input_filetype: "parquet" or "jsonl".
        input_file_extensions: File extensions to read in a folder.
        read_kwargs: `storage_options` for URLs.
        write_kwargs: `storage_options` for URLs.
        max_iter: Maximum number of iterations.
        tol: Tolerance of the stopping criterion.
        random_state: Random seed of the initial centroids.
        cache_path: A folder for `kmeans_centroids.npy`.
    """

    name = "KMeansStage"

    def __init__(
        self,
        n_clusters: int,
        id_field: str,
        embedding_field: str,
        input_path: str | Sequence[str],
        output_path: str,
        metadata_fields: Sequence[str] | None = None,
        verbose: bool = False,
        embedding_dim: int | None = None,
        input_filetype: str = "parquet",
        input_file_extensions: Sequence[str] | None = None,
        read_kwargs: Options = None,
        write_kwargs: Options = None,
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: int = 42,
        init: Any = "k-means||",
        n_init: Any = 1,
        oversampling_factor: float = 2.0,
        max_samples_per_batch: int = 1 << 15,
        fit_data_fraction: float | None = None,
        cache_path: str | None = None,
    ) -> None:
        self.input_path = input_path
        self.extensions = list(input_file_extensions or get_default_file_extensions(input_filetype))
        self.read_kwargs = dict(read_kwargs or {})
        self.clustering = KMeansReadFitWriteStage(
            id_field,
            embedding_field,
            output_path,
            input_filetype,
            n_clusters,
            metadata_fields=metadata_fields,
            max_iter=max_iter,
            tol=tol,
            random_state=random_state,
            cache_path=cache_path,
            read_kwargs=read_kwargs,
            write_kwargs=write_kwargs,
        )

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        source = FilePartitioningStage(
            self.input_path, file_extensions=self.extensions, storage_options=options_of(self.read_kwargs)
        )
        return [source, self.clustering]


class ClusterWiseFilePartitioningStage(ProcessingStage[EmptyTask, FileGroupTask]):
    """Yields one task per cluster, with the files of `centroid=N`."""

    is_source_stage = True
    name = "pairwise_file_partitioning"

    def __init__(self, input_path: str, storage_options: Options = None) -> None:
        self.input_path = input_path
        self.storage_options = storage_options

    def process(self, task: EmptyTask) -> list[FileGroupTask]:
        fs, place = url_to_fs(self.input_path, **dict(self.storage_options or {}))
        found: dict[int, str] = {}
        for entry in fs.ls(place, detail=False) if fs.isdir(place) else []:
            match = re.fullmatch(r"centroid=(\d+)", PurePosixPath(str(entry)).name)
            if match:
                found[int(match[1])] = str(entry)
        if not found:
            raise InputNotFoundError(
                f"{self.input_path} holds no folders centroid=N. Run KMeansStage first, with this as its output_path.",
                path=self.input_path,
            )
        tasks = []
        for number, folder in sorted(found.items()):
            files = get_all_file_paths_under(folder, True, [".parquet"], fs=fs)
            tasks.append(FileGroupTask(data=files, _metadata={"centroid_id": number, "filetype": "parquet"}))
        return tasks


class PairwiseCosineSimilarityStage(FolderStage):
    """Writes, for every document of a cluster, the most similar one that is preferred to it, and the cosine."""

    def __init__(
        self,
        id_field: str,
        embedding_field: str,
        output_path: str,
        ranking_strategy: RankingStrategy,
        pairwise_batch_size: int = 1024,
        verbose: bool = False,
        embedding_dim: int | None = None,
        read_kwargs: Options = None,
        write_kwargs: Options = None,
    ) -> None:
        if pairwise_batch_size < 1:
            raise UsageError(f"pairwise_batch_size={pairwise_batch_size}: must be at least 1.")
        self.name = "PairwiseCosineSimilarityStage"
        self.id_field = id_field
        self.embedding_field = embedding_field
        self.folder = self.output_path = str(output_path)
        self.ranking_strategy = ranking_strategy
        self.pairwise_batch_size = pairwise_batch_size
        self.read_kwargs = dict(read_kwargs or {})
        self.storage_options = options_of(write_kwargs)

    def process(self, task: FileGroupTask) -> FileGroupTask:
        ranked_by = self.ranking_strategy.metadata_cols if self.ranking_strategy.strategy == "sort" else []
        columns = list(dict.fromkeys([self.id_field, *ranked_by, self.embedding_field]))
        frame = pl.DataFrame(read_columns(task.data, columns, options_of(self.read_kwargs)))
        ranked = self.ranking_strategy.rank_cluster(frame)
        matrix, _ = embedding_matrix(ranked[self.embedding_field].to_arrow())
        best, scores = pairwise_cosine_similarity_batched(matrix, self.pairwise_batch_size)
        ids = ranked[self.id_field]
        found = pl.DataFrame({"id": ids, "max_id": ids.gather(best), "cosine_sim_score": scores.astype(np.float32)})
        number = task._metadata.get("centroid_id", task.partition_id)
        return self.done(task, [self.write(found.to_arrow(), f"cluster_{number}")], centroid_id=number)


def pairwise_cosine_similarity_batched(
    cluster_reps: Any, batch_size: int = 1024
) -> tuple[npt.NDArray[np.int64], Matrix]:
    """For every row the earlier row that is most similar to it, and the cosine; the first row gets itself and 0.

    Example:
        >>> best, scores = pairwise_cosine_similarity_batched(np.array([[1.0, 0.0], [0.6, 0.8], [1.0, 0.0]]))
        >>> best.tolist(), [round(float(score), 2) for score in scores]
        ([0, 0, 0], [0.0, 0.6, 1.0])
    """
    vectors = np.asarray(cluster_reps, np.float64)
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    best = np.zeros(len(vectors), np.int64)
    scores = np.zeros(len(vectors))
    for start in range(0, len(vectors), batch_size):
        end = min(start + batch_size, len(vectors))
        products = vectors[start:end] @ vectors[:end].T
        products[np.arange(end)[None, :] >= np.arange(start, end)[:, None]] = -np.inf
        best[start:end] = products.argmax(axis=1)
        scores[start:end] = products.max(axis=1)
    if len(vectors):
        best[0], scores[0] = 0, 0.0
    return best, scores


class PairwiseStage(CompositeStage[EmptyTask, FileGroupTask]):
    """Compares the documents of each cluster; writes `OUTPUT/cluster_N.parquet` (`id`, `max_id`, `cosine_sim_score`).

    Args:
        id_field: The column with ids.
        embedding_field: The column with embeddings.
        input_path: The output of `KMeansStage`.
        output_path: The folder for results.
        ranking_strategy: Which document is preferred; without it, `which_to_keep` decides.
        embedding_dim: Accepted, as is `verbose`.
        pairwise_batch_size: Number of rows to compare at once.
        read_kwargs: `storage_options` for URLs.
        write_kwargs: `storage_options` for URLs.
        which_to_keep: "hard" (far from the centroid first), "easy" or "random".
        sim_metric: "cosine" or "l2", the distance from the centroid that decides.
        random_seed: For "random".
    """

    name = "PairwiseStage"

    def __init__(
        self,
        id_field: str,
        embedding_field: str,
        input_path: str,
        output_path: str,
        ranking_strategy: RankingStrategy | None = None,
        embedding_dim: int | None = None,
        pairwise_batch_size: int = 1024,
        verbose: bool = False,
        read_kwargs: Options = None,
        write_kwargs: Options = None,
        which_to_keep: str = "hard",
        sim_metric: str = "cosine",
        random_seed: int = 42,
    ) -> None:
        if which_to_keep not in (*_WHICH, "random") or sim_metric not in ("cosine", "l2"):
            raise UsageError(
                f"PairwiseStage(which_to_keep={which_to_keep!r}, sim_metric={sim_metric!r}): pass 'hard', 'easy' or "
                "'random', and 'cosine' or 'l2'."
            )
        if ranking_strategy is None:
            distance = COSINE_DIST_TO_CENT_COL if sim_metric == "cosine" else L2_DIST_TO_CENT_COL
            ranking_strategy = (
                RankingStrategy.random(random_seed)
                if which_to_keep == "random"
                else RankingStrategy([distance, id_field], [*_WHICH[which_to_keep], which_to_keep == "easy"])
            )
        self.input_path = input_path
        self.read_kwargs = dict(read_kwargs or {})
        self.comparing = PairwiseCosineSimilarityStage(
            id_field,
            embedding_field,
            output_path,
            ranking_strategy,
            pairwise_batch_size,
            read_kwargs=read_kwargs,
            write_kwargs=write_kwargs,
        )

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        return [ClusterWiseFilePartitioningStage(self.input_path, options_of(self.read_kwargs)), self.comparing]


class IdentifyDuplicatesStage(FolderStage):
    """Writes the ids of documents with a preferred one at least as similar as `1 - eps` (the column `id`)."""

    def __init__(
        self,
        output_path: str,
        eps: float,
        _num_row_groups_hint: int | None = None,
        verbose: bool = False,
        read_kwargs: Options = None,
        write_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not 0 <= eps <= 1:
            raise UsageError(f"IdentifyDuplicatesStage(eps={eps}): must be a distance in [0, 1].")
        self.name = "IdentifyDuplicatesStage"
        self.folder = self.output_path = str(output_path)
        self.eps = eps
        self.read_kwargs = dict(read_kwargs or {})
        self.storage_options = options_of(write_kwargs)

    def process(self, task: FileGroupTask) -> FileGroupTask:
        table = read_columns(task.data, ["id", "cosine_sim_score"], options_of(self.read_kwargs))
        least = float(np.float32(1.0 - self.eps))
        ids = pl.DataFrame(table).filter(pl.col("cosine_sim_score") >= least).select("id").sort("id")
        name = get_deterministic_hash(task.data)
        return self.done(task, [self.write(ids.to_arrow(), name)], num_removed=len(ids))
