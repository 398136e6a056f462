"""One document: its why, its texts, its difference, and its label."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from gristmill.backends.local import LocalExecutor
from gristmill.cli.main import cli
from gristmill.errors import InputNotFoundError, OutputError, UsageError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.record.layout import RunFolder
from gristmill.pipeline import Pipeline
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.training.labelled_data import read_labelled
from gristmill.viewer.app import NotFoundError, View
from tests.outputs import copy_output, record_of
from tests.unit.viewer.runs import HOSTILE, LONG


@pytest.mark.parametrize("ref", ["a#1", "a#7", "a#8", "b#4", "b#5", "b#6"])
def test_the_answer_of_why(view: View, ref: str) -> None:
    history = Ledger(view.folder).why(ref).documents[0]
    answer = view.document(ref)
    assert answer["lines"] == history.lines()
    assert answer["status"] == history.status
    assert answer["has_diff"] == (ref in ("a#8", "b#4"))


def test_texts_as_read_and_as_written(view: View) -> None:
    answer = view.document("a#8")
    assert "https://spam.example/x" in answer["text"]
    assert answer["chars"] == len(answer["text"])
    assert [(one["name"], one["value"]) for one in answer["fields"]] == [
        ("id", "linked"),
        ("url", "https://example.org/linked"),
    ]
    written = view.text("a#8", "output", 0)
    assert written["text"] == answer["text"].replace("https://spam.example/x", "")
    diff = view.diff("a#8")
    assert any(line.startswith("-") and "spam" in line for line in diff["lines"])
    assert view.diff("b#4")["equal"]
    assert view.diff("a#0")["notes"] == ["There is nothing to compare with."]


def test_hostile_texts_come_as_they_are(view: View) -> None:
    for row, (name, text) in enumerate(HOSTILE.items()):
        answer = view.document(f"b#{row}")
        assert (answer["id"], answer["text"]) == (name, text)
        json.dumps(answer, allow_nan=False).encode("ascii")
    torn = view.document("b#6")
    assert torn["quarantine"][0]["raw"].startswith('{"id": "torn", "text": "<i>cut')


def test_long_texts_come_in_pieces(view: View) -> None:
    answer = view.document("b#5")
    assert answer["chars"] == len(LONG)
    assert len(json.dumps(answer)) < 100_000
    text = answer["text"]
    while len(text) < 1_000_000:
        text += view.text("b#5", "input", len(text))["text"]
    assert LONG.startswith(text)
    assert len(view.snippets(["b#5"])["snippets"]["b#5"]["text"]) < 300


@pytest.mark.parametrize("ref", ["", "a", "a#", "a#9", "a#-1", "a#1_0", "../a#1", "c#1", "a#1\0", "a#٣"])
def test_places_that_are_none(view: View, ref: str) -> None:
    for ask in (view.document, view.diff, lambda one: view.text(one, "input", 0), lambda one: view.label(one, "right")):
        with pytest.raises(NotFoundError):
            ask(ref)


# --- labels ---


def test_labels_are_kept_and_the_last_one_counts(view: View, output: Path) -> None:
    assert view.label("a#7", "right")["labels"]["keep"] == 1
    view.label("a#1", "right")
    view.label("b#4", "wrong")
    view.label("a#8", "wrong")
    view.label("a#8", None)
    again = View(RunFolder(output))
    assert again.labels.counts() == {"keep": 2, "drop": 1}
    assert again.document("a#1")["label"] == "right"
    assert again.document("b#4")["label"] == "wrong"
    assert again.document("a#8")["label"] is None
    found = {name: [hit["ref"] for hit in again.search({"label": name})["hits"]] for name in ("any", "right", "wrong")}
    assert found == {"any": ["a#1", "a#7", "b#4"], "right": ["a#1", "a#7"], "wrong": ["b#4"]}
    assert len(again.search({"label": "none"})["hits"]) == 13
    with pytest.raises(UsageError, match="A label is"):
        view.label("a#1", "maybe")


def test_labels_belong_to_the_record(view: View, output: Path) -> None:
    view.label("a#7", "right")
    verified = CliRunner().invoke(cli, ["verify", str(output)])
    assert verified.exit_code == 0, verified.output


def test_a_line_that_was_cut_off_loses_no_other(view: View, output: Path) -> None:
    view.label("a#7", "right")
    path = record_of(output) / "labels.jsonl"
    with path.open("ab") as file:
        file.write(b'{"partition": "a", "ro')
    again = View(RunFolder(output))
    again.label("a#1", "right")
    last = View(RunFolder(output))
    assert last.labels.counts() == {"keep": 1, "drop": 1}
    assert any("1 lines of" in note for note in last.run()["notes"])


def test_labels_of_another_input_are_not_used(view: View, output: Path) -> None:
    view.label("a#7", "right")
    path = record_of(output) / "labels.jsonl"
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "fingerprint": "other"}) + "\n")
    again = View(RunFolder(output))
    assert again.document("a#7")["label"] is None
    assert list(again.export()) == [None]


def test_a_label_says_what_should_become_of_the_document(view: View) -> None:
    """When a later run decides otherwise, the label still holds: what was wrong is right then."""
    view.label("a#1", "wrong")
    entry = view.ledger.entry("a")
    assert entry is not None
    known = view.labels.get("a", 1, entry.fingerprint)
    assert known is not None
    assert (known["verdict"], known["status"], known["reason"]) == ("keep", "dropped", "too_few_words")


def test_the_export_is_labelled_data(view: View, output: Path, tmp_path: Path) -> None:
    for row in range(9):
        view.label(f"a#{row}", "right")
    view.label("b#1", "wrong")
    labels = tmp_path / "labels.jsonl"
    done = CliRunner().invoke(cli, ["view", str(output), "--export", str(labels)])
    assert done.exit_code == 0, done.output
    assert "10 labelled documents written to" in done.output
    records = [json.loads(line) for line in labels.read_text().splitlines()]
    assert [(one["id"], one["label"], one["decision"]) for one in records[-2:]] == [
        (None, "keep", "right"),
        (None, "drop", "wrong"),
    ]
    assert records[1]["text"] == "the quick number2"
    texts = read_labelled(labels, text_field="text", label_field="label")
    assert (len(texts), texts.labels) == (10, ["drop", "keep"])


# --- what may be missing ---


def test_an_input_that_is_gone(tmp_path: Path) -> None:
    from tests.unit.viewer.runs import make_run

    output = make_run(tmp_path)
    View(RunFolder(output)).label("a#1", "right")
    shutil.rmtree(tmp_path / "in")
    view = View(RunFolder(output))
    dropped = view.document("a#1")
    assert dropped["text"] == ""
    assert dropped["note"] == f"No text: the input file {tmp_path}/in/a.jsonl no longer exists."
    assert dropped["lines"][0].startswith("dropped by stage 'WordCountFilter': too_few_words (score 3")
    kept = view.document("a#7")
    assert kept["side"] == "output"
    assert kept["text"].endswith("number14")
    assert kept["note"].endswith("Showing the output.")
    answer = view.search({"text": "fox"})
    assert answer["hits"] == []
    assert all("was searched only in part" in problem for problem in answer["problems"])
    assert len(view.search({"status": "dropped"})["hits"]) == 6
    assert list(view.export()) == [None]


def test_an_input_that_has_changed(whole_output: Path, tmp_path: Path) -> None:
    from tests.unit.viewer.runs import make_run

    output = make_run(tmp_path)
    source = tmp_path / "in" / "a.jsonl"
    lines = source.read_text().splitlines(keepends=True)
    source.write_text("".join([lines[1], lines[0], *lines[2:]]))
    view = View(RunFolder(output))
    assert view.document("a#0")["note"] == (
        "a.jsonl has changed since the run: this is not the document that was read."
    )
    assert view.document("a#2")["note"] == ""
    source.write_text("".join(lines[:2]))
    assert "has changed size" in View(RunFolder(output)).document("a#0")["note"]


def test_a_text_in_another_field(output: Path) -> None:
    view = View(RunFolder(output), text_field="body")
    assert "No text in the field 'body'; there is id, url, text." in view.document("a#1")["note"]


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (
            {"status": "running"},
            "The run is still running or was killed: showing what is committed, 2 of 4 partitions.",
        ),
        ({"status": "failed", "error": "Disk full.\nmore"}, "The run failed: Disk full. Showing what is committed"),
    ],
)
def test_a_run_that_did_not_finish(output: Path, run: dict[str, str], told: str) -> None:
    path = record_of(output) / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "partitions": 4, **run}))
    answer = View(RunFolder(output)).run()
    assert told in answer["notes"][0]
    assert answer["documents"] == 16


def test_partitions_that_are_committed_meanwhile(whole_output: Path, tmp_path: Path) -> None:
    output = copy_output(whole_output, tmp_path / "out")
    entry = record_of(output) / "manifest" / "b.json"
    aside = entry.rename(tmp_path / "b.json")
    view = View(RunFolder(output))
    assert view.run()["documents"] == 9
    shutil.copy(aside, entry)
    assert view.run()["documents"] == 16


def test_no_run_no_ledger(output: Path, tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError, match="There is no"):
        View(RunFolder(tmp_path / "none"))
    shutil.rmtree(record_of(output) / "manifest")
    answer = View(RunFolder(output)).run()
    assert answer["notes"] == ["No document has been committed, so there is nothing to show."]
    (record_of(output) / "plan.json").write_text("{")
    View(RunFolder(output)).run()


def test_a_damaged_manifest_entry_is_named(output: Path) -> None:
    (record_of(output) / "manifest" / "a.json").write_text("{}")
    answer = View(RunFolder(output)).run()
    assert len(answer["notes"]) == 1
    assert "manifest/a.json is not a usable manifest entry" in answer["notes"][0]
    assert answer["documents"] == 7


READ_ONLY = """
import json, os, sys
from gristmill.ledger.record.layout import RunFolder
from gristmill.viewer.app import View
View(RunFolder(sys.argv[1])).search({})  # imports what is needed, which another user may not read
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
for labels in (None, sys.argv[2]):
    view = View(RunFolder(sys.argv[1]), labels=labels)
    try:
        view.label("a#7", "right")
    except Exception as error:
        print(type(error).__name__, error)
    print(json.dumps(view.run()["notes"]), len(view.search({})["hits"]), view.labels.counts())
