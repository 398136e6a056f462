"""Alarms: counts that are possible but rarely meant, said in a sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gristmill.ledger.record.trail import CONVERTED, StageCount


@dataclass(frozen=True, slots=True)
class AlarmLimits:
    """When to speak up.

    Attributes:
        max_dropped_share: A stage that drops more than this share of its rows; None is off.
        no_effect_rows: A stage that leaves at least this many rows exactly as they were; None is off.
        min_rows: Shares of fewer rows than this say nothing.
    """

    max_dropped_share: float | None = 0.9
    no_effect_rows: int | None = 10_000
    min_rows: int = 100


def find_alarms(
    stages: Mapping[str, StageCount],
    *,
    limits: AlarmLimits | None = None,
    quiet_stages: frozenset[str] = frozenset(),
    run: Mapping[str, Any] | None = None,
    previous: Mapping[str, Any] | None = None,
) -> list[str]:
    """What deserves a look.

    Args:
        stages: Counts in the order of the plan; the first and the last one are the ends and may have no effect.
        limits: When to speak up.
        quiet_stages: Stages that are not meant to drop or change anything (they only add columns).
        run: `partitions`, `source_bytes` and `rows_read` of this run.
        previous: The same of the run before.
    """
    limits = limits or AlarmLimits()
    found: list[str] = []
    idle_stages: list[str] = []
    names = list(stages)
    if names and stages[names[0]].quarantined and not stages[names[0]].rows_out:
        records = sum(stages[names[0]].quarantined.values())
        found.append(f"Stage {names[0]!r} could read nothing: all {records} records are in quarantine.")
    for name, count in stages.items():
        gone = sum(count.dropped.values())
        if limits.max_dropped_share is not None and count.rows_in >= limits.min_rows:
            share = (gone - count.dropped.get(CONVERTED, 0)) / count.rows_in
            if share > limits.max_dropped_share:
                reason = max(count.dropped, key=lambda key: count.dropped[key])
                found.append(
                    f"Stage {name!r} dropped {share:.1%} of {count.rows_in} rows, mostly as {reason!r} "
                    f"({count.dropped[reason]}); more than {limits.max_dropped_share:.0%} is rarely meant."
                )
        ends = name in (names[0], names[-1]) or name in quiet_stages
        effect = gone or count.created or count.changed or count.touched or count.quarantined
        idle = not effect
        if limits.no_effect_rows is not None and not ends and idle and count.rows_in >= limits.no_effect_rows:
            idle_stages.append(f"Stage {name!r} had no effect on {count.rows_in} rows")
    if idle_stages:
        # One note for all: in a long cascade some filters rarely find anything.
        found.append(", ".join(idle_stages).replace(", Stage", ", stage") + ". Check their fields and thresholds.")
    for key, what in (("source_bytes", "bytes"), ("partitions", "partitions"), ("rows_read", "rows")):
        now, before = (run or {}).get(key), (previous or {}).get(key)
        if isinstance(now, int) and isinstance(before, int) and now < before:
            found.append(f"The input shrank since the last run: {now} {what} instead of {before}.")
            break
    return found
