"""What limited a run, told from records of the kinds that there are."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.ledger.ask.bottleneck import segment_states, suggestion


def stage(
    name: str, busy: float, *, rows: int = 1000, dropped: int = 0, workers: int = 2, **more: Any
) -> dict[str, Any]:
    return {
        "stage": name, "busy_seconds": busy, "calls": 10, "workers": workers, "rows_in": rows,
        "rows_out": rows - dropped, "dropped": {"reason": dropped} if dropped else {},
        "changed": 0, "created": 0, "untracked": 0,
        "starved_seconds": 0.0, "blocked_seconds": 0.0, "starting_seconds": 0.0, "peak_memory_bytes": 10, **more,
    }  # fmt: skip


def record(
    *segments: list[dict[str, Any]], wall: float, partitions: int = 20, busy: int = 2, **more: Any
) -> dict[str, Any]:
    points = 10
    return {
        "status": "done", "wall_seconds": wall, "partitions": partitions, "input_bytes": 10**9,
        "stages": [one for segment in segments for one in segment],
        "history": {
            "seconds": [wall * place / (points - 1) for place in range(points)],
            "segments": [
                {
                    "stages": [one["stage"] for one in segment], "workers": [segment[0]["workers"]] * points,
                    "busy": [busy] * points, "queued": [3] * points,
                }
                for segment in segments
            ],
        },
        **more,
    }  # fmt: skip


FILTER = {"name": "Cheap", "role": "score_filter", "parameters": {"text_field": ["text"]}}


def test_a_filter_is_put_first_only_where_it_can_stand_there() -> None:
    costly, cheap = stage("costly", 18.0), stage("Cheap", 1.0, dropped=500)
    run = record([stage("jsonl_reader", 1.0), costly, cheap], wall=10.0)
    advice = suggestion(run, {"stages": [FILTER]}, processors=2)
    assert (advice.kind, advice.stage, advice.value) == ("filter_first", "Cheap", "costly")
    assert advice.seconds == pytest.approx(5.5)
    assert advice.gain == pytest.approx(10 / 5.5 - 1)
    other_column = {**FILTER, "parameters": {"text_field": ["summary"]}}
    assert suggestion(run, {"stages": [other_column]}, processors=2).kind == "nothing"
    changing = record([stage("jsonl_reader", 1.0), {**costly, "changed": 5}, cheap], wall=10.0)
    assert suggestion(changing, {"stages": [FILTER]}, processors=2).kind == "nothing"
    fused = record([stage("jsonl_reader", 1.0), costly, {**cheap, "calls": 0, "busy_seconds": 0.0}], wall=10.0)
    told = suggestion(fused, {"stages": [FILTER]}, processors=2)
    assert told.kind == "nothing"
    assert "costly with 1 more filters in one pass" in told.reason


def test_workers_are_added_where_they_are_missing() -> None:
    run = record(
        [stage("jsonl_reader", 1.0, workers=1)],
        [stage("model", 38.0, workers=1)],
        [stage("jsonl_writer", 2.0, workers=1)],
        wall=40.0,
    )
    advice = suggestion(run, processors=8)
    assert (advice.kind, advice.stage, advice.value) == ("more_workers", "model", 8)
    assert advice.seconds is not None
    assert 4.7 < advice.seconds < 6.0, "38 s by 8 workers, and what else took time"
    assert suggestion(run, processors=1).kind == "nothing"
    alone = record([stage("jsonl_reader", 1.0, workers=2), stage("model", 38.0)], wall=20.0)
    assert "--workers 8" in suggestion(alone, processors=8).change


def test_other_limits() -> None:
    few = record([stage("jsonl_reader", 1.0, workers=1), stage("model", 18.0, workers=1)], wall=20.0, partitions=1)
    assert suggestion(few, processors=4).kind == "split_input"
    tiny = record([stage("jsonl_reader", 4.0), stage("model", 4.0)], wall=20.0, partitions=5000, input_bytes=10**7)
    assert suggestion(tiny, processors=2).kind == "larger_partitions"
    packed = record([stage("jsonl_reader", 2.0), stage("jsonl_writer", 18.0)], wall=10.0)
    plan = {"stages": [{"name": "jsonl_writer", "parameters": {"compression": "gz"}}]}
    assert (suggestion(packed, plan, processors=2).kind, suggestion(packed, plan, processors=2).value) == (
        "faster_compression",
        "zst",
    )
    dying = record([stage("model", 18.0, workers=8)], wall=10.0, worker_deaths={"out of memory": 3})
    assert (suggestion(dying, processors=8).kind, suggestion(dying, processors=8).value) == ("less_memory", 4)


def test_states_of_segments() -> None:
    run = record(
        [stage("jsonl_reader", 1.0, starved_seconds=0.5, blocked_seconds=9.0)],
        [stage("model", 9.0), stage("label", 1.0)],
        [stage("jsonl_writer", 1.0, starved_seconds=8.0)],
        [stage("late", 0.1, starting_seconds=5.0)],
        wall=10.0,
    )
    assert [one.state for one in segment_states(run)] == ["blocked", "busy", "starved", "ramping"]
    assert segment_states(run)[1].busy_seconds == 10.0


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"stages": None, "history": None},
        {"stages": [{}], "wall_seconds": None},
        {"stages": [{"stage": "a", "busy_seconds": "much", "dropped": None}], "wall_seconds": 5.0, "history": {}},
        {
            "stages": [{"stage": "a", "busy_seconds": 9.0}],
            "wall_seconds": 5.0,
            "history": {"seconds": [], "segments": []},
        },
        {"stages": [{"stage": "a", "busy_seconds": float("nan")}], "wall_seconds": 5.0, "worker_deaths": None},
    ],
)
def test_records_of_earlier_versions_and_broken_ones_do_no_harm(run: dict[str, Any]) -> None:
    assert suggestion(run, {"stages": None}, processors=2).kind
    assert all(one.state in ("unknown", "idle") for one in segment_states(run))
