"""The steps from vectors to pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gristmill.errors import InputError, UsageError
from gristmill.ledger.record.layout import RECORD_FOLDER
from gristmill.ledger.record.plan_record import read_plan
from gristmill.observe.events import Notice
from gristmill.stages.deduplication.key_ranges import KeyRanges, document_cuts, hash_cuts, range_count
from gristmill.stages.deduplication.semantic.clusters import Centroids, ClusterMembers, cluster_cuts, sample_size
from gristmill.stages.deduplication.semantic.neighbours import (
    ClusterNeighbours,
    EqualVectors,
    NearestPairs,
    WhichToKeep,
    check_which_to_keep,
)
from gristmill.stages.deduplication.sorted_runs import RunFiles, open_run

if TYPE_CHECKING:
    from gristmill.stages.deduplication.workflow_steps import Steps

MEMBERS_RANGE_BYTES = 64 << 20
DEFAULT_MAX_EPS = 0.1
# Assumptions of a forecast; measured by benchmarks/bench_dedup_semantic.py.
_ROUNDS = 15
_VISITS = 2.0
_OPERATIONS_PER_SECOND = 3e10


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the search for pairs.

    Attributes:
        n_clusters: Number of clusters; None uses the square root of the number of different vectors.
        max_iter: Maximum number of rounds of k-means.
        tol: Tolerance for stopping k-means.
        seed: Random seed.
        which_to_keep: The preference; None uses the survivor rule.
        max_eps: Maximum distance of the pairs to keep, so that any smaller `eps` can be chosen afterwards.
    """

    n_clusters: int | None = None
    max_iter: int = 300
    tol: float = 1e-4
    seed: int = 42
    which_to_keep: WhichToKeep | None = "hard"
    max_eps: float = DEFAULT_MAX_EPS

    def __post_init__(self) -> None:
        if self.n_clusters is not None and self.n_clusters < 1:
            raise UsageError(f"n_clusters={self.n_clusters!r}: must be at least 1, or None to derive it.")
        if self.max_iter < 1 or self.tol < 0:
            raise UsageError(
                f"max_iter={self.max_iter!r} and tol={self.tol!r}: max_iter must be at least 1, and tol not negative."
            )
        if self.which_to_keep is not None:
            check_which_to_keep(self.which_to_keep)
        if not 0 <= self.max_eps < 1:
            raise UsageError(f"max_eps={self.max_eps!r}: a distance (1 - cosine) must be at least 0 and below 1.")

    @property
    def least(self) -> float:
        """Minimum cosine of the pairs to keep."""
        return 1.0 - self.max_eps

    def clusters(self, vectors: int) -> int:
        """Number of clusters for this number of different vectors."""
        wanted = round(math.sqrt(vectors)) if self.n_clusters is None else self.n_clusters
        return max(1, min(wanted, vectors))


def find_pairs(steps: Steps, vectors: RunFiles, settings: SearchSettings) -> RunFiles:
    """Run the steps between vectors and pairs; each document with a near preferred one has one row."""
    count, dimensions = _shape(vectors)
    every = hash_cuts(range_count(vectors.size))
    steps.run("twins", [KeyRanges(vectors, every), EqualVectors(), steps.writer("twins")], id_field=None)
    twins = steps.runs("twins")
    different = count - _rows(twins)
    clusters = settings.clusters(different)
    share = sample_size(different, clusters, dimensions) / max(1, different)
    sampled = KeyRanges(vectors, [0, min(1 << 64, math.ceil((1 << 64) * share))])
    kmeans = Centroids(clusters, seed=settings.seed, max_iter=settings.max_iter, tol=settings.tol)
    steps.run("centroids", [sampled, kmeans, steps.writer("centroids")], id_field=None)
    members = ClusterMembers(steps.runs("centroids"), least=settings.least)
    steps.run("members", [KeyRanges(vectors, every), members, steps.writer("members")], id_field=None)
    grouped = steps.runs("members")
    source = KeyRanges(grouped, cluster_cuts(grouped, clusters, MEMBERS_RANGE_BYTES))
    search = ClusterNeighbours(least=settings.least, which_to_keep=settings.which_to_keep, seed=settings.seed)
    steps.run("neighbours", [source, search, steps.writer("neighbours")], id_field=None)
    found = steps.runs("neighbours")
    both = RunFiles((*twins.files, *found.files), found.storage_options)
    source = KeyRanges(both, document_cuts(both, range_count(both.size)))
    steps.run("pairs", [source, NearestPairs(), steps.writer("pairs")], id_field=None)
    steps.result.extend_metadata({"vectors": count, "dimensions": dimensions, "n_clusters": clusters})
    return steps.runs("pairs")


