"""`gristmill run` on any format: several inputs, standard input, samples, and what is written."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from gristmill.cli.main import cli

GOOD = (
    "When the ferry reached the island, most passengers had already gathered their bags near the ramp. A man asked "
    "whether anybody knew the way to the harbour office, and a girl with a red scarf pointed past the warehouses. It "
    "had rained all morning; puddles covered the square, so people walked close to the walls. Later, over coffee, she "
    "told him about her work, about the winter storms, and why she had never wanted to live anywhere else."
)
DOCUMENTS: list[dict[str, Any]] = [
    {"id": f"d{number}", "content": f"{GOOD} Number {number}." if number % 2 else "Too short."} for number in range(40)
]


def run(*arguments: object, data: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=data)


def lines(documents: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(document) + "\n" for document in documents).encode()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for folder in ("jsonl", "parquet"):
        (tmp_path / folder).mkdir()
    (tmp_path / "jsonl" / "a.jsonl").write_bytes(lines(DOCUMENTS[:20]))
    (tmp_path / "jsonl" / "b.jsonl.gz").write_bytes(gzip.compress(lines(DOCUMENTS[20:])))
    pq.write_table(pa.Table.from_pylist(DOCUMENTS[:20]), tmp_path / "parquet" / "a.parquet")
    pq.write_table(pa.Table.from_pylist(DOCUMENTS[20:]), tmp_path / "parquet" / "b.parquet")
    return tmp_path


def ids(output: Path) -> list[str]:
    found: list[str] = []
    for path in sorted(path for path in output.iterdir() if path.is_file()):
        if path.suffix == ".parquet":
            found += pq.read_table(path)["id"].to_pylist()
        else:
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            found += [json.loads(line)["id"] for line in data.splitlines()]
    return sorted(found)


KEPT = sorted(document["id"] for number, document in enumerate(DOCUMENTS) if number % 2)
SMALL = ("--workers", 0, "--quiet", "--text-field", "content")


@pytest.mark.parametrize("recipe", ["english", "non_english", "web"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_shipped_recipes_on_any_format(kind: str, recipe: str, here: Path) -> None:
    result = run("run", recipe, kind, "out", *SMALL)
    assert result.exit_code == 0, result.output
    assert {path.suffix for path in (here / "out").iterdir() if path.is_file()} <= {f".{kind}"}
    if recipe != "web":
        assert ids(here / "out") == KEPT
    assert run("verify", "out").exit_code == 0


def test_another_format_and_compression(here: Path) -> None:
    result = run("run", "english", "parquet", "out", *SMALL, "--output-filetype", "jsonl", "--compression", "gz")
    assert result.exit_code == 0, result.output
    assert ids(here / "out") == KEPT
    assert sorted(path.name for path in (here / "out").iterdir() if path.is_file()) == ["a.jsonl.gz", "b.jsonl.gz"]


def test_several_inputs_and_patterns(here: Path) -> None:
    result = run("run", "english", "jsonl/a.jsonl", "jsonl/b*.gz", "out", *SMALL)
    assert result.exit_code == 0, result.output
    assert ids(here / "out") == KEPT


def test_two_formats_are_a_choice(here: Path) -> None:
    result = run("run", "english", "jsonl", "parquet", "out", *SMALL)
    assert result.exit_code != 0
    assert "--input-filetype jsonl" in result.stderr
    assert "--input-filetype parquet" in result.stderr
    assert run("plan", "english", "jsonl", "parquet", "out", "--text-field", "content").exit_code != 0
    result = run(
        "run", "english", ".", "--input-filetype", "parquet", "--set", f"output_path={here.parent / 'o'}", *SMALL
    )
    assert result.exit_code == 0, result.output
    assert ids(here.parent / "o") == KEPT


def test_standard_input_is_kept_so_that_the_run_resumes(here: Path) -> None:
    command = ("run", "english", "-", "out", "--workers", 0, "--json", "--text-field", "content")
    for done in (0, 1):
        result = run(*command, data=lines(DOCUMENTS))
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["partitions_done_before"] == done
        assert ids(here / "out") == KEPT
    assert run("verify", "out").exit_code == 0
    # Another stream is another input.
    result = run(*command, data=lines(DOCUMENTS[:20]))
    assert json.loads(result.stdout)["partitions_done_before"] == 0
    assert ids(here / "out") == sorted(document["id"] for document in DOCUMENTS[1:20:2])


@pytest.mark.parametrize("packed", [bytes, partial(gzip.compress, mtime=0)], ids=["plain", "gzip"])
def test_standard_input_of_another_format(here: Path, packed: Any) -> None:
    table = b"id,content\n" + b"".join(f'{row["id"]},"{row["content"]}"\n'.encode() for row in DOCUMENTS)
    command = ("run", "english", "-", "out", "--workers", 0, "--json", "--text-field", "content")
    for done in (0, 1):
        result = run(*command, "--input-filetype", "csv", data=packed(table))
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["partitions_done_before"] == done
        assert ids(here / "out") == KEPT
    assert run("verify", "out").exit_code == 0
    assert "kept" in run("why", "out", KEPT[0]).output
    result = run("stats", "-", "--json", "--text-field", "content", "--input-filetype", "csv", data=table)
    assert json.loads(result.stdout)["documents"] == len(DOCUMENTS)


def test_nothing_from_standard_input_replaces_nothing(here: Path) -> None:
    command = ("run", "english", "-", "out", *SMALL)
    assert run(*command, data=lines(DOCUMENTS)).exit_code == 0
    result = run(*command, data=b"")
    assert result.exit_code == 2
    assert "standard input is empty" in result.stderr
    assert ids(here / "out") == KEPT
    assert run("verify", "out").exit_code == 0


def test_limit_and_sample(here: Path) -> None:
    command = ("run", "english", "jsonl", "out", "--workers", 0, "--json", "--text-field", "content")
    result = run(*command, "--limit", 25)
    assert json.loads(result.stdout)["rows_read"] == 25
    assert ids(here / "out") == sorted(document["id"] for document in DOCUMENTS[1:25:2])
    again = run(*command, "--limit", 30)
    assert again.exit_code == 1
    assert "max_documents changed from 25 to 30" in again.stderr
    read = [
        json.loads(run(*command, "--fresh", "--sample", 0.5, "--seed", seed).stdout)["rows_read"] for seed in (1, 1, 2)
    ]
    assert 5 < read[0] < 35
    assert read[0] == read[1]


def test_a_plan_takes_the_same_options(here: Path) -> None:
    result = run("plan", "english", "jsonl/a.jsonl", "jsonl/b.jsonl.gz", "out", "--limit", 3, "--text-field", "content")
    assert result.exit_code == 0, result.output
    assert "Input: 1 partition" in result.stdout
    assert "jsonl_writer" in result.stdout
    assert run("run", "english", "jsonl/a.jsonl", "jsonl/b.jsonl.gz", "out", "--limit", 3, *SMALL).exit_code == 0
    result = run("plan", "english", "jsonl/a.jsonl", "jsonl/b.jsonl.gz", "out", "--limit", 4, "--text-field", "content")
    assert "max_documents changed from 3 to 4" in result.stdout


def test_the_recipe_that_is_kept_repeats_the_run(here: Path) -> None:
    options = ("--limit", 25, "--compression", "gz")
    assert run("run", "english", "jsonl", "out", *SMALL, *options).exit_code == 0
    kept = next(path for path in here.rglob("recipe.yaml"))
    assert run("run", kept, "--set", "executor.num_cpus=0", "-q").exit_code == 0  # the same plan: nothing to do
    assert run("replay", "out").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("a", "-", "out"), "cannot be combined with other inputs"),
        (("a", "-"), "documents can only be written to files"),
        (("jsonl", "parquet", "jsonl/a.jsonl"), "which is a file. Pass the output folder after"),
        (("jsonl", "out", "--seed", 3), "--seed needs --sample"),
        (("jsonl", "out", "--sample", 0), "'--sample'"),
        (("jsonl", "out", "--limit", 0), "'--limit'"),
        (("jsonl", "out", "--compression", "rar"), "'rar'"),
        (("jsonl", "out", "--text-field", "a", "--set", "text_field=b"), "set twice"),
    ],
)
def test_wrong_use(arguments: tuple[object, ...], part: str, here: Path) -> None:
    result = run("run", "english", *arguments)
    assert result.exit_code == 2, result.output
    assert part in result.stderr
    assert not (here / "out").exists()


def test_a_plan_cannot_look_at_standard_input(here: Path) -> None:
    result = run("plan", "english", "-", "out")
    assert result.exit_code == 2
    assert "standard input can only be read once" in result.stderr


def test_a_column_that_is_not_there_is_told_with_those_that_are(here: Path) -> None:
    result = run("run", "english", "jsonl", "out", "--workers", 0, "--text-field", "contents")
    assert result.exit_code == 1
    assert "Did you mean 'content'?" in result.stderr
