"""The performance records of the tasks that a run with a writer returns."""

from __future__ import annotations

from gristmill.ledger.performance import StagePerfStats
from gristmill.observe.events import Event, TaskFinished


class PartitionPerf:
    """Adds up what each stage cost for each partition; a listener of the events of a run.

    The tasks that a writer's pipeline returns stand for partitions, of which each passed the stages in many batches.
    """

    def __init__(self) -> None:
        self._of: dict[int, dict[str, StagePerfStats]] = {}

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, TaskFinished):
            stages = self._of.setdefault(event.partition, {})
            for name, spent in event.times.items():
                call = StagePerfStats(
                    name, process_time=spent.busy_s, num_items_processed=spent.items, custom_metrics=dict(spent.custom)
                )
                stages[name] = stages[name] + call if name in stages else call

    def of(self, partition: int) -> list[StagePerfStats]:
        """One record per stage, in the order in which the stages were first called; empty if none ran in this run."""
        return list(self._of.get(partition, {}).values())