"""


def test_a_read_only_output(whole_output: Path, tmp_path: Path) -> None:
    """As a user who may not write there, which root always may."""
    place = Path(tempfile.mkdtemp(prefix="gristmill-view-"))
    try:
        output = copy_output(whole_output, place / "out")
        os.chmod(place, 0o755)
        for path in [output, record_of(output), *place.rglob("*")]:
            os.chmod(path, 0o555 if path.is_dir() else 0o444)
        writable = Path(tempfile.mkdtemp(dir=place))
        os.chmod(writable, 0o777)
        command = [sys.executable, "-c", READ_ONLY, str(output), str(writable / "labels.jsonl")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        path = record_of(output) / "labels.jsonl"
        note = (
            f"{path} cannot be written, so labels cannot be saved. To label documents, pass a file with --labels FILE."
        )
        assert done.stdout.splitlines() == [
            f"OutputError {note}",
            f"{json.dumps([note])} 16 {{'keep': 0, 'drop': 0}}",
            "[] 16 {'keep': 1, 'drop': 0}",
        ]
    finally:
        shutil.rmtree(place)


def test_labels_in_a_place_that_is_none(output: Path, tmp_path: Path) -> None:
    view = View(RunFolder(output), labels=str(tmp_path / "none" / "labels.jsonl"))
    with pytest.raises(OutputError, match="There is no folder"):
        view.label("a#7", "right")
    with pytest.raises(OutputError, match="cannot be read"):
        View(RunFolder(output), labels=str(tmp_path))


def test_a_damaged_file_and_a_step_of_a_deduplication(tmp_path: Path, sample_path: Path) -> None:
    from gristmill.stages.deduplication import FuzzyDeduplication
    from gristmill.stages.text.io import JsonlReader, JsonlWriter

    (tmp_path / "in").mkdir()
    whole = sample_path.read_bytes()
    (tmp_path / "in" / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 4])
    (tmp_path / "in" / "some.jsonl").write_text(
        "".join(f'{{"id": "{n}", "text": "one {n % 3} two"}}\n' for n in range(9))
    )
    stages = [JsonlReader(str(tmp_path / "in")), FuzzyDeduplication(), JsonlWriter(str(tmp_path / "out"))]
    run = Pipeline("damaged", stages=stages)
    run.run(LocalExecutor({"num_cpus": 0}), progress=False, error_budget=None, keep_steps=True)
    view = View(RunFolder(tmp_path / "out"))
    hits = view.search({"status": "quarantined"})["hits"]
    assert [hit["reason"] for hit in hits] == ["truncated_file"]
    document = view.document(hits[0]["ref"])
    assert document["note"] == "No text: the quarantined part of the record is shown above."
    assert document["quarantine"][0]["cause"] == "truncated_file"
    assert len(view.search({"status": "dropped"})["hits"]) == view.count({"status": "duplicate"})["count"] > 0
    steps = [
        path for path in sorted((tmp_path / "out.gristmill" / "steps").iterdir()) if (path / "_gristmill").exists()
    ]
    assert steps
    assert View(RunFolder(steps[0])).run()["notes"][0].startswith("This is one step of a multi-step run")


def test_a_document_that_became_several(tmp_path: Path) -> None:
    from gristmill.stages.text.io import JsonlReader, JsonlWriter
    from gristmill.stages.text.modules import DocumentSplitter

    (tmp_path / "in.jsonl").write_text('{"id": "a", "text": "one|two|three"}\n{"id": "b", "text": "four"}\n')
    stages = [
        JsonlReader(str(tmp_path / "in.jsonl")),
        DocumentSplitter(separator="|"),
        ScoreFilter(WordCountFilter(min_words=1)),
        JsonlWriter(str(tmp_path / "out")),
    ]
    Pipeline("split", stages=stages).run(LocalExecutor({"num_cpus": 0}), progress=False)
    view = View(RunFolder(tmp_path / "out"))
    assert any("splits documents into several rows" in note for note in view.run()["notes"])
    answer = view.search({})
    assert (len(answer["hits"]), answer["matching"]) == (2, None)
    assert view.document(answer["hits"][0]["ref"])["text"] == "one|two|three"


def test_an_output_on_another_machine_needs_a_file_for_labels(whole_output: Path, tmp_path: Path) -> None:
    import fsspec

    store = fsspec.filesystem("memory")
    for place in (whole_output, record_of(whole_output)):
        store.put(f"{place}/", f"/viewed/{place.name}/", recursive=True)
    try:
        view = View(RunFolder("memory://viewed/out"))
        assert len(view.search({})["hits"]) == 16
        assert view.document("a#8")["text"]
        assert view.text("a#8", "output", 0)["text"]
        with pytest.raises(
            OutputError, match=r"is not on this machine\. To label documents, name a file with --labels"
        ):
            view.label("a#7", "right")
        elsewhere = View(RunFolder("memory://viewed/out"), labels=str(tmp_path / "labels.jsonl"))
        assert elsewhere.label("a#7", "right")["labels"]["keep"] == 1
    finally:
        store.rm("/viewed", recursive=True)
