"""Commands that need no run: recipes, stages, split, and what is wrong before a run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gristmill.cli.main import cli
from gristmill.recipes.loader import parse_recipe


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_recipes_are_listed() -> None:
    shown = run("recipes").stdout
    for name in ("demo", "english", "non_english", "code", "web"):
        assert f"{name}\n" in shown
    assert "required variables: input_path, output_path, path_to_tokenizer" in shown


def test_recipes_as_json() -> None:
    found = {recipe["name"]: recipe for recipe in json.loads(run("recipes", "--json").stdout)}
    assert found["english"]["required"] == ["input_path", "output_path"]
    assert found["english"]["defaults"] == {"text_field": "text"}
    assert json.loads(run("recipes", "english", "--json").stdout)["text"] == run("recipes", "english").stdout


def test_a_recipe_is_printed_to_be_copied() -> None:
    text = run("recipes", "english").stdout
    assert len(parse_recipe(text, variables={"input_path": "a", "output_path": "b"}).stages) == 30


def test_an_unknown_recipe() -> None:
    result = run("run", "englisch", "a", "b")
    assert result.exit_code == 2
    assert "Did you mean 'english'?" in result.stderr


def test_missing_paths_are_explained() -> None:
    result = run("run", "english", "in/")
    assert result.exit_code == 2
    assert result.stderr == "Error: The recipe 'english' needs an output: gristmill run english INPUT OUTPUT\n"
    assert run("plan", "english", "in/").stderr.endswith("gristmill plan english INPUT OUTPUT\n")
    assert "INPUT OUTPUT" not in run("plan", "code", "in/", "out/").stderr


def test_one_stage_is_documented() -> None:
    shown = run("stages", "JsonlReader").stdout
    assert shown.startswith("JsonlReader (stage)\n")
    assert "file_paths: text or a list of texts (required)" in shown
    assert "limit: a whole number or null (default null)" in shown


def test_one_stage_as_json() -> None:
    found = json.loads(run("stages", "Slicer", "--json").stdout)
    parameters = {parameter["name"]: parameter for parameter in found["parameters"]}
    assert found["kind"] == "modifier"
    assert parameters["include_left"]["default"] is True
    assert parameters["input_fields"]["default"] == "text"


def test_an_unknown_stage() -> None:
    result = run("stages", "JsonReader")
    assert result.exit_code == 2
    assert "Did you mean 'JsonlReader'?" in result.stderr


def recipe(folder: Path, stages: str) -> Path:
    path = folder / "r.yaml"
    path.write_text(f"stages:\n{stages}", encoding="utf-8")
    return path


@pytest.mark.parametrize("command", ["run", "plan"])
def test_everything_that_is_wrong_with_a_recipe_is_shown_at_once(command: str, tmp_path: Path) -> None:
    path = recipe(tmp_path, "- JsonlReder\n- JsonlReader: {file_path: 3, limit: true}\n- Slicer: {strip: 1}\n")
    result = run(command, path)
    assert result.exit_code == 2
    shown = result.stderr
    assert "Error: 5 problems in the recipe:" in shown
    for part in (
        "r.yaml, line 2: JsonlReder: There is no stage, filter or modifier named 'JsonlReder'. Did you mean",
        "r.yaml, line 3: JsonlReader: unknown parameter 'file_path'. Did you mean 'file_paths'?",
        "r.yaml, line 3: JsonlReader: limit: expected a whole number or null, found true.",
        "r.yaml, line 3: JsonlReader: the parameter 'file_paths' is missing",
        "r.yaml, line 4: Slicer: strip: expected true or false, found 1.",
    ):
        assert part in shown
    assert result.stdout == ""


def test_an_import_path_is_not_a_name(tmp_path: Path) -> None:
    result = run("plan", recipe(tmp_path, "- os.system: {command: 'true'}\n"))
    assert result.exit_code == 2
    assert "'os.system' is an import path, and a recipe alone cannot run code" in result.stderr
    allowed = run("plan", recipe(tmp_path, "- os.system: {command: 'true'}\n"), "--allow-code", "os")
    assert allowed.exit_code == 2
    assert "'os.system' (--allow-code os) is not a stage" in allowed.stderr


def test_what_a_constructor_refuses_has_its_line(tmp_path: Path) -> None:
    path = recipe(tmp_path, "- JsonlReader:\n    file_paths: x\n    files_per_partition: 1\n    blocksize: 1GB\n")
    result = run("plan", path)
    assert result.exit_code == 2
    assert "r.yaml, line 2: JsonlReader: " in result.stderr


def test_split(tmp_path: Path) -> None:
    source = tmp_path / "all.jsonl.gz"
    lines = [json.dumps({"n": number}) + "\n" for number in range(100)]
    source.write_bytes(gzip.compress("".join(lines).encode()))
    result = run("split", source, tmp_path / "parts", "--size", "400B")
    assert result.exit_code == 0
    parts = [Path(line) for line in result.stdout.splitlines()]
    assert len(parts) > 2
    assert "".join(gzip.decompress(part.read_bytes()).decode() for part in parts) == "".join(lines)
    assert result.stderr == f"100 rows in {len(parts)} parts.\n"


def test_split_as_json(tmp_path: Path) -> None:
    source = tmp_path / "all.jsonl"
    source.write_text('{"a": 1}\n{"a": 2}\n')
    found = json.loads(run("split", source, tmp_path / "parts", "--json").stdout)
    assert [part["rows"] for part in found["parts"]] == [2]


def test_split_with_a_wrong_size(tmp_path: Path) -> None:
    result = run("split", tmp_path / "x", tmp_path / "parts", "--size", "big")
    assert result.exit_code == 2
    assert "--size='big' is not a size" in result.stderr


@pytest.mark.parametrize("command", [("verify",), ("quarantine",), ("why", "id-1")])
def test_a_folder_without_a_run(command: tuple[str, ...], tmp_path: Path) -> None:
    name, *rest = command
    result = run(name, tmp_path, *rest)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")


@pytest.mark.parametrize("command", ["verify", "quarantine", "replay"])
def test_a_folder_that_is_not_there_is_said_to_be_missing(tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path / "nowhere")
    assert result.exit_code == 1
    assert f"There is no {tmp_path / 'nowhere'}." in result.output


def test_split_names_what_it_cannot_cut(tmp_path: Path) -> None:
    result = run("split", tmp_path / "nothing.jsonl", tmp_path / "parts")
    assert (result.exit_code, "does not exist" in result.output) == (1, True)
    result = run("split", tmp_path, tmp_path / "parts")
    assert (result.exit_code, "is a folder; pass a single file" in result.output) == (1, True)
    assert not (tmp_path / "parts").exists()


def test_a_replay_that_can_do_nothing_says_what_can(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": 1, "text": "fine"}\n{"id": 2, "te\n')
    recipe = tmp_path / "copy.yaml"
    recipe.write_text(
        "name: copy\nstages:\n- JsonlReader: {file_paths: '${input_path}'}\n- JsonlWriter: {path: '${output_path}'}\n"
    )
    assert run("run", recipe, tmp_path / "in.jsonl", tmp_path / "out", "--workers", 0).exit_code == 3
    result = run("replay", tmp_path / "out")
    assert result.exit_code == 3
    assert "1 of them cannot be read by any pipeline" in result.output
    assert "correct them in their input file" in result.output


def test_an_output_that_cannot_be_made_is_explained_once(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": 1, "text": "fine"}\n')
    (tmp_path / "file").write_text("")
    result = run("run", "english", tmp_path / "in.jsonl", tmp_path / "file" / "out", "--workers", 0)
    assert result.exit_code == 1
    assert result.output.count("Check") <= 1
    assert ".." not in result.output
    assert f"{tmp_path / 'file'} is a file." in result.output
    planned = run("plan", "english", tmp_path / "in.jsonl", tmp_path / "file" / "out", "--workers", 0)
    assert planned.output.endswith(result.output.replace("Error:", "A run would refuse:"))
    for command in (["verify", tmp_path / "file"], ["why", tmp_path / "file", "x"]):
        told = run(*command).output
        assert (
            f"{tmp_path / 'file'} is not the output of a run: there is no record in {tmp_path}/file.gristmill" in told
        )
        assert "Pass the output of a run, and --record" in told


def test_json_that_is_not_jsonl_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "array.json").write_text('[{"id": 1, "text": "fine"}]\n')
    result = run("run", "english", tmp_path / "array.json", tmp_path / "read", "--workers", 0)
    assert result.exit_code == 0
    assert "1 document in" in result.output
    (tmp_path / "in.json").write_text('["fine", "texts"]\n')
    result = run("run", "english", tmp_path / "in.json", tmp_path / "out", "--workers", 0)
    assert result.exit_code == 3
    assert "'jsonl_reader' could not read anything: all 1 records are in quarantine" in " ".join(result.output.split())
    assert "one whole object per line" in " ".join(run("quarantine", tmp_path / "out").stdout.split())
