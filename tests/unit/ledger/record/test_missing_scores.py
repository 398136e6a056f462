"""Which scores are missing is told from the plan alone."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.ledger.record.plan_record import missing_scores, missing_scores_note


def plan(*ways: str) -> list[dict[str, Any]]:
    """A reader, stages that treat dropped documents in these ways, and a writer."""
    middle = [{"name": f"{way}{number}", "for_dropped": way} for number, way in enumerate(ways)]
    ends = [{"name": name, "never_drops": True, "for_dropped": "stop"} for name in ("r", "w")]
    return [ends[0], *middle, ends[1]]


@pytest.mark.parametrize(
    ("ways", "missing"),
    [
        (("score", "run", "pass", "score"), {}),
        (("stop", "score"), {}),  # what it drops itself is followed
        (("score", "stop", "run", "score"), {"stop1": ["score3"]}),
        (("score", "stop"), {}),
        (("stop", "stop", "score", "score"), {"stop1": ["score2", "score3"]}),
        (("score", "stop", "score", "stop", "score"), {"stop1": ["score2", "score4"], "stop3": ["score4"]}),
    ],
)
def test_missing(ways: tuple[str, ...], missing: dict[str, list[str]]) -> None:
    assert missing_scores(plan(*ways)) == missing
    assert (missing_scores_note(plan(*ways)) is None) == (not missing)


def test_of_one_document() -> None:
    stages = plan("score", "stop", "score", "stop", "score")
    assert missing_scores(stages, after="score0") == {"stop1": ["score2", "score4"]}
    assert missing_scores(stages, after="stop1") == {"stop3": ["score4"]}
    assert missing_scores(stages, after="score4") == {}


def test_long_lists_are_cut() -> None:
    note = missing_scores_note(plan("score", "stop", *["score"] * 9))
    assert note is not None
    assert "'score2', 'score3', 'score4' and 6 more cannot score what was dropped before 'stop1'" in note
