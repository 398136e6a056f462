"""`gristmill dedup` on small inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from gristmill.backends.local import LocalExecutor
from gristmill.cli.main import cli
from gristmill.errors import StageFailedError
from gristmill.stages.deduplication import ExactDeduplicationWorkflow
from gristmill.stages.deduplication.exact.steps import ContentHashes
from gristmill.stages.text.io.reader import partitioning
from tests.unit.stages.deduplication.jobs import documents, kept_ids, write_files

TEXT = "the quick brown fox jumps over the lazy dog and runs away into the deep dark forest "


def dedup(folder: Path, kind: str, *options: str) -> Result:
    arguments = ["dedup", kind, str(folder / "in"), str(folder / "out"), "--workers", "0", *options]
    return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize("kind", ["exact", "fuzzy"])
def test_one_command_removes_duplicates(tmp_path: Path, kind: str) -> None:
    write_files(tmp_path, {"a.jsonl": documents([TEXT, "other", TEXT])})
    result = dedup(tmp_path, kind)
    assert result.exit_code == 0, result.output
    assert "3 documents read, 1 duplicate of 1 other document found" in result.output
    assert kept_ids(tmp_path) == ["d0", "d1"]
    why = CliRunner().invoke(cli, ["why", str(tmp_path / "out"), "d2"])
    assert "the survivor is 'd0', similarity 1" in why.output


def test_duplicates_are_found_across_several_inputs(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents([TEXT, "other"]), "b.jsonl": [{"id": "b", "text": TEXT}]})
    inputs = [str(tmp_path / "in" / "a.jsonl"), str(tmp_path / "in" / "b*")]
    result = CliRunner().invoke(cli, ["dedup", "exact", *inputs, str(tmp_path / "out"), "--workers", "0"])
    assert result.exit_code == 0, result.output
    assert kept_ids(tmp_path) == ["d0", "d1"]


def test_the_summary_tells_what_could_not_be_read(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": [*documents([TEXT, "other"]), "not json"]})
    result = dedup(tmp_path, "exact", "--error-budget", "5")
    assert result.exit_code == 3
    assert "3 documents read, no duplicates found" in result.output
    assert "2 documents kept" in result.output
    assert "1 record could not be read: see 'gristmill quarantine" in result.output


@pytest.mark.parametrize("kind", ["exact", "fuzzy"])
def test_files_without_the_column_hold_documents_without_text(tmp_path: Path, kind: str) -> None:
    write_files(tmp_path, {"a.jsonl": documents([TEXT, TEXT]), "b.jsonl": [{"id": "other"}, {"id": "another"}]})
    result = dedup(tmp_path, kind)
    assert result.exit_code == 0, result.output
    assert kept_ids(tmp_path) == ["d0", "other", "another"]
    assert "4 documents read, 1 duplicate" in result.output
    assert "2 documents with nothing to compare\n" in result.output


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("exact", "--text-field", "txt"), "--text-field"),
        (("exact", "--keep", "best", "--score-field", "quality"), "--score-field"),
        (("semantic", "--embedding-field", "vector"), "--embedding-field"),
    ],
)
def test_a_column_that_no_file_has_is_named_with_its_option(
    tmp_path: Path, options: tuple[str, ...], named: str
) -> None:
    write_files(tmp_path, {"a.jsonl": documents([TEXT])})
    result = dedup(tmp_path, *options)
    assert result.exit_code == 1
    assert f"only 'id', 'text'. Name the right one with {named}" in result.output.replace(" Did you mean 'text'?", "")


@pytest.mark.parametrize("kind", ["exact", "fuzzy"])
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["good", "3"], "holds texts, such as 'good'"),
        ([[1.5], [2.5]], "holds "),
        ([{"a": 1}, {"a": 2}], "holds "),
    ],
)
def test_scores_that_are_no_numbers_are_refused_before_the_first_step(
    tmp_path: Path, kind: str, form: str, values: list[object], words: str
) -> None:
    rows = [{**row, "q": value} for row, value in zip(documents([TEXT, TEXT]), values, strict=True)]
    write_files(tmp_path, {"a.jsonl": rows})
    if form == "parquet":
        (tmp_path / "in" / "a.jsonl").unlink()
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / "a.parquet")
    result = dedup(tmp_path, kind, "--keep", "best", "--score-field", "q")
    assert result.exit_code == 1
    assert f"score_field='q': survivor='best' compares numbers, but this column {words}" in result.output
    assert "Choose a column of numbers with --score-field" in result.output
    assert not (tmp_path / "out").exists()
    assert dedup(tmp_path, kind, "--keep", "best", "--score-field", "q", "--plan").exit_code == 1


def test_the_type_of_scores_in_parquet_is_known_without_any(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = [{"id": "d0", "text": TEXT, "q": None}, {"id": "d1", "text": TEXT, "q": None}]
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("q", pa.list_(pa.float64()))])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "in" / "a.parquet")
    result = dedup(tmp_path, "fuzzy", "--keep", "best", "--score-field", "q")
    assert "this column holds values of type list<" in result.output


@pytest.mark.parametrize("kind", ["exact", "fuzzy"])
def test_numbers_of_every_kind_are_scores(tmp_path: Path, kind: str) -> None:
    values = [None, 2, "3.5", True]
    rows = [{**row, "q": value} for row, value in zip(documents([TEXT] * 4), values, strict=True)]
    write_files(tmp_path, {f"{at}.jsonl": [row] for at, row in enumerate(rows)})
    result = dedup(tmp_path, kind, "--keep", "best", "--score-field", "q")
    assert result.exit_code == 0, result.output
    assert kept_ids(tmp_path) == ["d2"]


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (("--text-field", "txt"), True),
        (("--keep", "best", "--score-field", "quality"), False),
        (("--id-field", "key"), False),
    ],
)
def test_what_is_compared_must_be_seen_and_the_rest_may_be_rare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], refused: bool
) -> None:
    monkeypatch.setattr(partitioning, "_PEEK_BYTES", 1 << 12)
    monkeypatch.setattr(partitioning, "_SEARCH_BYTES", 1 << 13)
    rows = documents([TEXT] * 200)
    write_files(tmp_path, {"a.jsonl": [*rows, {**rows[0], "key": "k", "quality": 2, "txt": TEXT}]})
    result = dedup(tmp_path, "exact", *options, "--json")
    assert result.exit_code == (1 if refused else 0)
    if refused:
        assert "records sampled has such a column, only 'id', 'text'. Did you mean 'text'?" in result.output
    else:
        assert "records sampled" in result.output


def test_a_file_that_is_something_else_by_its_name(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.txt": documents([TEXT, TEXT])})
    arguments = ["dedup", "exact", str(tmp_path / "in" / "a.txt"), str(tmp_path / "out"), "--workers", "0"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code != 0
    assert (
        "a.txt is text, but this command reads JSONL and Parquet. A recipe deduplicates every format" in result.output
    )
    assert CliRunner().invoke(cli, [*arguments, "--input-filetype", "jsonl"]).exit_code == 0
    assert kept_ids(tmp_path) == ["d0"]


def test_a_failing_step_advises_only_what_the_command_offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("of no use")

    write_files(tmp_path, {"a.jsonl": documents([TEXT, TEXT])})
    monkeypatch.setattr(ContentHashes, "process", fails)
    result = dedup(tmp_path, "exact")
    assert result.exit_code == 1
    assert "fix the cause and run the same command again" in result.output
    assert "ignore" not in result.output


def test_a_document_that_cannot_be_compared_is_never_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"a.jsonl": documents([TEXT, TEXT])})
    lenient = LocalExecutor(config={"num_cpus": 0, "ignore_failures": True})
    workflow = ExactDeduplicationWorkflow(str(tmp_path / "out"), str(tmp_path / "in"), perform_removal=True)
    assert "ignore_failures has no effect" in " ".join(workflow.run(executor=lenient).metadata["notes"])
    monkeypatch.setattr(ContentHashes, "process", lambda *_: 1 / 0)
    with pytest.raises(StageFailedError, match="ZeroDivisionError"):
        workflow.run(executor=lenient, fresh=True)


def test_json_has_the_facts(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents([TEXT, TEXT])})
    answer = json.loads(dedup(tmp_path, "fuzzy", "--json", "--quiet", "--keep", "longest").stdout)
    assert (answer["status"], answer["num_removed"], answer["threshold"]) == ("done", 1, 0.8)


def test_the_plan_writes_nothing(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents([TEXT, TEXT])})
    result = dedup(tmp_path, "fuzzy", "--plan")
    assert result.exit_code == 0, result.output
    assert "about 2 documents" in result.output
    assert "20 bands of 7 hashes" in result.output
    assert not (tmp_path / "out").exists()


def test_a_list_instead_of_removal(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents([TEXT, TEXT])})
    assert dedup(tmp_path, "exact", "--list-only").exit_code == 0
    assert list((tmp_path / "out" / "ExactDuplicateIds").glob("*.parquet"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--threshold", "0.5"), "to 'gristmill dedup fuzzy', not to exact"),
        (("--char-ngrams", "9"), "to 'gristmill dedup fuzzy', not to exact"),
        (("--keep", "best"), "set score_field (--score-field) to the column to compare"),
        (("--score-field", "q"), "applies to survivor='best' (--keep best)"),
        (("--keep", "priority"), "source_priority (--source)"),
        (("--source", "wiki"), "applies to survivor='priority' (--keep priority)"),
        (("--blocksize", "0"), "cannot hold anything"),
        (("--blocksize", "ten"), "is not a size"),
    ],
)
def test_options_that_cannot_work_are_wrong_use(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    write_files(tmp_path, {"a.jsonl": documents([TEXT])})
    result = dedup(tmp_path, "exact", *options)
    assert result.exit_code == 2
    assert words in result.output
    assert not (tmp_path / "out").exists()


def test_semantic_with_embeddings_of_a_column_and_another_eps_afterwards(tmp_path: Path) -> None:
    vectors = [[1.0, 0.0, 0.2], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    rows = [{"id": f"d{at}", "vector": vector} for at, vector in enumerate(vectors)]
    write_files(tmp_path, {"a.jsonl": rows})
    options = ("--embedding-field", "vector", "--keep", "first")
    result = dedup(tmp_path, "semantic", *options, "--eps", "0.05")
    assert result.exit_code == 0, result.output
    assert kept_ids(tmp_path) == ["d0", "d2"]
    assert "duplicates by eps: 0.001 → 1" in result.output
    assert dedup(tmp_path, "semantic", *options, "--eps", "0.01").exit_code == 0
    assert kept_ids(tmp_path) == ["d0", "d1", "d2"]
    why = CliRunner().invoke(cli, ["why", str(tmp_path / "out"), "d3"])
    assert "the survivor is 'd1', similarity 1, cluster 1" in why.output


@pytest.mark.parametrize(
    "options",
    [
        ("--threshold", "0.5"),
        ("--merge-empty",),
        ("--keep", "first", "--which-to-keep", "easy"),
        ("--model", "x", "--embedding-field", "y"),
        ("--eps", "0.3", "--max-eps", "0.2"),
    ],
)
def test_options_that_cannot_work_for_semantic(tmp_path: Path, options: tuple[str, ...]) -> None:
    write_files(tmp_path, {"a.jsonl": documents([TEXT])})
    assert dedup(tmp_path, "semantic", *options).exit_code == 2


def test_an_id_field_that_no_file_has_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents([TEXT])})
    result = dedup(tmp_path, "exact", "--id-field", "uid")
    assert result.exit_code == 1
    assert "id_field='uid': the documents have no such column, only 'id', 'text'." in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("output", "words"), [("in", "holds the input file"), ("in/out", "is inside the input")])
@pytest.mark.parametrize("options", [(), ("--list-only",), ("--plan",)])
def test_an_input_is_never_written_to(tmp_path: Path, output: str, words: str, options: tuple[str, ...]) -> None:
    source = write_files(tmp_path, {"a.jsonl": documents([TEXT, TEXT])})
    result = CliRunner().invoke(
        cli, ["dedup", "exact", str(source), str(tmp_path / output), "--workers", "0", *options]
    )
    assert result.exit_code == 1
    assert words in result.output
    assert [path.name for path in source.iterdir()] == ["a.jsonl"]


def test_an_output_that_is_a_file_is_called_so(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents([TEXT])})
    result = dedup(tmp_path, "exact", "--cache", str(tmp_path / "in" / "a.jsonl" / "x"))
    assert result.exit_code == 1
    assert "a.jsonl is a file. Check the output path." in result.output
    (tmp_path / "out").write_text("")
    result = dedup(tmp_path, "exact")
    assert result.exit_code == 1
    assert f"The output folder {tmp_path / 'out'} cannot be created: {tmp_path / 'out'} is a file." in result.output


def test_a_file_that_would_be_replaced_is_found_before_the_search(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": documents([TEXT])})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.jsonl").write_text("precious\n")
    result = dedup(tmp_path, "fuzzy")
    assert result.exit_code == 1
    assert "holds 'a.jsonl', not written by a run" in result.output
    assert not (tmp_path / "out.gristmill" / "steps").exists()
    assert dedup(tmp_path, "fuzzy", "--list-only").exit_code == 0
    assert (tmp_path / "out" / "a.jsonl").read_text() == "precious\n"


def test_an_output_without_a_name_is_wrong_use(tmp_path: Path) -> None:
    source = write_files(tmp_path, {"a.jsonl": documents([TEXT])})
    for kind in ("exact", "fuzzy", "semantic"):
        result = CliRunner().invoke(cli, ["dedup", kind, str(source), ""])
        assert result.exit_code == 2
        assert "set the folder to write to" in result.output


@pytest.mark.parametrize("kind", ["exact", "fuzzy"])
def test_parquet_files_of_which_some_lack_a_column(tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": ["none"]}), tmp_path / "in" / "a.parquet")
    pq.write_table(pa.table({"text": [TEXT, "other"]}), tmp_path / "in" / "b.parquet")
    pq.write_table(pa.table({"id": ["c", "d"], "text": [TEXT, TEXT]}), tmp_path / "in" / "c.parquet")
    result = dedup(tmp_path, kind)
    assert result.exit_code == 0, result.output
    assert "5 documents read, 2 duplicates of 1 other document found" in result.output
    why = CliRunner().invoke(cli, ["why", str(tmp_path / "out"), "d"])
    assert "the survivor is 'b#0', similarity 1" in why.output


@pytest.mark.parametrize("embedding", [["x", 1.0], "word", {"a": 1}, 5])
def test_embeddings_that_are_none_are_explained_without_a_traceback(tmp_path: Path, embedding: object) -> None:
    rows = [{"id": "a", "e": [1.0, 2.0]}, {"id": "b", "e": embedding}]
    write_files(tmp_path, {"a.jsonl": rows})
    result = dedup(tmp_path, "semantic", "--embedding-field", "e")
    assert result.exit_code == 1
    assert "must be a list of numbers, not" in result.output or "must be lists of numbers, but" in result.output
    assert "The column 'e' cannot be compared" in result.output
    assert "--embedding-field" in result.output
    assert "Traceback" not in result.output


def test_an_eps_above_the_pairs_of_an_earlier_run_is_told(tmp_path: Path) -> None:
    vectors = [[1.0, 0.0, 0.2], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.9]]
    write_files(tmp_path, {"a.jsonl": [{"id": f"d{at}", "e": vector} for at, vector in enumerate(vectors)]})
    options = ("--embedding-field", "e", "--keep", "first")
    assert dedup(tmp_path, "semantic", *options, "--eps", "0.001").exit_code == 0
    result = dedup(tmp_path, "semantic", *options, "--eps", "0.3")
    assert result.exit_code == 0
    assert "--eps 0.3 (eps) is above the --max-eps 0.1 (max_eps) of the earlier run" in result.output
    assert kept_ids(tmp_path) == ["d0", "d2"]


def test_an_eps_that_is_none_is_called_so(tmp_path: Path) -> None:
    result = dedup(tmp_path, "semantic", "--embedding-field", "e", "--eps", "2")
    assert result.exit_code == 2
    assert "eps=2.0: a distance (1 - cosine) must be at least 0 and below 1" in result.output