def settle_max_eps(steps: Steps, settings: SearchSettings, *, eps: float | None, given: bool) -> SearchSettings:
    """The settings with the `max_eps` of an earlier run, if its pairs cover what this one needs.

    Otherwise, or if another `max_eps` was set, the steps of the search are discarded. Vectors, and equal ones among
    them, do not depend on it and are kept.

    Args:
        steps: The run.
        settings: The settings of the workflow.
        eps: Maximum distance of duplicates.
        given: Whether `max_eps` was set rather than derived.
    """
    least = _earlier_least(steps)
    if least is None or least == settings.least:
        return settings
    earlier = _max_eps_of(least)
    if not given and (eps is None or 1.0 - eps >= least):
        return replace(settings, max_eps=earlier)
    reason = (
        f"--max-eps {settings.max_eps:g} (max_eps) differs from {earlier:g} in the earlier run"
        if given
        else f"--eps {eps:g} (eps) is above the --max-eps {earlier:g} (max_eps) of the earlier run"
    )
    _tell(steps, f"{reason}: searching again for pairs up to {settings.max_eps:g} apart. Embeddings are reused.")
    _forget_search(steps)
    return settings


def _tell(steps: Steps, note: str) -> None:
    steps.result.get_metadata("notes").append(note)
    for listener in steps.options["listeners"]:
        listener(Notice(note))


def _earlier_least(steps: Steps) -> float | None:
    """The minimum cosine of an earlier search; None if there was none."""
    plan = read_plan(steps.folder("members")) or {}
    stages = [stage for stage in plan.get("stages", ()) if stage.get("name") == ClusterMembers.name]
    return float(stages[0]["parameters"]["least"]) if stages else None


def _max_eps_of(least: float) -> float:
    """The `max_eps` for exactly this minimum cosine, with the fewest digits."""
    candidates = (round(1.0 - least, digits) for digits in range(1, 17))
    return next((max_eps for max_eps in candidates if 1.0 - max_eps == least), 1.0 - least)


def _forget_search(steps: Steps) -> None:
    """Remove the output of clustering and all later steps.

    The plan of a step is removed last of its files, and that of clustering, which identifies the search, last of all:
    an interrupted run finds it again and continues the removal.
    """
    root = steps.root
    files = list(root.walk(root.path))
    prefix = steps.workflow.step_prefix
    chosen = (f"{prefix}chains-", f"{prefix}survivors-")
    found = sorted({name.split("/", 1)[0] for name in files if name.startswith(chosen)})
    for step in (*found, *(prefix + name for name in ("pairs", "neighbours", "members"))):
        plan = f"{step}/{RECORD_FOLDER}/plan.json"
        for name in files:
            if name.startswith(f"{step}/") and name != plan:
                root.remove(root.join(name))
        root.remove_tree(root.join(step))


def _rows(runs: RunFiles) -> int:
    return sum(open_run(file.path, storage_options=runs.storage_options).num_rows for file in runs.files)


def _shape(runs: RunFiles) -> tuple[int, int]:
    """The number of vectors and their length.

    Raises:
        InputError: They are not all of the same length.
    """
    rows, widths = 0, set()
    for file in runs.files:
        table = open_run(file.path, storage_options=runs.storage_options)
        rows += table.num_rows
        widths.add(int(table.schema.field("vector").type.list_size))
    if len(widths) > 1:
        raise InputError(
            f"Embeddings must all have the same length, but some have {min(widths)} and some {max(widths)} numbers. "
            "Embed all documents with the same model.",
            lengths=sorted(widths),
        )
    return rows, widths.pop() if widths else 1


def histogram(pairs: RunFiles, least: float) -> dict[str, int]:
    """The number of documents that would be removed at each of a few values of `eps`."""
    marks = [
        eps for eps in (0.001, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3) if eps <= 1 - least + 1e-12
    ]
    totals = np.zeros(len(marks), np.int64)
    for alike in pairs.parts("similarity"):
        totals += [int(np.count_nonzero(alike >= 1.0 - eps)) for eps in marks]
    return {f"{eps:g}": int(total) for eps, total in zip(marks, totals, strict=True)}


@dataclass(frozen=True)
class SearchForecast:
    """Estimated requirements of clustering and search."""

    bytes: int
    memory: int
    seconds: float
    note: str


def search_forecast(documents: int, dimensions: int, settings: SearchSettings, *, workers: int) -> SearchForecast:
    """Estimate the requirements of the steps between vectors and pairs for this number of documents."""
    clusters = settings.clusters(max(1, documents))
    sample = sample_size(max(1, documents), clusters, dimensions)
    learning = _ROUNDS * sample * clusters
    assigning = documents * clusters
    searching = documents * (0.5 + _VISITS) * documents / clusters
    operations = 2.0 * dimensions * (learning + (assigning + searching) / workers)
    return SearchForecast(
        bytes=round(documents * (1 + _VISITS) * (2 * dimensions + 64)),
        memory=2 * sample * dimensions + 4 * clusters * dimensions,
        seconds=operations / _OPERATIONS_PER_SECOND,
        note=f"search: {clusters} clusters; pairs up to a distance of {settings.max_eps:g} are kept",
    )
