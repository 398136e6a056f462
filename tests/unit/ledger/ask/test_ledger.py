"""Questions to a ledger: why, all decisions, and two runs compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from gristmill.errors import InputNotFoundError
from gristmill.kernels.hashing import hash_column
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import Manifest
from gristmill.ledger.record.quarantine import list_quarantine, read_quarantine
from gristmill.ledger.record.tables import make_identity
from gristmill.ledger.record.trail import Decisions, Identity, Scores, StageCount, Trail
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.tasks.document import DocumentBatch
from tests.unit.ledger.making import STAGES, commit, make_partition, make_run, make_trail
from tests.unit.pipeline.jobs import run_lines


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(make_run(tmp_path, 2))


def test_why_a_document_was_dropped(ledger: Ledger) -> None:
    why = ledger.why("part-1-2")
    assert (why.status, why.kept, why.seen, len(why.documents)) == ("dropped", False, True, 1)
    document = why.documents[0]
    assert (document.partition, document.row, document.id, document.files) == ("part-1", 2, "part-1-2", [])
    assert document.sources == ["/data/part-1.jsonl"]
    assert str(why).splitlines()[0] == "part-1-2: dropped by stage 'words': too_few_words (score 1, threshold 50)"


def test_why_a_document_was_kept_and_how_it_was_changed(ledger: Ledger) -> None:
    why = ledger.why("part-0-6")
    assert (why.status, why.documents[0].files) == ("kept", ["part-0.jsonl"])
    assert "stage 'clean' removed 4 characters in 'text'" in str(why)


def test_why_of_a_duplicate_names_its_survivor(ledger: Ledger) -> None:
    why = ledger.why("part-0-4")
    decision = why.documents[0].decisions[0]
    assert (why.status, decision.survivor, decision.similarity) == ("duplicate", "part-0-5", 0.93)
    assert "dropped as a duplicate by stage 'dedup'" in str(why)
    assert "the survivor is 'part-0-5', similarity 0.93" in str(why)


def test_why_by_url_and_by_place(ledger: Ledger) -> None:
    assert ledger.why("http://x/part-1/3").documents[0].decisions[0].reason == "too_few_words"
    why = ledger.why("part-1#0")
    assert why.status == "quarantined"
    assert why.documents[0].quarantine[0]["raw"] == b'{"x\xff'
    assert "quarantined because: unexpected end" in str(why)


@pytest.mark.parametrize("query", ["nothing", "part-9#1", "../x#1", "part-0#99", "part-0#x", "#1", ""])
def test_never_seen_is_told_from_dropped(ledger: Ledger, query: str) -> None:
    why = ledger.why(query)
    assert (why.status, why.kept, why.seen) == ("never seen", False, False)
    assert str(why) == f"Not found: no input document has the id or URL {query!r}."


def test_several_documents_with_one_id_are_all_listed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for index in range(2):
        commit(folder, make_partition(f"p{index}", index), make_trail(prefix="same"))
    why = Ledger(folder).why("same-8")
    assert [(document.partition, document.row) for document in why.documents] == [("p0", 8), ("p1", 8)]
    assert str(why).startswith("same-8: 2 documents")


def test_a_partition_that_is_not_committed_does_not_answer(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 2)
    entry = Manifest(folder).load()["part-1"]
    object.__setattr__(entry, "state", "pending")
    Manifest(folder).add(entry)
    assert not Ledger(folder).why("part-1-2").seen
    assert Ledger(folder).why("part-0-2").seen


def test_a_run_without_ids_says_so(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    trail = make_trail()
    trail.identities.clear()
    commit(folder, make_partition(), trail)
    assert "recorded neither ids nor URLs" in str(Ledger(folder).why("doc-1"))
    assert Ledger(folder).why("part-0#1").status == "dropped"


def test_rows_that_were_split_or_lost_to_sight_are_noted(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    trail = make_trail(prefix="d")
    trail.counts["clean"] = StageCount(rows_in=11, rows_out=13, created=3, dropped={"untracked": 1}, untracked=1)
    trail.counts["words"].rows_in = 13
    trail.counts["words"].rows_out = 10
    trail.counts["dedup"] = StageCount(rows_in=10, rows_out=9, dropped={"near_duplicate": 1})
    trail.counts["write"] = StageCount(rows_in=9, rows_out=9)
    trail.output_rows = 9
    trail.decisions.append(Decisions("clean", "dropped", "untracked", np.array([9])))
    commit(folder, make_partition(), trail)
    notes = Ledger(folder).why("d-9").documents[0].notes
    assert "1 rows of this partition that could not be matched" in notes[0]
    assert "other pieces of this one may be in the output" in notes[1]


def test_all_scores_are_shown_where_they_were_recorded(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    trail = make_trail(prefix="d")
    trail.scores.append(Scores("words", "word_count", np.arange(12), np.arange(12) * 2.0))
    commit(folder, make_partition(), trail)
    ledger = Ledger(folder)
    assert ledger.why("d-7").documents[0].scores[0].value == 14.0
    assert ledger.scores()["value"].to_list() == [row * 2.0 for row in range(12)]


def test_frame_has_every_decision_with_its_partition(ledger: Ledger) -> None:
    frame = ledger.frame()
    assert frame.columns == [
        "partition", "row", "id", "stage", "outcome", "reason", "score", "threshold", "survivor", "similarity",
        "cluster",
    ]  # fmt: skip
    assert frame.group_by("outcome").len().sort("outcome").rows() == [
        ("dropped", 6), ("duplicate", 2), ("quarantined", 2),
    ]  # fmt: skip
    assert frame["partition"].unique().sort().to_list() == ["part-0", "part-1"]
    assert len(ledger.changes()) == 2


def test_summary_adds_up(ledger: Ledger) -> None:
    summary = ledger.summary()
    assert summary.filter(pl.col("stage") == "words").rows() == [("words", "dropped", "too_few_words", 22, 6, 16)]
    assert summary["rows"].sum() == len(ledger.frame())


def test_the_ledger_of_another_store(tmp_path: Path) -> None:
    folder = make_run(f"memory://{tmp_path.name}/ledger", 2)
    assert Ledger(folder.path).why("part-1-2").status == "dropped"
    assert len(Ledger(folder).frame()) == 10


def test_no_run_there(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError):
        Ledger(tmp_path)


def test_diff_shows_every_kind_of_change(tmp_path: Path, ledger: Ledger) -> None:
    later = RunFolder(tmp_path / "later")
    # Another cut of the input: the documents of part-0 now come second, with another prefix for part-1.
    trail = make_trail(13, prefix="part-0")
    trail.decisions[0] = Decisions("words", "dropped", "too_few_words", np.array([1, 7, 8]), np.ones(3), 50.0)
    trail.decisions[1] = Decisions("dedup", "duplicate", "near_duplicate", np.array([2]), None, None, ["x"], None)
    commit(later, make_partition("other", 0), make_trail(prefix="part-1"))
    commit(later, make_partition("whole", 1), trail)
    diff = ledger.diff(later.path)
    assert diff.matched_by == "id"
    found = {(row["change"], row["id"]) for row in diff.frame.to_dicts()}
    assert found >= {
        ("entered", "part-0-3"), ("entered", "part-0-4"), ("left", "part-0-7"), ("left", "part-0-8"),
        ("another reason", "part-0-2"),
    }  # fmt: skip
    # Row 0 has no id and is known by its place only, which is another one now.
    assert diff.counts() == {"new": 3, "gone": 2, "entered": 2, "left": 2, "another reason": 1}
    assert diff.same == 17
    assert str(diff).startswith(
        "17 documents unchanged, 1 dropped for another reason, 2 added, 2 gone, 2 removed, 3 new (matched by id)."
    )


def test_diff_of_equal_runs_is_empty_also_with_repeated_ids(tmp_path: Path) -> None:
    folders = []
    for name in ("a", "b"):
        folder = RunFolder(tmp_path / name)
        for index in range(2):
            commit(folder, make_partition(f"p{index}", index), make_trail(prefix="same"))
        folders.append(folder)
    diff = Ledger(folders[0]).diff(Ledger(folders[1]))
    assert (len(diff.frame), diff.same) == (0, 24)


def test_diff_without_ids_goes_by_place(tmp_path: Path) -> None:
    ledgers = []
    for number, rows in enumerate(([1, 2, 3], [1, 2, 4])):
        trail = make_trail()
        trail.identities.clear()
        trail.decisions[0] = Decisions("words", "dropped", "too_few_words", np.array(rows))
        trail.decisions[1] = Decisions("dedup", "duplicate", "near_duplicate", np.array([-1]))
        folder = RunFolder(tmp_path / str(number))
        commit(folder, make_partition(), trail)
        ledgers.append(Ledger(folder))
    diff = ledgers[0].diff(ledgers[1])
    assert diff.matched_by == "row"
    assert diff.frame.select("change", "row").rows() == [("entered", 3), ("left", 4)]
    assert diff.untracked == 2


def test_quarantine_is_listed_by_cause_and_read_back(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 2)
    listed = list_quarantine(tmp_path)
    assert listed.select("cause", "stage", "records", "bytes").rows() == [("malformed_json", "read", 2, 8)]
    assert [item.record.raw for item in read_quarantine(folder)] == [b'{"x\xff'] * 2
    assert list(read_quarantine(folder, cause="other")) == []
    assert len(list(read_quarantine(folder, stage="read"))) == 2


def test_identity_of_a_batch() -> None:
    batch = DocumentBatch(data=pa.table({"id": [7, None, 12], "url": ["a", "b", None], "empty": [None, None, None]}))
    batch._tracking.rows = np.array([4, 5, 6])
    identity = make_identity(batch, id_field="id", url_field="url")
    assert identity.rows.tolist() == [4, 5, 6]
    assert identity.ids.to_pylist() == ["7", None, "12"]
    assert identity.id_hashes is not None
    assert identity.url_hashes is not None
    assert identity.id_hashes.tolist() == hash_column(["7", None, "12"]).tolist()
    assert identity.url_hashes.tolist() == hash_column(["a", "b", None]).tolist()
    for absent in (None, "missing", "empty"):
        nothing = make_identity(batch, id_field=absent, url_field=absent)
        assert (nothing.ids, nothing.id_hashes, nothing.url_hashes) == (None, None, None)


def test_ids_are_found_across_batches_in_any_order(tmp_path: Path) -> None:
    parts = [Identity(np.arange(a, b), ids=pa.array([f"d{n}" for n in range(a, b)])) for a, b in ((6, 12), (0, 6))]
    whole = make_trail()
    trail = Trail(identities=parts)
    trail.merge(Trail(whole.counts, whole.decisions, output_rows=7, quarantine=whole.quarantine))
    commit(RunFolder(tmp_path), make_partition(), trail)
    assert Ledger(tmp_path).frame()["id"].to_list() == ["d0", "d1", "d2", "d3", "d4"]
    assert list(Manifest(str(tmp_path)).load()["part-0"].stages) == list(STAGES)


# --- ids of every kind, from files ---

IDS: list[Any] = [
    "twice", "twice", "ü𝄞é\u0301", " spaced ", "a#3", "x" * 100_000, "", 10**22, 7, 7.5, True, {"a": 1}, "new\nline",
    "null", "https://example.org/a?b=c#d", "../../etc/passwd#1", None,
]  # fmt: skip


def test_documents_are_found_by_ids_of_every_kind(tmp_path: Path) -> None:
    rows = [{"id": name, "url": f"u#{n}", "text": "word " * (n % 2 + 1)} for n, name in enumerate(IDS)]
    run_lines(tmp_path, rows, [ScoreFilter(WordCountFilter(min_words=2))])
    ledger = Ledger(tmp_path / "out")
    for number, name in enumerate(IDS):
        asked = [f"u#{number}", f"a#{number}"] + ([] if name is None else [_query(name)])
        for query in asked:
            answer = ledger.why(query)
            if query == "a#3" and number == 3:
                continue  # here an id comes before a place
            expected = [0, 1] if query == "twice" else [number]
            assert [document.row for document in answer.documents] == expected, query
            statuses = [document.status for document in answer.documents]
            assert statuses == [["dropped", "kept"][row % 2] for row in expected], query
            assert len(str(answer)) < 1000
            assert str(answer).strip()
    assert "2 documents" in str(ledger.why("twice"))
    assert "(100000 characters): kept" in str(ledger.why("x" * 100_000))


def _query(name: Any) -> str | int:
    return name if isinstance(name, str | int) and not isinstance(name, bool) else json.dumps(name)


@pytest.mark.parametrize(
    "query", ["a#99", "a#-1", "a#²", "a#" + "9" * 5000, "#", "#1", "a#", "../a#1", "b#0", "\ud800"]
)
def test_what_is_no_document_was_never_seen(tmp_path: Path, query: str) -> None:
    run_lines(tmp_path, [{"id": "1", "text": "word"}])
    answer = Ledger(tmp_path / "out").why(query)
    assert (answer.status, answer.documents) == ("never seen", [])
    assert "Not found" in str(answer)
