"""Repeated passages against a plain search for equal windows."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline.pipeline import Pipeline
from gristmill.stages.deduplication import SubstringDeduplication, SubstringDeduplicationWorkflow
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from tests.unit.pipeline.jobs import here, read_rows
from tests.unit.stages.deduplication.jobs import documents, write_files

WORDS = [f"w{number}" for number in range(400)]


def dedup(folder: Path, *, fresh: bool = False, **options: Any) -> Any:
    workflow = SubstringDeduplicationWorkflow(str(folder / "out"), str(folder / "in"), **options)
    return workflow.run(executor=here(), fresh=fresh)


def texts(folder: Path) -> dict[str, str | None]:
    return {row["id"]: row["text"] for row in read_rows(folder / "out")}


def plain_cuts(units: list[list[Any]], size: int, *, keep: str) -> list[set[int]]:
    """The units of every document that repeated windows cover, by comparing all windows."""
    places: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    for number, row in enumerate(units):
        for at in range(len(row) - size + 1):
            places[tuple(row[at : at + size])].append((number, at))
    cut: list[set[int]] = [set() for _ in units]
    for found in places.values():
        if len(found) > 1:
            first = found[0]
            for number, at in found if keep == "none" else found[1:]:
                start = at
                if keep == "first" and number == first[0]:
                    start = max(at, first[1] + size)
                cut[number].update(range(start, at + size))
    return cut


def runs(cut: set[int]) -> list[tuple[int, int]]:
    """The runs of consecutive numbers."""
    found: list[tuple[int, int]] = []
    for at in sorted(cut):
        if found and found[-1][1] == at:
            found[-1] = (found[-1][0], at + 1)
        else:
            found.append((at, at + 1))
    return found


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(st.lists(st.sampled_from("abc"), max_size=14), min_size=1, max_size=6),
    size=st.integers(2, 5),
    keep=st.sampled_from(["first", "none"]),
    cut=st.integers(0, 6),
)
def test_all_repeated_windows_of_words_are_found_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], size: int, keep: str, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("windows")
    made = documents([" ".join(row) for row in rows])
    write_files(folder, {"a.jsonl": made[:cut], "b.jsonl": [*made[cut:], {"id": "last", "text": "x"}]})
    dedup(folder, min_length=size, keep=keep, action="mark")
    wanted = plain_cuts(rows, size, keep=keep)
    for number, row in enumerate(read_rows(folder / "out")[: len(rows)]):
        marks = [(mark["start"], mark["end"]) for mark in row["repeated"]]
        assert marks == [(2 * start, 2 * end - 1) for start, end in runs(wanted[number])]


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(st.text("aé日", max_size=20), min_size=1, max_size=5), size=st.sampled_from([8, 9, 11]))
def test_all_repeated_windows_of_bytes_are_found_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], size: int
) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    write_files(folder, {"a.jsonl": documents(rows)})
    dedup(folder, unit="byte", min_length=size, action="mark")
    wanted = plain_cuts([list(row.encode()) for row in rows], size, keep="first")
    for number, row in enumerate(read_rows(folder / "out")):
        text, inside = rows[number], []
        for start, end in runs(wanted[number]):
            whole = [
                at for at in range(len(text))
                if start <= len(text[:at].encode()) and len(text[: at + 1].encode()) <= end
            ]  # fmt: skip
            if whole:
                inside.append((whole[0], whole[-1] + 1))
        assert [(mark["start"], mark["end"]) for mark in row["repeated"]] == inside


def test_a_passage_is_cut_where_it_is_said_again(tmp_path: Path) -> None:
    passage = " ".join(WORDS[:60])
    rows = [f"Begin {passage} end.", f"Other\n\n{passage}\nwords", passage, " ".join(WORDS[10:59]), "", None]
    write_files(tmp_path, {"a.jsonl": documents(rows[:2]), "b.jsonl": documents(rows[2:], first=2)})
    result = dedup(tmp_path)
    assert texts(tmp_path) == {"d0": rows[0], "d1": "Other\n\nwords", "d3": rows[3], "d4": "", "d5": None}
    assert result.get_metadata("passages") == 2
    ledger = Ledger(str(tmp_path / "out"))
    (history,) = ledger.why("d1").documents
    assert [rows[1][cut.start : cut.end] for cut in history.cuts] == [passage]  # type: ignore[index]
    assert "repeated_passage" in str(ledger.text_diff(history))
    assert verify(str(tmp_path / "out")).ok
    dedup(tmp_path, fresh=True, keep="none")
    assert texts(tmp_path)["d0"] == "Begin end."


def test_one_word_many_times(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["again " * 50_000, "x"])})
    dedup(tmp_path)
    assert texts(tmp_path)["d0"] == ("again " * 50)
    dedup(tmp_path, fresh=True, action="drop", max_share=0.5)
    assert list(texts(tmp_path)) == ["d1"]


def test_as_a_stage(tmp_path: Path) -> None:
    passage = " ".join(WORDS[:12])
    write_files(tmp_path, {"a.jsonl": [json.dumps(row) for row in documents([passage, f"x {passage}"])]})
    stages = [
        JsonlReader(str(tmp_path / "in")), SubstringDeduplication(min_length=10), JsonlWriter(str(tmp_path / "out")),
    ]  # fmt: skip
    Pipeline("passages", stages=stages).run(here())
    assert texts(tmp_path) == {"d0": passage, "d1": "x"}


@pytest.mark.parametrize(
    ("options", "match"),
    [({"unit": "word"}, "unit='word'"), ({"min_length": 1}, "at least 2 tokens"), ({"keep": "last"}, "keep='last'")],
)
def test_wrong_options_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        SubstringDeduplicationWorkflow("out/", "in/", **options)
