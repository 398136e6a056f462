"""The data of a report say what the record of the run says; and what cannot be read is said too."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from gristmill.cli.main import cli
from gristmill.errors import GristmillError, InputNotFoundError, OutputError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.record.layout import RunFolder
from gristmill.observe.events import Event, Notice, PartitionCommitted
from gristmill.pipeline import Pipeline
from gristmill.report import write_comparison, write_report
from gristmill.report.contents import AFTER_RUN, WHOLE, ReportContents
from gristmill.report.page import make_page
from gristmill.stages.deduplication import ExactDeduplication
from gristmill.stages.text.filters import ScoreFilter
from gristmill.stages.text.filters.heuristic.repetition import RepeatedLinesFilter
from gristmill.stages.text.filters.heuristic.string import NonAlphaNumericFilter, PunctuationFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter
from gristmill.tasks import DocumentBatch
from tests.outputs import record_of
from tests.unit.pipeline.jobs import here, run_json, run_lines, write_lines


def filters() -> list[Any]:
    return [
        ScoreFilter(NonAlphaNumericFilter()),
        ScoreFilter(RepeatedLinesFilter()),
        ScoreFilter(WordCountFilter(min_words=50, max_words=400)),
        ScoreFilter(PunctuationFilter()),
    ]


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory, sample_path: Path) -> Path:
    """A run over the shipped sample with all scores."""
    output = tmp_path_factory.mktemp("scored") / "out"
    stages = [JsonlReader(str(sample_path)), *filters(), JsonlWriter(str(output))]
    Pipeline("scored", stages=stages).run(executor=here(), scores="all")
    return output


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, sample_path: Path) -> Path:
    """The same run with decisive scores only."""
    output = tmp_path_factory.mktemp("plain") / "out"
    Pipeline("plain", stages=[JsonlReader(str(sample_path)), *filters(), JsonlWriter(str(output))]).run(executor=here())
    return output


def contents(output: Path, extent: Any = WHOLE) -> dict[str, Any]:
    return ReportContents(RunFolder(str(output)), extent).collect()


def data_of(page: Path) -> dict[str, Any]:
    island = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert island is not None
    data: dict[str, Any] = json.loads(island[1])
    return data


def report_of(output: Path) -> Path:
    return record_of(output) / "report.html"


def gristmill(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)))


# --- what it says ---


def test_every_run_leaves_a_report_with_the_numbers_of_its_record(plain: Path) -> None:
    data, run = data_of(report_of(plain)), run_json(plain)
    assert {key: data["run"][key] for key in ("status", "rows_read", "rows_written", "rows_dropped")} == {
        "status": "done", "rows_read": run["rows_read"], "rows_written": run["rows_written"],
        "rows_dropped": run["rows_dropped"],
    }  # fmt: skip
    assert [(one["stage"], one["rows_in"], one["rows_out"], one["dropped"]) for one in data["stages"]] == [
        (one["stage"], one["rows_in"], one["rows_out"], one["dropped"]) for one in run["stages"]
    ]
    assert data["missing"] == []


@pytest.mark.parametrize("name", ["NonAlphaNumericFilter", "WordCountFilter", "PunctuationFilter"])
def test_other_thresholds_keep_what_rethreshold_says(scored: Path, name: str) -> None:
    filters = {one["filter"]: one for one in contents(scored)["scores"]["filters"]}
    one, ledger = filters[name], Ledger(str(scored))
    sides = [side for side in ("lower", "upper") if one[side] is not None]
    for side in sides:
        for at in (0, len(one["grid"]) // 3, len(one["grid"]) // 2, len(one["grid"]) - 1):
            bounds = {key: one["grid"].index(one[key]) if one[key] is not None else None for key in ("lower", "upper")}
            bounds[side] = at
            kept = one["free"] if bounds["upper"] is None else one["upto"][bounds["upper"]]
            kept -= 0 if bounds["lower"] is None else one["below"][bounds["lower"]]
            assert max(kept, 0) == ledger.rethreshold({name: {side: one["grid"][at]}}).kept()[1], (side, at)


def test_without_all_scores_a_filter_has_those_of_the_documents_it_dropped(plain: Path) -> None:
    filters = {(one["stage"], one["filter"]): one for one in contents(plain)["scores"]["filters"]}
    few = filters["WordCountFilter", "too_few_words"]
    frame = Ledger(str(plain)).frame().filter(pl.col("reason") == "too_few_words")
    assert few["documents"] == "dropped"
    assert (few["lower"], few["upper"], few["number"]) == (50.0, None, len(frame))
    at = len(few["grid"]) // 2
    assert few["free"] - few["below"][at] == int((frame["score"] >= few["grid"][at]).sum())
    assert filters["WordCountFilter", "too_many_words"]["upper"] == 400.0


def test_more_scores_than_may_be_read_leave_those_of_dropped_documents(scored: Path) -> None:
    found = contents(scored, AFTER_RUN._replace(score_rows=10))["scores"]
    assert (found["recorded"], found["is_sample"], found["documents"]) == ("all", True, 0)
    assert {one["documents"] for one in found["filters"]} == {"dropped"}


def test_examples_show_the_text_that_was_dropped(plain: Path, sample_path: Path) -> None:
    groups = {one["reason"]: one for one in contents(plain)["dropped"]}
    documents = groups["too_many_symbols"]["documents"]
    assert len(documents) == WHOLE.examples
    texts = {row["id"]: row["text"] for row in pl.read_ndjson(sample_path).iter_rows(named=True)}
    for one in documents:
        assert one["text"] in texts[one["id"]]
        assert one["score"] > one["threshold"] == 0.25
        assert one["marks"]
    assert groups["too_many_symbols"]["number"] == run_json(plain)["stages"][1]["dropped"]["too_many_symbols"]


def test_lengths_are_of_the_input_and_of_the_output(plain: Path) -> None:
    data = contents(plain)
    lengths, sample = data["lengths"], data["text_sample"]
    assert sum(lengths["before"]) == sample["before"]
    assert sum(lengths["after"]) == sample["after"] == run_json(plain)["rows_written"]
    assert all(number == 0 for start, number in zip(lengths["from"], lengths["after"], strict=True) if start < 100)


def test_languages_are_those_of_a_column(tmp_path: Path) -> None:
    lines = [{"id": str(n), "text": "word " * (n + 1), "lang": "de" if n % 3 else "en"} for n in range(12)]
    run_lines(tmp_path, lines, [ScoreFilter(WordCountFilter(min_words=4))])
    assert contents(tmp_path / "out")["languages"] == {
        "names": ["de", "en"], "before": [8, 4], "after": [6, 3], "others": [0, 0],
    }  # fmt: skip


def test_duplicates_by_cluster_size_and_side_by_side(tmp_path: Path) -> None:
    lines = [{"id": f"d{n}", "text": f"text {min(n, 3)} is here"} for n in range(8)] + [
        {"id": "again", "text": "text 0 is here"}
    ]
    run_lines(tmp_path, lines, [ExactDeduplication()])
    found = contents(tmp_path / "out")["duplicates"]
    assert found["stages"] == [{"stage": "ExactDeduplication", "clusters": 2, "removed": 5, "sizes": [(2, 1), (5, 1)]}]
    pairs = {one["id"]: one for one in found["pairs"]}
    assert {one["survivor"] for one in found["pairs"]} <= {"d0", "d3"}
    assert all(one["removed_text"] == one["survivor_text"] != None for one in found["pairs"])  # noqa: E711
    assert {one["size"] for one in pairs.values()} <= {2, 5}


def test_quarantined_records_by_cause_with_their_places(tmp_path: Path) -> None:
    run_lines(tmp_path, ['{"text": "a"}', "no json", '{"text": 1', '{"text": "b"}'], error_budget=None)
    (group,) = contents(tmp_path / "out")["quarantine"]
    assert (group["stage"], group["number"]) == ("jsonl_reader", 2)
    assert [(one["place"], one["offset"], one["raw"]) for one in group["examples"]] == [
        ("a#1", 14, "no json"), ("a#2", 22, '{"text": 1'),
    ]  # fmt: skip


def test_parquet_in_and_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"id": ["a", "b"], "text": ["one", "two " * 60], "language": ["en", "fr"], "vector": [[1.0]] * 2})
    pq.write_table(table, tmp_path / "in" / "x.parquet")
    stages = [ParquetReader(str(tmp_path / "in")), ScoreFilter(WordCountFilter()), ParquetWriter(str(tmp_path / "out"))]
    Pipeline("parquet", stages=stages).run(executor=here())
    data = contents(tmp_path / "out")
    assert data["missing"] == []
    assert [one["documents"][0]["text"] for one in data["dropped"]] == ["one"]
    assert data["languages"]["names"] == ["fr", "en"]


def test_many_partitions_give_a_sample_and_say_so(tmp_path: Path) -> None:
    for number in range(40):
        write_lines(tmp_path / "in" / f"{number:02}.jsonl", [{"id": f"{number}", "text": "few words"}])
    stages = [JsonlReader(str(tmp_path / "in")), ScoreFilter(WordCountFilter()), JsonlWriter(str(tmp_path / "out"))]
    Pipeline("many", stages=stages).run(executor=here())
    after, whole = data_of(report_of(tmp_path / "out")), contents(tmp_path / "out")
    assert after["sample"] == {"is_sample": True, "partitions": 16, "documents": 16}
    assert after["run"]["rows_dropped"] == 40
    assert whole["sample"] == {"is_sample": False, "partitions": 40, "documents": 40}
    assert whole["dropped"][0]["number"] == 40


def test_two_runs_differ_as_diff_says(plain: Path, scored: Path, tmp_path: Path, sample_path: Path) -> None:
    stages = [
        JsonlReader(str(sample_path)),
        ScoreFilter(WordCountFilter(min_words=80)),
        JsonlWriter(str(tmp_path / "b")),
    ]
    Pipeline("other", stages=stages).run(executor=here())
    data = data_of(Path(write_comparison(str(plain), str(tmp_path / "b"), to=tmp_path / "c.html")))
    diff = Ledger(str(plain)).diff(str(tmp_path / "b"))
    assert data["documents"]["same"] == diff.same
    assert dict(data["documents"]["changes"])["kept only in B"] == diff.counts()["entered"]
    assert sum(one["number"] for one in data["documents"]["moves"]) == len(diff.frame)
    bounds = {one["filter"]: one["bounds"] for one in data["thresholds"]}
    assert bounds["too_few_words (WordCountFilter)"] == [[50.0, None], [80.0, None]]
    assert bounds["too_many_symbols (NonAlphaNumericFilter)"][1] is None


# --- when it is written ---


def test_a_run_that_fails_has_a_report_of_what_there_is(tmp_path: Path) -> None:
    lines = [{"id": str(n), "text": "word " * 60} for n in range(4)] + ["broken"] * 4
    with pytest.raises(GristmillError):
        run_lines(tmp_path, lines, [ScoreFilter(WordCountFilter())], error_budget=1)
    data = data_of(report_of(tmp_path / "out"))
    assert data["run"]["status"] == "failed"
    assert "error_budget" in data["run"]["error"] or "--error-budget" in data["run"]["error"]


def test_an_interrupted_run_has_one_too(tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, PartitionCommitted):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_lines(tmp_path, [{"text": "a"}], listeners=[interrupt], progress=False)
    data = data_of(report_of(tmp_path / "out"))
    assert (data["run"]["status"], data["run"]["rows_written"]) == ("interrupted", 1)


def test_no_report_leaves_none_not_even_an_old_one(tmp_path: Path) -> None:
    run_lines(tmp_path, [{"text": "a"}])
    assert report_of(tmp_path / "out").exists()
    run_lines(tmp_path, [{"text": "a"}], report=False)
    assert not report_of(tmp_path / "out").exists()


def test_a_report_that_cannot_be_written_is_a_notice(tmp_path: Path) -> None:
    events: list[Event] = []
    report_of(tmp_path / "out").mkdir(parents=True)
    result = run_lines(tmp_path, [{"text": "a"}], listeners=[events.append], progress=False)
    assert result.report.status == "done"
    (notice,) = [event for event in events if isinstance(event, Notice) and event.level == "warning"]
    assert "report.html" in notice.message


def test_steps_of_a_run_have_no_report_of_their_own(tmp_path: Path) -> None:
    run_lines(tmp_path, [{"text": "a"}, {"text": "a"}], [ExactDeduplication()], keep_steps=True)
    assert [path.parent for path in tmp_path.rglob("report.html")] == [record_of(tmp_path / "out")]


# --- what is wrong ---


@pytest.fixture
def copied(plain: Path, tmp_path: Path) -> Path:
    shutil.copytree(record_of(plain), record_of(tmp_path / "out"))
    return Path(shutil.copytree(plain, tmp_path / "out"))


def test_a_killed_run_shows_what_was_committed(copied: Path) -> None:
    place = record_of(copied) / "run.json"
    record = json.loads(place.read_text())
    place.write_text(json.dumps(record | {"status": "running", "finished": None, "rows_read": 0, "stages": []}))
    data = contents(copied)
    assert data["run"]["status"] == "running"
    assert (data["run"]["rows_read"], data["run"]["rows_written"]) == (record["rows_read"], record["rows_written"])
    assert [one["dropped"] for one in data["stages"]] == [one["dropped"] for one in record["stages"]]


@pytest.mark.parametrize("damage", ["gone", "noise", "cut"])
def test_a_ledger_that_cannot_be_read_is_said(copied: Path, damage: str) -> None:
    (place,) = (record_of(copied) / "ledger").glob("*.parquet")
    if damage == "gone":
        shutil.rmtree(place.parent)
    else:
        place.write_bytes(b"PAR1" + os.urandom(300) if damage == "noise" else place.read_bytes()[:-200])
    data = contents(copied)
    (missing,) = data["missing"]
    assert missing.startswith("The ledger of partition sample~gz cannot be read: ")
    assert data["run"]["rows_read"] == run_json(copied)["rows_read"]
    assert len(data["stages"]) == 6
    assert data["dropped"] == []


@pytest.mark.parametrize("name", ["run.json", "plan.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_damaged_record_still_gives_a_page(copied: Path, name: str, text: str) -> None:
    (record_of(copied) / name).write_text(text)
    data = data_of(Path(write_report(str(copied))))
    assert data["run"]["rows_read"] == run_json(copied)["rows_read"] if name == "plan.json" else data["stages"]
    assert bool(data["missing"]) == (text != "{}")


def test_an_input_that_is_gone_is_said(tmp_path: Path) -> None:
    run_lines(tmp_path, [{"id": "a", "text": "few words"}], [ScoreFilter(WordCountFilter())])
    shutil.rmtree(tmp_path / "in")
    data = contents(tmp_path / "out")
    assert len(data["missing"]) == 1
    assert data["missing"][0].startswith("The input is no longer readable, so some texts are missing: a: ")
    assert "text" not in data["dropped"][0]["documents"][0]


def test_documents_given_as_tasks_have_no_texts_to_read_again(tmp_path: Path) -> None:
    batch = DocumentBatch(task_id="x", dataset_name="x", data=pa.table({"text": ["few words"]}))
    stages = [ScoreFilter(WordCountFilter()), JsonlWriter(str(tmp_path / "out"))]
    Pipeline("given", stages=stages).run(executor=here(), initial_tasks=[batch])
    (missing,) = contents(tmp_path / "out")["missing"]
    assert missing.endswith("The documents were passed as tasks and are not in any file.")


def test_a_place_that_cannot_be_written_asks_for_another(copied: Path, tmp_path: Path) -> None:
    report_of(copied).unlink()
    report_of(copied).mkdir()
    with pytest.raises(OutputError, match=r"--to FILE"):
        write_report(str(copied))
    failed = gristmill("report", copied)
    assert failed.exit_code == 1
    assert "--to FILE" in failed.output
    assert "Traceback" not in failed.output
    done = gristmill("report", copied, "--to", tmp_path / "page.html", "--json")
    assert json.loads(done.output)["bytes"] == (tmp_path / "page.html").stat().st_size


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError):
        write_report(str(tmp_path))
    failed = gristmill("report", tmp_path)
    assert failed.exit_code == 1
    assert "is not the output of a run" in failed.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "b"], "add --compare"),
        (["--compare", "a"], "two runs (got 1)"),
        (["a", "--record-b", "x"], "--record-b needs --compare"),
    ],
)
def test_wrong_use(arguments: list[str], message: str) -> None:
    failed = gristmill("report", *arguments)
    assert failed.exit_code == 2
    assert message in failed.output


# --- the page ---


def test_hostile_values_stay_data(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!--script--><!--"
    data = contents_with(tmp_path, evil)
    page = make_page(data).decode("utf-8")
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    island = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert island is not None
    assert "<" not in island[1]
    back = json.loads(island[1])
    assert back["dropped"][0]["documents"][0]["text"].startswith(evil)
    assert back["run"]["pipeline"] == evil
    assert "&lt;/script&gt;" in page.partition("</title>")[0]


def contents_with(folder: Path, evil: str) -> dict[str, Any]:
    source = write_lines(
        folder / "in" / "a.jsonl", [{"id": evil, "text": evil + " \ud800".encode("utf-8", "replace").decode()}]
    )
    stages = [JsonlReader(str(source)), ScoreFilter(WordCountFilter()), JsonlWriter(str(folder / "out"))]
    Pipeline(evil, stages=stages).run(executor=here())
    return contents(folder / "out")


def test_half_characters_and_odd_numbers_make_valid_json(tmp_path: Path) -> None:
    data = contents_with(tmp_path, "x") | {"odd": ["\ud800", float("nan"), float("inf"), np.float64(0.5).item()]}
    island = re.search(r'id="data">(.*?)</script>', make_page(data).decode("utf-8"), re.DOTALL)
    assert island is not None
    assert json.loads(island[1], parse_constant=pytest.fail)["odd"] == ["\ud800", None, None, 0.5]


def test_the_page_may_load_nothing_and_run_its_own_script_only(plain: Path) -> None:
    page = report_of(plain).read_text("utf-8")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src &#x27;none&#x27;" in policy[1]
    assert "unsafe" not in policy[1]
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page.partition("<script")[0])
    assert "documents read" in page.partition("<noscript>")[2].partition("</noscript>")[0]


def test_the_report_after_a_run_reads_a_bounded_part(plain: Path) -> None:
    reader = contents(plain, AFTER_RUN._replace(text_bytes=1))
    assert reader["text_sample"]["before"] <= AFTER_RUN.lengths
    assert all("text" in one or one["place"] for group in reader["dropped"] for one in group["documents"])
