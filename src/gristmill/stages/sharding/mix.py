"""`MixWorkflow`: samples sources in given shares and shuffles them together into shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from gristmill.backends.base import BaseExecutor
from gristmill.backends.registry import as_executor
from gristmill.errors import InputNotFoundError, PlanningError, UsageError
from gristmill.figures import plural
from gristmill.stages.deduplication.deduplication_workflow import missing_column
from gristmill.stages.deduplication.key_ranges import KeyRanges, hash_cuts, range_count
from gristmill.stages.deduplication.sorted_runs import RunFiles, SortedRunWriter, column, open_run, runs_of
from gristmill.stages.sharding.cuts import cut_keys, totals_of, weights_in
from gristmill.stages.sharding.keys import RANDOM_BITS
from gristmill.stages.sharding.mix_plan import MixPlan, SourcePlan, TierSize, allocate
from gristmill.stages.sharding.mix_steps import (
    Amounts,
    CapAmounts,
    CapCuts,
    Caps,
    Draw,
    MixIndex,
    MixSelection,
    copies_of,
)
from gristmill.stages.sharding.mixture import MixSource, Mixture, plain
from gristmill.stages.sharding.sharding_run import ShardingRun, Source
from gristmill.stages.sharding.workflow import TOKEN_COLUMN, ShardingWorkflow

_COLUMNS = {"tokens": "tokens", "bytes": "size", "documents": "documents"}


@dataclass(eq=False, repr=False)
class MixWorkflow(ShardingWorkflow):
    """Samples every source according to a mixture, and writes the shuffled result as shards.

    The sources are measured first, so that the plan states the exact result before any document is written. The
    selection depends on the seed and the origin of documents: it is the same for any number of workers. The amounts are
    met to within one document per tier and source. All copies of a repeated document stay in the same split.

    Args:
        output_path: Output folder for the shards.
        mixture: The sources and the amount to take of each.

    All other arguments are those of `ShuffleWorkflow`.

    Example:
        >>> sources = {"web": MixSource("web/", weight=0.7), "books": MixSource("books/", weight=0.3)}
        >>> workflow = MixWorkflow("mixed/", Mixture(sources, budget="1GB"))
        >>> print(workflow.plan())
        >>> workflow.run()
    """

    name = "mix"

    mixture: Mixture | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.mixture, Mixture):
            raise UsageError("MixWorkflow has no mixture: pass a Mixture.")
        if self.mixture.unit == "tokens" and not self.counts_tokens:
            raise UsageError(
                "The unit of the mixture is tokens: set token_count_field (a column with counts) or tokenizer (a "
                "folder) to count them, or measure in bytes."
            )
        self._planned: MixPlan | None = None
        self._caps: dict[str, Caps] = {}

    @property
    def mixed(self) -> Mixture:
        """The mixture."""
        assert self.mixture is not None
        return self.mixture

    def plan(self, executor: BaseExecutor | str | None = None, **options: Any) -> MixPlan:
        """Plan the result: reads and measures all sources, and writes nothing but the record of that.

        Args:
            executor: Where to run. Defaults to the local executor.
            **options: See `run`.

        Raises:
            PlanningError: A source is empty, the budget cannot be met, or sources share ids.
        """
        given = {"error_budget": 0.01, "salvage": False, "listeners": (), "progress": None, "url_field": None}
        fresh = bool(options.pop("fresh", False))
        run = ShardingRun(self, as_executor(executor), self._sources(), fresh=fresh, options={**given, **options})
        complete = run.begin()
        self._prepare(run)
        if complete:  # the measurements are of no use to a later run
            run.clean()
        assert self._planned is not None
        return self._planned

    # --- required by the base class ---

    def _sources(self) -> list[Source]:
        found = []
        for number, (name, source) in enumerate(self.mixed.sources.items()):
            try:
                documents = self.document_source(
                    source.path if isinstance(source.path, str) else list(source.path), source.filetype
                )
                documents.partitions()
            except InputNotFoundError as error:
                raise PlanningError(f"The source {name!r} is empty: {error.message}", source=name) from error
            placement = self.placement(number, documents)
            _check_columns(name, source, documents)
            found.append(Source(number, name, documents, placement, self.tokenizer_stages()))
        return found

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "mixture": plain(self.mixed)}

    def _prepare(self, run: ShardingRun) -> None:
        indexes: list[RunFiles] = []
        sizes: dict[str, list[TierSize]] = {}
        for source in run.sources:
            index = self._index(run, source)
            indexes.append(index)
            sizes[source.name] = self._sizes(source, index)
        plan = allocate(self.mixed, sizes)
        self._check_ids(run, indexes, plan)
        for source, index, planned in zip(run.sources, indexes, plan.sources, strict=True):
            self._cut(index, planned, sizes[source.name])
            draw = Draw(self.seed, source.number, self.mixed.sources[source.name])
            selection = MixSelection(draw, self._caps[source.name], planned.cuts)
            source.stages = [*self.tokenizer_stages(), selection]
        if self.mixed.unit == "bytes":
            plan.notes.append("Amounts are bytes of documents as written, not tokens.")
        self._planned = plan
        for text in plan.notes:
            run.note(text)

    def _finish(self, run: ShardingRun, facts: dict[str, Any]) -> None:
        assert self._planned is not None
        plan = self._planned
        told = plan.facts()
        total = 0
        for source, planned in zip(run.sources, told["sources"], strict=True):
            got = {
                "tokens": source.facts["tokens"],
                "bytes": source.facts["bytes"],
                "documents": source.facts["documents"],
            }
            planned["amount"] = got[plan.unit]
            total += got[plan.unit]
        for source, planned in zip(run.sources, told["sources"], strict=True):
            source.facts["asked_share"] = planned["asked_share"]
            source.facts["share"] = planned["amount"] / total if total else 0.0
            source.facts["epochs"] = planned["amount"] / planned["available"] if planned["available"] else 0.0
            stated = self.mixed.sources[source.name].license
            if stated is not None:
                source.facts["license"] = stated
        facts["unit"] = plan.unit

    # --- measuring ---

    def _index(self, run: ShardingRun, source: Source) -> RunFiles:
        asked = self.mixed.sources[source.name]
        draw = Draw(self.seed, source.number, asked)
        drop = (TOKEN_COLUMN,) if self.tokenizer is not None else ()
        amounts = Amounts(self.token_field, as_records=run.as_records, drop_fields=drop)
        caps = Caps(None)
        if asked.cap is not None:
            step = f"values-{source.number:03d}"
            stage = CapAmounts(draw, amounts, self.mixed.unit)
            writer = SortedRunWriter(run.path(step))
            run.step(step, [source.documents.reader(), *self.tokenizer_stages(), stage, writer])
            found = runs_of(run.path(step))
            step = f"caps-{source.number:03d}"
            ranges = KeyRanges(found, hash_cuts(range_count(found.size)))
            run.step(step, [ranges, CapCuts(asked.cap.amount), SortedRunWriter(run.path(step))])
            caps = Caps(runs_of(run.path(step)))
        self._caps[source.name] = caps
        step = f"sizes-{source.number:03d}"
        stages = [source.documents.reader(), *self.tokenizer_stages()]
        index = MixIndex(draw, amounts, caps, source.placement.id_field)
        run.step(step, [*stages, index, SortedRunWriter(run.path(step))])
        return runs_of(run.path(step))

    def _sizes(self, source: Source, index: RunFiles) -> list[TierSize]:
        totals = totals_of(weights_in([index], _COLUMNS[self.mixed.unit]))
        count = max(1, len(self.mixed.sources[source.name].tiers))
        found = [totals.get(tier) for tier in range(count)]
        return [TierSize() if one is None else TierSize(one.documents, one.weight) for one in found]

    def _cut(self, index: RunFiles, planned: SourcePlan, sizes: list[TierSize]) -> None:
        """Find the keys below which documents are taken, and compute the exact result."""
        targets = {tier: [sizes[tier].amount * (epochs % 1)] for tier, epochs in enumerate(planned.epochs)}
        wanted = sum(size.amount * epochs for size, epochs in zip(sizes, planned.epochs, strict=True))
        self._cut_at(index, planned, targets)
        # The rounding of all tiers is compensated by the largest one that is cut at all.
        cut = {tier: sizes[tier].amount for tier, target in targets.items() if target[0] > 0}
        if len(cut) > 1:
            largest = max(cut, key=lambda tier: cut[tier])
            targets[largest] = [min(max(0.0, targets[largest][0] + wanted - planned.amount), float(cut[largest]))]
            self._cut_at(index, planned, targets)

    def _cut_at(self, index: RunFiles, planned: SourcePlan, targets: Mapping[int, Sequence[float]]) -> None:
        keys = cut_keys(weights_in([index], _COLUMNS[self.mixed.unit]), targets, nearest=True)
        planned.cuts = [
            (int(epochs), keys[tier][0] if targets[tier][0] > 0 else tier << RANDOM_BITS)
            for tier, epochs in enumerate(planned.epochs)
        ]
        planned.documents = planned.bytes = planned.tokens = 0
        for file in index.files:
            table = open_run(file.path)
            if table.num_rows:
                copies = copies_of(column(table, "key"), planned.cuts)
                planned.documents += int(copies.sum())
                planned.bytes += int((copies * column(table, "size")).sum())
                planned.tokens += int((copies * column(table, "tokens")).sum())
        got = {"tokens": planned.tokens, "bytes": planned.bytes, "documents": planned.documents}
        planned.amount = got[self.mixed.unit]

    def _check_ids(self, run: ShardingRun, indexes: list[RunFiles], plan: MixPlan) -> None:
        """Reject sources that share documents, unless allowed.

        Raises:
            PlanningError: Sources share ids.
        """
        shared = shared_ids(indexes)
        names = [source.name for source in run.sources]
        told = [f"{names[one]} and {names[two]} share {plural(count, 'id')}" for (one, two), count in shared.items()]
        if not told:
            return
        if self.mixed.on_id_overlap == "error":
            raise PlanningError(
                f"The sources overlap: {'; '.join(told)}. The same documents would count for several sources. Remove "
                "duplicates first (gristmill dedup), or set on_id_overlap: keep if equal ids are different documents.",
                overlaps=told,
            )
        plan.notes.append(f"The sources overlap: {'; '.join(told)}. All of their documents are kept.")


def shared_ids(indexes: list[RunFiles]) -> dict[tuple[int, int], int]:
    """The number of shared ids of each pair of sources that share any."""
    shared: dict[tuple[int, int], int] = {}
    edges = hash_cuts(range_count(sum(index.size for index in indexes)))
    for low, high in pairwise(edges):
        found = []
        for index in indexes:
            table = index.read(low, high)
            ids = np.unique(column(table, "id_hash")) if table.num_rows else np.empty(0, np.uint64)
            found.append(ids[ids != 0])
        for one, two in combinations(range(len(indexes)), 2):
            count = len(np.intersect1d(found[one], found[two], assume_unique=True))
            if count:
                shared[one, two] = shared.get((one, two), 0) + count
    return shared


def _check_columns(name: str, source: MixSource, documents: Any) -> None:
    named = {"tiers.field": source.tier_field, "cap.field": None if source.cap is None else source.cap.field}
    wanted = [column for column in named.values() if column is not None]
    if not wanted:
        return
    found = documents.look_for(wanted)
    for option, wants in named.items():
        if found is not None and wants is not None and wants not in found.names:
            looked_at = "" if found.complete else found.looked_at
            raise missing_column(f"sources.{name}.{option}", wants, list(found.names), looked_at=looked_at)
