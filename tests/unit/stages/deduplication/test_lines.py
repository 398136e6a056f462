"""Repeated lines, paragraphs and sentences, from files to files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.errors import InputChangedError, UsageError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline.pipeline import Pipeline
from gristmill.stages.deduplication import ExactDeduplicationWorkflow, LineDeduplication, LineDeduplicationWorkflow
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from tests.unit.pipeline.jobs import here, read_rows
from tests.unit.stages.deduplication.jobs import deduplicate, documents, kept_ids, write_files

NOTICE = "All rights reserved by the publisher."


def dedup_lines(folder: Path, *, fresh: bool = False, **options: Any) -> Any:
    workflow = LineDeduplicationWorkflow(
        input_path=str(folder / "in"), output_path=str(folder / "out"), **{"min_chars": 1, **options}
    )
    return workflow.run(executor=here(), fresh=fresh)


def texts(folder: Path) -> list[str | None]:
    return [row["text"] for row in read_rows(folder / "out")]


def plain(rows: list[tuple[str, str]], *, scope: str, most: int, keep: str) -> list[list[str]]:
    """What a plain loop over lines leaves of documents with a URL and a text."""

    def key(number: int, line: str) -> Any:
        host = rows[number][0] or number
        return line, {"all": None, "domain": host, "document": number}[scope]

    split = [[line for line in text.split("\n") if line] for _, text in rows]
    counts = Counter(key(number, line) for number, lines in enumerate(split) for line in lines)
    seen: set[Any] = set()
    left = []
    for number, lines in enumerate(split):
        kept = []
        for line in lines:
            one = key(number, line)
            if counts[one] <= most or (keep == "first" and one not in seen):
                kept.append(line)
            seen.add(one)
        left.append(kept)
    return left


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["", "a.org", "b.org"]), st.lists(st.sampled_from("pqrst"), max_size=5)), max_size=8
    ),
    cut=st.integers(0, 8),
    scope=st.sampled_from(["document", "domain", "all"]),
    most=st.integers(1, 3),
    keep=st.sampled_from(["first", "none"]),
)
def test_what_is_left_is_what_a_plain_loop_leaves(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, list[str]]], cut: int, scope: str, most: int, keep: str,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("loop")
    given_rows = [(host, "\n".join(lines)) for host, lines in rows]
    made = [
        {"id": f"d{number}", "text": text, **({"url": f"https://www.{host}/{number}"} if host else {})}
        for number, (host, text) in enumerate(given_rows)
    ]
    write_files(folder, {"a.jsonl": [*made[:cut], {"id": "x", "text": "", "url": ""}], "b.jsonl": made[cut:]})
    dedup_lines(folder, scope=scope, max_count=most, keep=keep)
    wanted = plain(given_rows, scope=scope, most=most, keep=keep)
    left = {row["id"]: row["text"].split("\n") for row in read_rows(folder / "out") if row["id"] != "x"}
    for number, (_, text) in enumerate(given_rows):
        lines = left.get(f"d{number}")
        if wanted[number]:
            assert lines == wanted[number]
        else:
            assert lines is None or text == ""


def test_cuts_are_in_the_ledger_and_shown(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "a.jsonl": documents([f"Eins, zwei – drei.\n{NOTICE}", f"日本語\n{NOTICE}\r\nThe end.", NOTICE]),
            "b.jsonl": documents(["Nothing of this repeats.", "", None], first=3),
        },
    )
    result = dedup_lines(tmp_path)
    assert texts(tmp_path) == [
        f"Eins, zwei – drei.\n{NOTICE}",
        "日本語\nThe end.",
        "Nothing of this repeats.",
        "",
        None,
    ]
    assert (result.get_metadata("passages"), result.get_metadata("num_removed")) == (2, 1)
    ledger = Ledger(str(tmp_path / "out"))
    (history,) = ledger.why("d1").documents
    (cut,) = history.cuts
    assert (cut.reason, cut.field) == ("repeated_line", "text")
    assert f"日本語\n{NOTICE}\r\nThe end."[cut.start : cut.end] == NOTICE
    assert "found repeated_line: 1 passage of 'text' (characters 4-41)" in str(ledger.why("d1"))
    shown = str(ledger.text_diff(history))
    assert f"-{NOTICE}" in shown
    assert f"repeated_line (line_deduplication, characters 4-41): '{NOTICE}'" in shown
    (dropped,) = ledger.why("d2").documents
    assert [decision.reason for decision in dropped.decisions] == ["nothing_left"]
    assert NOTICE in str(ledger.text_diff(dropped))
    assert ledger.cuts().select("row", "start", "end").rows() == [(1, 4, 41), (2, 0, 37)]
    assert verify(str(tmp_path / "out")).ok


def test_marks_leave_the_texts(tmp_path: Path) -> None:
    rows = documents([f"a\n{NOTICE}", f"{NOTICE}\nb"])
    write_files(tmp_path, {"a.jsonl": rows})
    dedup_lines(tmp_path, action="mark", marks_field="again", max_share=0.1)
    found = read_rows(tmp_path / "out")
    assert [row["text"] for row in found] == [row["text"] for row in rows]
    assert [row["again"] for row in found] == [[], [{"start": 0, "end": 37, "reason": "repeated_line"}]]


def test_documents_above_a_share_are_dropped(tmp_path: Path) -> None:
    rows = documents([NOTICE, f"{NOTICE}\nb", f"{NOTICE}\n{'A longer line with more to say than the notice. ' * 3}"])
    write_files(tmp_path, {"a.jsonl": rows})
    dedup_lines(tmp_path, action="drop", max_share=0.5)
    assert read_rows(tmp_path / "out") == [rows[0], rows[2]]
    (history,) = Ledger(str(tmp_path / "out")).why("d1").documents
    (decision,) = history.decisions
    assert (decision.reason, decision.threshold) == ("too_much_repeated", 0.5)


def test_paragraphs_and_sentences_and_loose_comparison(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["One two.\nThree.\n\nRest A", "one  TWO\nthree\n\nRest b. One two."])})
    dedup_lines(tmp_path, unit="paragraph", loose=True)
    assert texts(tmp_path) == ["One two.\nThree.\n\nRest A", "Rest b. One two."]
    dedup_lines(tmp_path, fresh=True, unit="sentence")
    assert texts(tmp_path)[1] == "one  TWO\nthree\n\nRest b."


def test_short_units_are_left_alone(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["Yes.", "Yes.", NOTICE, f"x\n{NOTICE}"])})
    dedup_lines(tmp_path, min_chars=20)
    assert texts(tmp_path) == ["Yes.", "Yes.", NOTICE, "x"]


def test_values_that_are_no_strings_stay(tmp_path: Path) -> None:
    lines = ['{"text": {"a": "x\\nx"}}', '{"text": 5}', '{"text": "y\\ny"}', '{"no": "text"}']
    write_files(tmp_path, {"a.jsonl": lines})
    dedup_lines(tmp_path)
    assert texts_raw(tmp_path) == ['{"text": {"a": "x\\nx"}}', '{"text": 5}', '{"text": "y"}', '{"no": "text"}']


def texts_raw(folder: Path) -> list[str]:
    return [line for path in sorted((folder / "out").glob("*.jsonl")) for line in path.read_text().splitlines()]


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"id": [1, 2], "text": [NOTICE, f"x\n{NOTICE}"], "n": [1.5, None]})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    dedup_lines(tmp_path)
    found = pq.read_table(next((tmp_path / "out").glob("*.parquet")))
    assert found.schema.types == table.schema.types
    assert found.column("text").to_pylist() == [NOTICE, "x"]


def test_a_changed_input_between_steps_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["x\nx"]), "b.jsonl": documents(["y"], first=1)})
    dedup_lines(tmp_path)
    write_files(tmp_path, {"b.jsonl": documents(["x"], first=1)})
    with pytest.raises(InputChangedError, match=r"b was changed.*--fresh"):
        dedup_lines(tmp_path)


def test_as_a_stage_between_others(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents([NOTICE, f"x\n{NOTICE}"]), "b.jsonl": documents([NOTICE], first=2)})
    pipeline = Pipeline(
        "lines",
        stages=[
            JsonlReader(str(tmp_path / "in")),
            LineDeduplication(min_chars=1, keep="none"),
            LineDeduplication(min_chars=1).with_(name="again"),
            JsonlWriter(str(tmp_path / "out")),
        ],
    )
    pipeline.run(here())
    assert texts(tmp_path) == ["x"]
    (history,) = Ledger(str(tmp_path / "out")).why("d1").documents
    assert [(cut.stage, cut.start, cut.end) for cut in history.cuts] == [("LineDeduplication", 2, 39)]
    assert verify(str(tmp_path / "out")).ok


def test_one_line_many_times_takes_one_row_of_the_counts(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents(["\n".join(["again and again"] * 20_000)] * 3)})
    dedup_lines(tmp_path)
    assert texts(tmp_path) == ["again and again"]
    runs = list((tmp_path / "out.gristmill" / "steps" / "signatures").glob("*.arrow"))
    assert sum(pa.ipc.open_file(path.read_bytes()).read_all().num_rows for path in runs) == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"unit": "word"}, "unit='word'"), ({"scope": "site"}, "scope='site'"), ({"keep": "last"}, "keep='last'"),
        ({"max_count": 0}, "max_count=0"), ({"min_chars": 0}, "min_chars=0"), ({"action": "cutt"}, "mean 'cut'"),
        ({"max_share": 2}, "between 0 and 1"), ({"action": "drop"}, "share above which"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        LineDeduplicationWorkflow("out/", "in/", **options)


def test_urls_and_titles_are_keys(tmp_path: Path) -> None:
    columns = ("id", "url", "title", "text", "date")
    values: list[tuple[str | None, ...]] = [
        ("a", "http://www.example.com/x/?utm_source=1", "Big News!", "old", "2024-05-01T12:00:00Z"),
        ("b", "https://example.com/x", " big  news", "newer", "2024-05-01T15:00:00+02:00"),
        ("c", "https://example.com/y", "Part 1", "much longer", "20240301"),
        ("d", "", "…", "much longer", None),
        ("e", None, "Part 2", "z", None),
    ]
    rows = [dict(zip(columns, row, strict=True)) for row in values]
    write_files(tmp_path, {"a.jsonl": [json.dumps(row) for row in rows]})
    deduplicate(tmp_path, key="url", survivor="newest", score_field="date")
    assert kept_ids(tmp_path) == ["b", "c", "d", "e"]
    (history,) = Ledger(str(tmp_path / "out")).why("a").documents
    assert (history.decisions[0].reason, history.decisions[0].survivor) == ("same_url", "b")
    deduplicate(tmp_path, fresh=True, key="title", survivor="longest")
    assert kept_ids(tmp_path) == ["b", "c", "d", "e"]
    assert Ledger(str(tmp_path / "out")).why("a").documents[0].decisions[0].reason == "same_title"


def test_a_column_without_dates_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": [{"text": "x", "date": "yesterday"}]})
    with pytest.raises(UsageError, match="such as 'yesterday'"):
        deduplicate(tmp_path, survivor="newest", score_field="date")
    with pytest.raises(UsageError, match="to the column that holds the dates"):
        ExactDeduplicationWorkflow("out/", "in/", survivor="newest")
    with pytest.raises(UsageError, match="key='link'"):
        ExactDeduplicationWorkflow("out/", "in/", key="link")  # type: ignore[arg-type]
