"""Quarantine and replay: what is kept of a record that fails, and that a replay makes good what a failure did."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from gristmill.cli.main import cli
from gristmill.errors import ErrorBudgetExceededError, ResumeError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.manifest import Manifest
from gristmill.ledger.record.quarantine import list_quarantine, read_quarantine
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.filters import ColumnFilter, ScoreFilter, WordCountFilter
from gristmill.stages.text.filters.statistics import TextStatistics
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter
from gristmill.stages.text.modifiers import Modify
from gristmill.tasks import DocumentBatch
from tests.outputs import contents_of, copy_output
from tests.unit.pipeline.jobs import here, read_rows, run_json, write_lines


class Picky(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Raises on some documents while a file lies there; its code and parameters never change."""

    name = "picky"

    def __init__(self, trouble: Path) -> None:
        self._trouble = trouble

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if self._trouble.exists():
            bad = json.loads(self._trouble.read_text())
            for text in task.column("text").to_pylist():
                for word, kind in bad.items():
                    if word in text:
                        raise {"key": KeyError, "value": ValueError}[kind](f"cannot digest {word}")
        return task


def trimmed(text: str) -> str:
    return text.rstrip("!")


ROWS = [
    {"id": f"d{n}", "url": f"https://example.org/{n}", "n": n, "text": " ".join(["wörd"] * (n % 5 + 1)) + f" n{n}e!"}
    for n in range(40)
]


def _input(folder: Path, kind: str) -> None:
    for number in range(2):
        rows = ROWS[number * 20 : number * 20 + 20]
        if kind == "jsonl":
            write_lines(folder / "in" / f"{number}.jsonl", rows)
        else:
            (folder / "in").mkdir(parents=True, exist_ok=True)
            table = pa.Table.from_pylist(rows)
            table = table.set_column(2, "n", table.column("n").cast(pa.int32()))
            pq.write_table(table, folder / "in" / f"{number}.parquet")


def _job(folder: Path, kind: str, *, out: str = "out", small: bool = False) -> Pipeline:
    """With `small` batches there are several to a partition, each compressed by itself."""
    reader: Any = JsonlReader if kind == "jsonl" else ParquetReader
    writer: Any = JsonlWriter if kind == "jsonl" else ParquetWriter
    cut = {"read_kwargs": {"batch_bytes": 200}} if small else {}
    packed = {"compression": "zstd"} if small else {}
    return Pipeline(
        "job",
        stages=[
            reader(str(folder / "in"), files_per_partition=1, **cut),
            ScoreFilter(WordCountFilter(min_words=3)),
            Picky(folder / "trouble"),
            Modify(trimmed, input_fields="text"),
            ScoreFilter(_short()),
            writer(str(folder / out), **packed),
        ],
    )


def _short() -> WordCountFilter:
    made = WordCountFilter(min_words=0, max_words=5)
    made._name = "short"
    return made


def _trouble(folder: Path, **words: str) -> None:
    (folder / "trouble").write_text(json.dumps(words))


def _blocks(output: Path, kind: str) -> int:
    """How many blocks the files consist of, one for each batch that was written."""
    if kind == "parquet":
        return sum(pq.read_metadata(path).num_row_groups for path in output.glob("*.parquet"))
    return sum(path.read_bytes().count(b"\x28\xb5\x2f\xfd") for path in output.glob("*.jsonl*"))


def _fail_then_replay(folder: Path, kind: str, **options: Any) -> Any:
    _input(folder, kind)
    # d24 is dropped later on; d8, d12 and d33 are kept.
    _trouble(folder, n8e="key", n12e="value", n33e="key", n24e="value")
    result = _job(folder, kind).run(executor=here(), ignore_failures=True)
    assert result.report.quarantined == 4
    return result


# --- quarantine ---


def test_a_failed_document_is_kept_whole_with_origin_and_traceback(tmp_path: Path) -> None:
    long = "wörd " * 40_000 + "n9e"
    write_lines(tmp_path / "in" / "a.jsonl", [*ROWS[:3], {"id": "long", "text": long}])
    _trouble(tmp_path, n9e="key")
    _job(tmp_path, "jsonl").run(executor=here(), ignore_failures=True)
    [entry] = read_quarantine(tmp_path / "out")
    record = entry.record
    assert json.loads(record.raw) == {"id": "long", "text": long}
    assert len(record.raw) == record.size > 200_000
    assert (entry.id, entry.partition, record.row) == ("long", "a", 3)
    assert (record.stage, record.cause) == ("picky", "KeyError")
    assert record.file == str(tmp_path / "in" / "a.jsonl")
    assert "cannot digest n9e" in record.detail
    assert "Traceback" in record.detail
    assert "in process" in record.detail
    assert str(Path(__file__).name) in record.detail
    assert "gristmill/backends" not in record.detail, "the traceback is the user's"


