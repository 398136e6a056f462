"""The performance records of the tasks that a run with a writer returns."""

from __future__ import annotations

from array import array

from gristmill.ledger.performance import StagePerfStats
from gristmill.observe.events import Event, TaskFinished

MOST_PARTITIONS = 10_000
"""In runs of more partitions tasks carry no records: these would take more memory than all else in the driver."""


class PartitionPerf:
    """Adds up what each stage cost for each partition; a listener of the events of a run.

    The tasks that a writer's pipeline returns stand for partitions, of which each passed the stages in many batches.

    Args:
        partitions: How many partitions the run has; above `MOST_PARTITIONS` nothing is kept.
    """

    def __init__(self, partitions: int) -> None:
        self._kept = partitions <= MOST_PARTITIONS
        self._stages: dict[str, tuple[array[float], array[int]]] = {}
        self._custom: dict[tuple[int, str], dict[str, float]] = {}

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        if not self._kept or not isinstance(event, TaskFinished):
            return
        at = event.partition
        for name, spent in event.times.items():
            seconds, items = self._stages.setdefault(name, (array("d"), array("q")))
            missing = at + 1 - len(seconds)
            if missing > 0:
                seconds.extend([-1.0] * missing)
                items.extend([0] * missing)
            seconds[at] = max(seconds[at], 0.0) + spent.busy_s
            items[at] += spent.items
            if spent.custom:
                custom = self._custom.setdefault((at, name), {})
                for key, value in spent.custom.items():
                    custom[key] = custom.get(key, 0.0) + value

    def of(self, partition: int) -> list[StagePerfStats]:
        """One record per stage, in the order in which stages were first called; empty if this run did not do it."""
        return [
            StagePerfStats(
                name,
                process_time=seconds[partition],
                num_items_processed=items[partition],
                custom_metrics=self._custom.get((partition, name), {}),
            )
            for name, (seconds, items) in self._stages.items()
            if partition < len(seconds) and seconds[partition] >= 0
        ]
