"""Searches return the same as a plain look at every document, page by page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.errors import UsageError, VerificationError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.record.layout import RunFolder
from gristmill.pipeline import Pipeline
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, ParquetReader, ParquetWriter
from gristmill.viewer import app, rows
from gristmill.viewer.app import View
from gristmill.viewer.query import Query
from gristmill.viewer.search import Cursor, Search
from tests.outputs import record_of


def refs(answer: dict[str, Any]) -> list[str]:
    return [hit["ref"] for hit in answer["hits"]]


def everything(view: View) -> list[str]:
    return [f"{one['partition']}#{one['row']}" for one in view.ledger.documents().to_dicts()]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"status": "kept"},
        {"status": "dropped"},
        {"status": "duplicate"},
        {"status": "quarantined"},
        {"stage": "WordCountFilter"},
        {"stage": "WordCountFilter", "reason": "too_many_words"},
        {"reason": "exact_duplicate", "status": "dropped"},
        {"score_min": "2", "score_max": "5"},
        {"score_min": "1e6"},
        {"status": "kept", "stage": "WordCountFilter"},
    ],
)
def test_a_search_is_a_look_at_every_document(view: View, given: dict[str, str]) -> None:
    outcomes = {"dropped": ("dropped", "duplicate")}
    wanted = [
        f"{one['partition']}#{one['row']}"
        for one in view.ledger.documents().to_dicts()
        if one["status"] in outcomes.get(given.get("status", ""), (given.get("status") or one["status"],))
        and given.get("stage") in (None, one["stage"])
        and given.get("reason") in (None, one["reason"])
        and ("score_min" not in given or (one["score"] is not None and one["score"] >= float(given["score_min"])))
        and ("score_max" not in given or (one["score"] is not None and one["score"] <= float(given["score_max"])))
    ]
    answer = view.search(given)
    assert refs(answer) == wanted
    assert answer["cursor"] is None
    assert answer["matching"] in (None, len(wanted))
    assert view.count(given) == {"count": len(wanted), "cursor": None, "searched": answer["documents"]}


def test_kept_documents_by_change_and_by_a_recorded_score(view: View) -> None:
    assert refs(view.search({"status": "changed"})) == ["a#8"]
    name = "WordCountFilter:WordCountFilter"
    assert view.run()["scores"] == [name]
    found = view.search({"score_name": name, "score_min": "15", "score_max": "16"})
    scores = {(one["partition"], one["row"]): one["value"] for one in view.ledger.scores().to_dicts()}
    assert refs(found) == [f"{part}#{row}" for (part, row), value in sorted(scores.items()) if 15 <= value <= 16]
    assert {hit["status"] for hit in found["hits"]} >= {"kept", "duplicate"}


def test_by_source_file(view: View) -> None:
    assert refs(view.search({"source": "b.js"})) == [f"b#{row}" for row in range(7)]
    assert refs(view.search({"source": "b.js", "status": "quarantined"})) == ["b#6"]
    assert refs(view.search({"source": "nowhere"})) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("number8", ["a#4"]),
        ("NUMBER8", ["a#4"]),
        ("שלום", ["b#1"]),
        ("<script>", ["b#0"]),
        ("lone surrogate", ["b#2"]),
        ("<i>cut", ["b#6"]),
        ("https://spam.example", ["a#8"]),
        ("example.org", []),
    ],
)
def test_by_text(view: View, text: str, found: list[str]) -> None:
    # The last one is in a URL and in no text; the one before it was removed by a stage, and is in the input.
    assert refs(view.search({"text": text})) == found


def test_text_together_with_other_conditions(view: View) -> None:
    assert refs(view.search({"text": "fox", "status": "duplicate"})) == ["b#4"]
    assert refs(view.search({"text": "fox", "stage": "WordCountFilter"})) == ["a#2", "a#3"]


def test_pages_follow_each_other_without_gap_or_overlap(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = everything(view)
    monkeypatch.setattr(app, "PAGE", 3)
    for forget in (False, True):
        seen: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            answer = view.search({"cursor": cursor})
            seen += refs(answer)
            cursor = answer["cursor"]
            if forget:  # a cursor alone is enough
                view._searches.clear()
        assert seen == whole


def test_a_search_that_runs_out_of_time_says_how_far_it_came(view: View) -> None:
    search = Search(view.ledger, view.catalog, Query(text="no such words"), view.labels)
    seen = []
    for _ in range(20):
        page = search.page(50, seconds=-1)
        seen.append(page.searched)
        if page.cursor is None:
            break
        fresh = Search(view.ledger, view.catalog, Query(text="no such words"), view.labels, start=page.cursor)
        assert fresh.page(50).cursor is None
    assert seen[-1] == view.catalog.documents
    assert len(seen) > 2
    assert seen == sorted(seen)


def test_decisions_on_one_document_at_the_border_of_row_groups(
    view: View, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    path = record_of(output) / "ledger" / "a.parquet"
    table = pq.read_table(path)
    pq.write_table(table, path, row_group_size=1, write_statistics=["row"], store_schema=False)
    assert len(table) > 2
    monkeypatch.setattr(rows, "_STEP", 2)
    assert refs(view.search({})) == everything(view)
    assert refs(view.search({"stage": "WordCountFilter", "cursor": "a#2"})) == ["a#2", "a#3", "b#5"]


def test_by_id_url_and_place(view: View) -> None:
    for name in ("doc-14", "https://example.org/14", "a#7"):
        assert refs(view.find(name)) == ["a#7"]
    answer = view.find("nosuch")
    assert answer["hits"] == []
    assert answer["note"] == str(view.ledger.why("nosuch"))


def test_a_random_place_is_a_page_like_others(view: View) -> None:
    whole = everything(view)
    for _ in range(10):
        answer = view.search({"start": "random"})
        assert refs(answer) == whole[whole.index(answer["start"]) :]


@pytest.mark.parametrize(
    "given",
    [
        {"status": "keptt"},
        {"label": "good"},
        {"score_name": "../x"},
        {"score_min": "abc"},
        {"score_max": "nan"},
        {"cursor": "../../etc/passwd#0"},
        {"cursor": "a#-1"},
        {"cursor": "a"},
    ],
)
def test_what_the_page_does_not_offer_is_refused(view: View, given: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        view.search(given)


def test_one_partition_of_several_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in "abc":
        lines = [json.dumps({"id": f"{name}{n}", "text": f"{name} {n}"}) for n in range(3)]
        (tmp_path / "in" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    stages = [
        JsonlReader(str(tmp_path / "in"), files_per_partition=3),
        ScoreFilter(WordCountFilter(min_words=1)),
        ParquetWriter(str(tmp_path / "out")),
    ]
    Pipeline("several", stages=stages).run(progress=False)
    view = View(RunFolder(tmp_path / "out"))
    hits = view.search({"source": "b.jsonl"})["hits"]
    assert [hit["ref"].rpartition("#")[2] for hit in hits] == ["3", "4", "5"]
    assert view.document(hits[0]["ref"])["source"] == "b.jsonl"
    # and Parquet as the input
    again = [
        ParquetReader(str(tmp_path / "out")),
        ScoreFilter(WordCountFilter(min_words=3)),
        ParquetWriter(str(tmp_path / "again")),
    ]
    Pipeline("again", stages=again).run(progress=False, alarm_share=None)
    view = View(RunFolder(tmp_path / "again"))
    found = view.search({"text": "B 1"})
    assert [view.document(ref)["id"] for ref in refs(found)] == ["b1"]
    assert view.snippets(refs(found))["snippets"][refs(found)[0]]["text"] == "b 1"


def test_a_sample_shows_only_what_was_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("".join(json.dumps({"id": str(n), "text": "x"}) + "\n" for n in range(40)))
    from gristmill.stages.text.io import JsonlWriter

    stages = [JsonlReader(str(tmp_path / "in"), sample=0.5), JsonlWriter(str(tmp_path / "out"))]
    Pipeline("sample", stages=stages).run(progress=False)
    view = View(RunFolder(tmp_path / "out"))
    assert refs(view.search({})) == everything(view)
    assert 0 < len(everything(view)) < 40


def test_a_damaged_ledger_is_named_and_the_others_are_shown(view: View, output: Path) -> None:
    (record_of(output) / "ledger" / "a.parquet").write_bytes(b"PAR1 not at all")
    answer = view.search({"status": "dropped"})
    assert refs(answer) == ["b#4", "b#5"]
    assert len(answer["problems"]) == 1
    assert "Partition a was searched only in part" in answer["problems"][0]
    with pytest.raises(VerificationError, match=r"a\.parquet is damaged"):
        view.document("a#1")
    with pytest.raises(VerificationError, match=r"a\.parquet is damaged .* Run `gristmill verify` on the output"):
        view.find("doc-2")


def test_the_cursor_is_the_place_that_why_takes(view: View) -> None:
    assert str(Cursor("a", 7)) == "a#7"
    assert Ledger(view.folder).why("a#7").documents[0].row == 7