def test_a_record_that_cannot_be_read_has_its_place_in_the_file(tmp_path: Path) -> None:
    lines = [json.dumps(ROWS[0]), '{"id": "x", "text": ', json.dumps(ROWS[2])]
    write_lines(tmp_path / "in" / "a.jsonl", lines)
    _job(tmp_path, "jsonl").run(executor=here())
    [entry] = read_quarantine(tmp_path / "out")
    assert entry.record.raw == lines[1].strip().encode()
    data = (tmp_path / "in" / "a.jsonl").read_bytes()
    assert data[entry.record.offset :].startswith(entry.record.raw)
    groups = list_quarantine(tmp_path / "out")
    assert groups["stage"].to_list() == ["jsonl_reader"]
    shown = CliRunner().invoke(cli, ["quarantine", str(tmp_path / "out"), "--stage", "jsonl_reader"])
    assert f"at byte {entry.record.offset}" in shown.output


# --- replay ---


@pytest.mark.parametrize("scores", ["decisive", "all"])
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_replay_gives_what_a_run_without_failure_gives(tmp_path: Path, kind: str, small: bool, scores: str) -> None:
    _input(tmp_path, kind)
    # n9e and n24e are dropped later on, the others are kept.
    _trouble(tmp_path, n8e="key", n9e="key", n12e="value", n33e="key", n24e="value")
    options: Any = {"executor": here(), "ignore_failures": True, "scores": scores}
    assert _job(tmp_path, kind, small=small).run(**options).report.quarantined == 5
    assert (_blocks(tmp_path / "out", kind) > 5) == small
    (tmp_path / "trouble").unlink()
    report = _job(tmp_path, kind, small=small).replay(here())
    assert (report.records, report.still_quarantined, report.unreadable, report.partitions) == (5, 0, 0, 2)
    assert report.written + report.dropped == 5
    assert report.dropped == 2
    assert report.plan_changes == []
    _job(tmp_path, kind, out="whole", small=small).run(**options)
    found, expected = contents_of(tmp_path / "out"), contents_of(tmp_path / "whole")
    assert sorted(found) == sorted(expected)
    for name, data in expected.items():
        assert found[name] == data, name
    report = verify(str(tmp_path / "out"))
    assert report.ok, report
    again = _job(tmp_path, kind, small=small).run(**options)
    assert again.report.partitions_done_before == 2


def test_records_that_were_too_long_come_to_their_places_between_batches(tmp_path: Path) -> None:
    lines = [{"id": f"d{n}", "text": "word " * (60 if n in (0, 5, 6, 13, 19) else 12)} for n in range(20)]
    write_lines(tmp_path / "in" / "a.jsonl", lines)

    def job(limit: int) -> Pipeline:
        reader = JsonlReader(str(tmp_path / "in"), read_kwargs={"batch_bytes": 300, "max_record_bytes": limit})
        return Pipeline("job", stages=[reader, JsonlWriter(str(tmp_path / "out"))])

    job(200).run(executor=here())
    assert [row["id"] for row in read_rows(tmp_path / "out")] != [row["id"] for row in lines]
    assert job(10_000).replay(here()).written == 5
    assert (tmp_path / "out" / "a.jsonl").read_bytes() == (tmp_path / "in" / "a.jsonl").read_bytes()
    assert verify(str(tmp_path / "out")).ok


