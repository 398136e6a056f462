"""Stages of user code in recipes: by import path where it is allowed, and declared by installed packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill.errors import RecipeError, UnknownNameError
from gristmill.recipes import load_recipe, parse_recipe
from gristmill.recipes.registry import registered
from gristmill.recipes.user_stages import declared_stages

MODULE = '''
import os
from gristmill.stages.base import ProcessingStage
from gristmill.stages.function_decorators import processing_stage
from gristmill.stages.text.filters import DocumentFilter
from gristmill.stages.text.modifiers import DocumentModifier
from gristmill.tasks import DocumentBatch

class Stamp(ProcessingStage):
    """Adds a column."""

    name = "stamp"

    def __init__(self, column: str, value: int = 1):
        self.column = column
        self.value = value

    def inputs(self):
        return ["data"], ["text"]

    def outputs(self):
        return ["data"], [self.column]

    def process(self, task):
        frame = task.to_pandas()
        frame[self.column] = self.value
        frame["worker"] = os.getpid()
        return DocumentBatch(data=frame)

class NoVowels(DocumentFilter):
    def __init__(self, letters: str = "aeiou"):
        super().__init__()
        self.letters = letters

    def score_document(self, text):
        return float(sum(text.count(letter) for letter in self.letters))

    def keep_document(self, score):
        return score > 0

class Upper(DocumentModifier):
    def modify_document(self, text):
        return text.upper()

@processing_stage(name="plain")
def plain(batch):
    return batch

number = 3
'''
RECIPE = """
name: mine
stages:
  - JsonlReader: {{file_paths: "${{input_path}}"}}
  - {module}:Stamp: {{column: mark, value: 7}}
  - {module}.NoVowels: {{letters: a}}
  - {module}:Upper
  - {module}:plain
  - JsonlWriter: {{path: "${{output_path}}"}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "own_stages.py").write_text(MODULE)
    (tmp_path / "broken_stages.py").write_text("raise ValueError('on import')")
    (tmp_path / "needy_stages.py").write_text("import no_such_package")
    (tmp_path / "mine.yaml").write_text(RECIPE.format(module="own_stages"))
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"id": str(number), "text": text}) for number, text in enumerate(["a cat", "hmm", "papa"])]
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "in" / "b.jsonl").write_text(json.dumps({"id": "3", "text": "banana"}) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("own_stages", "broken_stages", "needy_stages", "acme_stages"):
        sys.modules.pop(name, None)


def install(folder: Path, package: str, names: dict[str, str]) -> None:
    """Put a package on the path as an installer would."""
    info = folder / f"{package}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    points = "\n".join(f"{name} = {value}" for name, value in names.items())
    (info / "entry_points.txt").write_text(f"[gristmill.stages]\n{points}\n")


def gristmill(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command as installed: the current folder is not searched for modules."""
    command = [sys.executable, "-P", "-m", "gristmill", *arguments]
    searched = [os.environ.get("PYTHONPATH", ""), *([] if path is None else [str(path)])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, searched))}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_recipe_alone_runs_no_code(folder: Path) -> None:
    recipe = load_recipe("mine.yaml", variables={"input_path": "in", "output_path": "out"})
    with pytest.raises(RecipeError) as caught:
        recipe.pipeline()
    assert len(caught.value.problems) == 4  # all of them at once
    assert "mine.yaml" in caught.value.problems[0]
    assert "a recipe alone cannot run code" in caught.value.problems[0]
    assert "--allow-code own_stages" in caught.value.problems[0]
    assert "own_stages" not in sys.modules
    with pytest.raises(RecipeError, match="--allow-code own_stages"):
        recipe.pipeline(allow_code=["own"])
    assert "own_stages" not in sys.modules


def test_an_allowed_module_gives_stages_filters_modifiers_and_functions(folder: Path) -> None:
    recipe = load_recipe("mine.yaml", variables={"input_path": "in", "output_path": "out"})
    pipeline = recipe.pipeline(allow_code=["own_stages"])
    pipeline.run("local", progress=False)
    found = [json.loads(line) for line in (folder / "out" / "a.jsonl").read_text().splitlines()]
    assert [(record["text"], record["mark"]) for record in found] == [("A CAT", 7), ("PAPA", 7)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_stages:Stam", "has no 'Stam'. Did you mean 'Stamp'"),
        ("own_stages:number", "is not a stage"),
        ("own_stages:os", "is not a stage"),
        ("broken_stages:Any", "importing 'broken_stages' failed: ValueError: on import"),
        ("needy_stages:Any", "importing 'needy_stages' failed: ModuleNotFoundError: No module named 'no_such_package'"),
        ("missing_stages:Any", "there is no module 'missing_stages'"),
    ],
)
def test_what_an_import_path_leads_to_must_be_a_stage(folder: Path, name: str, message: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        registered(name, allow_code=[name.partition(":")[0]])
    assert message in str(caught.value)


def test_parameters_of_user_code_are_checked_as_those_of_ours(folder: Path) -> None:
    text = "name: x\nstages:\n- own_stages:Stamp: {colum: a, value: many}"
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text).pipeline(allow_code=["own_stages"])
    text = "\n".join(caught.value.problems)
    assert "unknown parameter 'colum'. Did you mean 'column'?" in text
    assert "value: expected a whole number, found 'many'" in text


def test_the_command_line_allows_code_and_workers_find_it(folder: Path) -> None:
    refused = gristmill("run", "mine.yaml", "in", "out")
    assert refused.returncode == 2
    assert "--allow-code own_stages" in refused.stderr
    planned = gristmill("plan", "mine.yaml", "in", "out", "--allow-code", "own_stages")
    assert planned.returncode == 0, planned.stderr
    done = gristmill("run", "mine.yaml", "in", "out", "--allow-code", "own_stages", "--workers", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for path in (folder / "out").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(record["text"] for record in found) == ["A CAT", "BANANA", "PAPA"]
    shown = gristmill("stages", "own_stages:Stamp", "--allow-code", "own_stages")
    assert "Adds a column." in shown.stdout
    assert "column: any value" in shown.stdout or "column: text" in shown.stdout


def test_installed_packages_declare_names(folder: Path) -> None:
    (folder / "acme_stages.py").write_text(MODULE)
    install(folder, "acme", {"AcmeStamp": "acme_stages:Stamp", "JsonlReader": "acme_stages:Stamp"})
    assert set(declared_stages()) == {"AcmeStamp", "JsonlReader"}
    assert "acme_stages" not in sys.modules
    assert registered("JsonlReader").module.startswith("gristmill.")
    text = (
        "name: x\nstages:\n- JsonlReader: {file_paths: in}\n- AcmeStamp: {column: mark}\n- JsonlWriter: {path: out}\n"
    )
    (folder / "acme.yaml").write_text(text)
    listed = gristmill("stages", path=folder)
    assert "AcmeStamp" in listed.stdout
    assert "acme 1.2" in listed.stdout
    assert "JsonlReader" in listed.stdout.split("Declared by installed packages")[1]
    assert "unusable: the name is built in" in listed.stdout
    done = gristmill("run", "acme.yaml", "--workers", "2", path=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "out" / "b.jsonl").read_text())["mark"] == 1


def test_a_name_of_two_packages_is_ambiguous(folder: Path) -> None:
    install(folder, "acme", {"Stamp": "own_stages:Stamp"})
    install(folder, "other", {"Stamp": "own_stages:Upper"})
    with pytest.raises(UnknownNameError, match=r"is declared by \w+ 1.2 and \w+ 1.2"):
        registered("Stamp")


def test_problems_of_all_steps_are_found_before_the_run() -> None:
    text = (
        "name: x\nstages:\n- JsonlReader: {file_paths: in}\n- ExactDeduplication: {survivor: best}\n"
        "- WordCountFilter: {min_word: 3}\n- FuzzyDeduplication: {threshold: 80}\n- SemanticDeduplication: {eps: -1}\n"
        "- JsonlWriter: {path: out}\n"
    )
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text).pipeline()
    lines = [problem.partition(",")[2].partition(":")[0] for problem in caught.value.problems]
    assert lines == [" line 4", " line 5", " line 6", " line 7"]
