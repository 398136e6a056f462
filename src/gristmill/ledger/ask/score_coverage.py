"""Which scores a run with `scores="all"` leaves out, told from the description of its plan.

Dropped documents go on through filters and modifiers, so that every filter scores them. They end at a stage of user
code that has not said what to do with them: it might not take each document by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def missing_scores(stages: Sequence[Mapping[str, Any]], *, after: str | None = None) -> dict[str, list[str]]:
    """The stages at which dropped documents end, each with the scoring stages behind it that never see them.

    Args:
        stages: As a plan describes them.
        after: Only for documents that this stage has dropped; by default for those of any stage.
    """
    found: dict[str, list[str]] = {}
    dropped = False
    for number, stage in enumerate(stages):
        name, way = str(stage.get("name")), stage.get("for_dropped")
        if dropped and way == "stop":
            behind = [str(one.get("name")) for one in stages[number + 1 :] if one.get("for_dropped") == "score"]
            found |= {name: behind} if behind else {}
            if after is not None:
                break
        may_drop = way in ("score", "stop") and not stage.get("never_drops")
        dropped = dropped or (may_drop if after is None else name == after)
    return found


def missing_scores_note(stages: Sequence[Mapping[str, Any]]) -> str | None:
    """One sentence for the report of a run that was asked for all scores; None if it has them all."""
    missing = missing_scores(stages)
    if not missing:
        return None
    scoring = max(missing.values(), key=len)
    return (
        f"scores='all': {_some(scoring)} cannot score what was dropped before {_some(list(missing))}, because "
        "stages of your own are not given dropped documents. If they take each document by itself, set "
        "for_dropped = 'run' in their classes ('pass' where they only add columns that no filter reads)."
    )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:3]))
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