class Parts(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Several batches of one, or with `times` several documents of one."""

    name = "parts"

    def __init__(self, times: int) -> None:
        self._times = times

    def process(self, task: DocumentBatch) -> list[DocumentBatch]:
        if self._times > 1:
            return [task.take(np.repeat(np.arange(task.num_items), self._times))]
        half = task.num_items // 2
        return [task.slice(0, half), task.slice(half, task.num_items - half)]


@pytest.mark.parametrize(("kind", "times"), [("jsonl", 1), ("parquet", 1), ("jsonl", 2)])
def test_a_replay_behind_a_stage_that_makes_several(tmp_path: Path, kind: str, times: int) -> None:
    def job(out: str) -> Pipeline:
        made = _job(tmp_path, kind, out=out)
        made.stages.insert(3, Parts(times))
        return made

    _input(tmp_path, kind)
    _trouble(tmp_path, n8e="key", n12e="value")
    job("out").run(executor=here(), ignore_failures=True)
    (tmp_path / "trouble").unlink()
    assert job("out").replay(here()).written == 2
    job("whole").run(executor=here(), ignore_failures=True)
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "whole")
    verify(str(tmp_path / "out")).raise_for_problems()


class Death(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("fixed", [False, True])
def test_a_replay_that_dies_anywhere_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    def job(out: str) -> Pipeline:
        made = _job(tmp_path, "jsonl", out=out)
        if fixed:
            made.stages[2] = Fixed(tmp_path / "trouble")
        return made

    def replay(out: str, last: int | None = None) -> int:
        done = 0

        def moved(source: Any, target: Any) -> None:
            nonlocal done
            if done == last:
                raise Death
            done += 1
            rename(source, target)

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", moved)
            job(out).replay(here())
        return done

    rename = os.replace
    _fail_then_replay(tmp_path, "jsonl")
    if not fixed:
        (tmp_path / "trouble").unlink()
    copy_output(tmp_path / "out", tmp_path / "whole")
    steps = replay("whole")
    assert steps > 8
    expected = contents_of(tmp_path / "whole")
    for last in range(steps):
        out = f"out-{last}"
        copy_output(tmp_path / "out", tmp_path / out)
        with pytest.raises(Death):
            replay(out, last)
        replay(out)
        assert contents_of(tmp_path / out) == expected, last
        verify(str(tmp_path / out)).raise_for_problems()
        assert job(out).run(executor=here(), ignore_failures=True).report.partitions_done_before == 2


def test_a_replay_does_not_make_an_unfinished_run_look_finished(tmp_path: Path) -> None:
    _input(tmp_path, "jsonl")
    broken = tmp_path / "in" / "1.jsonl"
    whole = broken.read_bytes()
    broken.write_bytes(whole.replace(b'{"id"', b'{"id', 11))
    _trouble(tmp_path, n8e="key")
    with pytest.raises(ErrorBudgetExceededError):
        _job(tmp_path, "jsonl").run(executor=here(), ignore_failures=True, error_budget=3)
    done = len(Manifest(str(tmp_path / "out")).load())
    (tmp_path / "trouble").unlink()
    report = _job(tmp_path, "jsonl").replay(here())
    assert report.missing == 2 - done
    assert run_json(tmp_path / "out")["status"] == "failed"
    assert not verify(str(tmp_path / "out")).ok
    broken.write_bytes(whole)
    _job(tmp_path, "jsonl").run(executor=here(), ignore_failures=True)
    verify(str(tmp_path / "out")).raise_for_problems()


class Fragile(ColumnFilter):
    """A filter that shares the pass of its neighbours and fails on some texts while a file lies there."""

    def __init__(self, trouble: Path) -> None:
        super().__init__("fragile", lower=0)
        self._trouble = trouble

    def score_column(self, statistics: TextStatistics) -> Any:
        texts = [statistics.column.text(row) for row in range(len(statistics.column))]
        if self._trouble.exists() and any("n5e" in text or "n8e" in text for text in texts):
            raise ValueError("cannot digest it")
        return np.ones(len(texts))


def test_a_document_that_fails_in_a_shared_pass_goes_through_all_of_it(tmp_path: Path) -> None:
    def job(out: str) -> Pipeline:
        filters = [WordCountFilter(min_words=3), Fragile(tmp_path / "trouble"), _short()]
        stages = [ScoreFilter(one) for one in filters]
        return Pipeline("job", stages=[JsonlReader(str(tmp_path / "in")), *stages, JsonlWriter(str(tmp_path / out))])

    _input(tmp_path, "jsonl")
    (tmp_path / "trouble").touch()
    # d5 is too short for the filter before the one that fails, which sees it because all scores are wanted; d8 is kept.
    assert job("out").run(executor=here(), ignore_failures=True, scores="all").report.quarantined == 2
    (tmp_path / "trouble").unlink()
    report = job("out").replay(here())
    assert (report.written, report.dropped) == (1, 1)
    job("whole").run(executor=here(), ignore_failures=True, scores="all")
    found, expected = contents_of(tmp_path / "out"), contents_of(tmp_path / "whole")
    assert [name for name in expected if found.get(name) != expected[name]] == []
    assert sorted(found) == sorted(expected)
    verify(str(tmp_path / "out")).raise_for_problems()


def test_what_still_fails_stays_in_quarantine(tmp_path: Path) -> None:
    _fail_then_replay(tmp_path, "jsonl")
    _trouble(tmp_path, n12e="value")
    report = _job(tmp_path, "jsonl").replay(here())
    assert (report.records, report.still_quarantined) == (4, 1)
    [entry] = read_quarantine(tmp_path / "out")
    assert (entry.id, entry.record.stage, entry.record.cause) == ("d12", "picky", "ValueError")
    assert json.loads(entry.record.raw)["text"] == ROWS[12]["text"]
    verify(str(tmp_path / "out")).raise_for_problems()
    (tmp_path / "trouble").unlink()
    assert _job(tmp_path, "jsonl").replay(here()).still_quarantined == 0
    _job(tmp_path, "jsonl", out="whole").run(executor=here(), ignore_failures=True)
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "whole")


def test_only_partitions_with_one_cause(tmp_path: Path) -> None:
    _input(tmp_path, "jsonl")
    _trouble(tmp_path, n8e="key", n12e="value", n33e="value")
    _job(tmp_path, "jsonl").run(executor=here(), ignore_failures=True)
    (tmp_path / "trouble").unlink()
    untouched = Manifest(str(tmp_path / "out")).get("1")
    report = _job(tmp_path, "jsonl").replay(here(), cause="KeyError")
    assert (report.records, report.partitions, report.still_quarantined) == (2, 1, 1)
    assert [entry.id for entry in read_quarantine(tmp_path / "out", cause="ValueError")] == ["d33"]
    assert Manifest(str(tmp_path / "out")).get("1") == untouched
    verify(str(tmp_path / "out")).raise_for_problems()
    assert [Ledger(tmp_path / "out").why(name).status for name in ("d8", "d12", "d33")] == [
        "kept",
        "kept",
        "quarantined",
    ]


@pytest.mark.parametrize("change", ["longer", "gone"])
def test_a_replay_needs_the_input_as_it_was(tmp_path: Path, change: str) -> None:
    _fail_then_replay(tmp_path, "jsonl")
    (tmp_path / "trouble").unlink()
    before = contents_of(tmp_path / "out")
    source = tmp_path / "in" / "1.jsonl"
    whole = source.read_bytes()
    if change == "longer":
        source.write_bytes(whole + whole)
        words = r"1: 1\.jsonl had \d+ bytes and now has \d+.*Run the pipeline again"
    else:
        source.unlink()
        words = r"input files no longer exist \(.*1\.jsonl\)"
    with pytest.raises(ResumeError, match=words):
        _job(tmp_path, "jsonl").replay(here())
    assert contents_of(tmp_path / "out") == before
    if change == "longer":  # the advice in the message works
        _job(tmp_path, "jsonl").run(executor=here(), ignore_failures=True)
        assert _job(tmp_path, "jsonl").replay(here()).still_quarantined == 0
        verify(str(tmp_path / "out")).raise_for_problems()


def test_an_added_file_is_left_to_the_run(tmp_path: Path) -> None:
    """It comes first in the input, so that the others have other places there than in the output."""
    _fail_then_replay(tmp_path, "jsonl")
    (tmp_path / "trouble").unlink()
    write_lines(tmp_path / "in" / "00.jsonl", ROWS[:5])
    assert _job(tmp_path, "jsonl").replay(here()).still_quarantined == 0
    verify(str(tmp_path / "out")).raise_for_problems()
    assert _job(tmp_path, "jsonl").run(executor=here(), ignore_failures=True).report.partitions_done_before == 2
    verify(str(tmp_path / "out")).raise_for_problems()


def test_nothing_to_replay(tmp_path: Path) -> None:
    _input(tmp_path, "jsonl")
    _job(tmp_path, "jsonl").run(executor=here())
    before = contents_of(tmp_path / "out")
    report = _job(tmp_path, "jsonl").replay(here())
    assert (report.records, report.partitions) == (0, 0)
    assert contents_of(tmp_path / "out") == before
    verify(str(tmp_path / "out")).raise_for_problems()


class Fixed(Picky):
    """The stage after the fix: other code under the same name."""

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


def test_a_fixed_stage_is_taken_and_named(tmp_path: Path) -> None:
    _fail_then_replay(tmp_path, "jsonl")
    fixed = _job(tmp_path, "jsonl")
    fixed.stages[2] = Fixed(tmp_path / "trouble")
    report = fixed.replay(here())
    assert report.still_quarantined == 0
    assert any("picky" in change for change in report.plan_changes)
    verify(str(tmp_path / "out")).raise_for_problems()
    assert fixed.run(executor=here(), ignore_failures=True).report.partitions_done_before == 2


def test_records_of_the_reader_are_read_again(tmp_path: Path) -> None:
    """A line that is not a record cannot become one, and the message says so; the others are unchanged."""
    write_lines(tmp_path / "in" / "a.jsonl", [json.dumps(ROWS[3]), "{broken", json.dumps(ROWS[4])])
    _job(tmp_path, "jsonl").run(executor=here())
    report = _job(tmp_path, "jsonl").replay(here())
    assert (report.records, report.still_quarantined, report.unreadable) == (1, 1, 1)
    assert "correct them in their input file" in str(report)
    verify(str(tmp_path / "out")).raise_for_problems()


def test_a_record_that_is_not_kept_whole_is_read_again(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [json.dumps(ROWS[3]), '{"text": "' + "x" * 100_000])
    _job(tmp_path, "jsonl").run(executor=here())
    [entry] = read_quarantine(tmp_path / "out")
    assert len(entry.record.raw) == 65_536 < entry.record.size
    report = _job(tmp_path, "jsonl").replay(here())
    assert (report.records, report.still_quarantined, report.unreadable) == (1, 1, 1)
    # The advice in the message works.
    write_lines(tmp_path / "in" / "a.jsonl", [ROWS[3], {"text": "x " * 5, "id": "long"}])
    _job(tmp_path, "jsonl").run(executor=here())
    assert not list(read_quarantine(tmp_path / "out"))


def test_order_within_a_partition(tmp_path: Path) -> None:
    _fail_then_replay(tmp_path, "jsonl")
    (tmp_path / "trouble").unlink()
    _job(tmp_path, "jsonl").replay(here())
    numbers = [row["n"] for row in read_rows(tmp_path / "out")]
    assert numbers == sorted(numbers)
    assert {8, 12, 33} <= set(numbers)


def test_counts_after_a_replay(tmp_path: Path) -> None:
    _fail_then_replay(tmp_path, "jsonl")
    before = sum(entry.rows_written for entry in Manifest(str(tmp_path / "out")).load().values())
    (tmp_path / "trouble").unlink()
    report = _job(tmp_path, "jsonl").replay(here())
    entries = Manifest(str(tmp_path / "out")).load().values()
    assert sum(entry.rows_written for entry in entries) == before + report.written
    assert sum(entry.quarantined for entry in entries) == 0


# --- from the command line ---


def test_replay_of_a_recipe(tmp_path: Path) -> None:
    """A record that was too long for the reader fits after the recipe was corrected."""
    rows = [*ROWS[:4], {"id": "long", "text": "wörd " * 300}]
    write_lines(tmp_path / "in" / "a.jsonl", rows)
    recipe = tmp_path / "recipe.yaml"

    def text(limit: int) -> str:
        stages = [
            {"JsonlReader": {"file_paths": str(tmp_path / "in"), "read_kwargs": {"max_record_bytes": limit}}},
            {"WordCountFilter": {"min_words": 3}},
            {"JsonlWriter": {"path": str(tmp_path / "out")}},
        ]
        return json.dumps({"name": "job", "stages": stages})

    recipe.write_text(text(1000))
    done = CliRunner().invoke(cli, ["run", str(recipe), "--workers", "0", "--quiet"])
    assert done.exit_code == 3, done.output
    shown = CliRunner().invoke(cli, ["quarantine", str(tmp_path / "out")])
    assert "record_too_large" in shown.output
    none = CliRunner().invoke(cli, ["replay", str(tmp_path / "out"), "--cause", "another"])
    assert none.exit_code == 3, none.output
    assert "0 records replayed" in none.output
    recipe.write_text(text(10_000))
    replayed = CliRunner().invoke(cli, ["replay", str(tmp_path / "out"), "--recipe", str(recipe)])
    assert replayed.exit_code == 0, replayed.output
    assert "1 record replayed" in replayed.output
    assert "Changed since the run" in replayed.output
    assert [row["id"] for row in read_rows(tmp_path / "out")] == ["d1", "d2", "d3", "long"]
    checked = CliRunner().invoke(cli, ["verify", str(tmp_path / "out")])
    assert checked.exit_code == 0, checked.output
