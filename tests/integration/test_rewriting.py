"""Grades from a model, a classifier from the grades, and rewriting, by the commands of the how-tos on real texts."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.llm_server import model_server

SOURCES = {"dict_foldoc": 260, "agnews": 160, "movie_reviews": 80, "fortunes": 160}
TEACHING = re.compile(r"\b(?:a|an|the) \w+ (?:of|for|used|which|that)\b|\bcalled\b|\bused to\b|\bsystem\b|\blanguage\b")


def gristmill(*arguments: object, expect: int = 0) -> str:
    command = [sys.executable, "-m", "gristmill", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


@pytest.fixture
def texts(shared_data: Path, tmp_path: Path) -> Path:
    """Real texts of several kinds, shuffled by their ids."""
    rows: list[dict[str, Any]] = []
    for source, count in SOURCES.items():
        with gzip.open(shared_data / "texts" / f"{source}.jsonl.gz", "rt", encoding="utf-8") as file:
            rows += [
                {"id": row["id"], "text": row["text"]}
                for row, _ in zip(map(json.loads, file), range(count), strict=False)
            ]
    folder = tmp_path / "texts"
    folder.mkdir()
    for part in range(2):
        lines = [json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: str(row["id"]))[part::2]]
        (folder / f"part-{part}.jsonl").write_text("".join(lines))
    return folder


def graded_by_rule(body: dict[str, Any]) -> str:
    """A model that sees educational value in definitions; it obeys nothing that a document says."""
    said = body["messages"][-1]["content"].partition("<extract>\n")[2].rpartition("\n</extract>")[0]
    found = len(TEACHING.findall(said))
    return json.dumps({"reasons": f"{found} signs", "grade": min(5, found)})


def test_grades_train_a_classifier_that_agrees_with_them(texts: Path, tmp_path: Path) -> None:
    total = sum(SOURCES.values())
    with model_server(reply=graded_by_rule) as server:
        options = ("--set", "model=grader", "--set", f"base_url={server.url}", "--workers", 1)
        gristmill("run", "grade", texts, tmp_path / "graded", *options)
        assert server.answered == len({json.dumps(body) for body in server.requests}) <= total
    rows = rows_of(tmp_path / "graded")
    assert len(rows) == total
    assert {row["educational_grade"] for row in rows} == {0, 1, 2, 3, 4, 5}
    assert all(row["educational_reasons"].endswith(" signs") for row in rows)
    gristmill("verify", tmp_path / "graded")

    model = tmp_path / "models" / "grade"
    told = gristmill("classifier", "train", tmp_path / "graded", "--label", "educational_grade", "--kind", "linear",
                     "--out", model)  # fmt: skip
    found = json.loads((model / "evaluation.json").read_text())
    assert found["held_out"] > 100
    figures = found["grades"]
    assert f"Agreement with held-out grades: {figures['within_one']:.1%} within one" in told
    assert figures["within_one"] > 0.6
    assert figures["at_least"]["1"]["f1"] > 0.7
    assert set(figures["at_least"]) == {"1", "2", "3", "4", "5"}

    recipe = tmp_path / "educational.yaml"
    recipe.write_text(
        "name: educational\nstages:\n- DocumentReader: {file_paths: '${input_path}'}\n- LinearClassifier: {model_path: "
        f"'{model}', label_field: grade, filter_by: ['1', '2', '3', '4', '5']}}\n"
        "- DocumentWriter: {path: '${output_path}'}\n"
    )
    gristmill("run", recipe, texts, tmp_path / "educational", "--workers", 1)
    kept = rows_of(tmp_path / "educational")
    assert 0 < len(kept) < total


def rephrased_by_rule(body: dict[str, Any]) -> str:
    said = body["messages"][-1]["content"].partition("<text>\n")[2].rpartition("\n</text>")[0]
    if "film" in said:
        return "I cannot rewrite this."
    return f"Here is a paraphrased version:\n**{said.upper()}**"


def test_rephrasing_drops_refusals_and_keeps_the_rest(texts: Path, tmp_path: Path) -> None:
    with model_server(reply=rephrased_by_rule) as server:
        options = ("--set", "model=writer", "--set", f"base_url={server.url}", "--set", "max_chunk_chars=500")
        gristmill("run", "rephrase", texts, tmp_path / "out", *options, "--workers", 1)
        asked = len(server.requests)
        gristmill("run", "rephrase", texts, tmp_path / "out", *options, "--workers", 1, "--set", "min_words=20",
                  "--fresh")  # fmt: skip
        assert len(server.requests) == asked
    rows = rows_of(tmp_path / "out")
    assert 50 < len(rows) < sum(SOURCES.values())
    for row in rows:
        assert "paraphrased" not in row["rephrased"].lower() or "paraphrased" in row["text"].lower()
        assert len(row["rephrased"].split()) >= 20
    gristmill("verify", tmp_path / "out")


def test_a_model_in_the_worker_answers_as_it_does_alone(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.unit.stages.text.models.test_generation import QUESTIONS, ask, make_writer

    folder = make_writer(tmp_path / "model")
    source = tmp_path / "in.jsonl"
    source.write_text(
        "".join(json.dumps({"id": str(place), "text": text}) + "\n" for place, text in enumerate(QUESTIONS))
    )
    recipe = tmp_path / "answer.yaml"
    recipe.write_text(
        "name: answer\nstages:\n- DocumentReader: {file_paths: '${input_path}'}\n"
        f"- WikipediaParaphrasingStage: {{client: transformers, model_name: '{folder}', prompt: '{{document}}', "
        "system_prompt: null, generation_config: {max_tokens: 8}, truncated: keep}\n"
        "- DocumentWriter: {path: '${output_path}'}\n"
    )
    gristmill("run", recipe, source, tmp_path / "out", "--workers", 1)
    from gristmill.stages.text.models.generation import TransformersClient

    alone = [answer.texts[0] for answer in ask(TransformersClient(str(folder)), QUESTIONS)]
    made = {row["id"]: row["rephrased"] for row in rows_of(tmp_path / "out")}
    assert made == {str(place): text for place, text in enumerate(alone) if text}
    gristmill("verify", tmp_path / "out")
