"""Tokens and passwords are in nothing that a run writes or says, wherever they were given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gristmill.backends.local import LocalExecutor
from gristmill.cli.main import cli
from gristmill.ledger.record.secrets import SECRET
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.tasks import DocumentBatch
from tests.outputs import files_of
from tests.unit.pipeline.jobs import write_lines

HIDDEN = "s3cr3t-of-somebody"


class Caller(ProcessingStage[DocumentBatch, DocumentBatch]):
    name = "caller"

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.api_key = HIDDEN
        self.storage_options = {"key": "id", "secret": HIDDEN, "client_kwargs": {"aws_session_token": HIDDEN}}

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


def _nothing_in(folder: Path, said: str) -> None:
    written = [path for path in files_of(folder / "out").values() if path.is_file()]
    assert len(written) > 3
    assert not [path for path in written if HIDDEN.encode() in path.read_bytes()]
    assert HIDDEN not in said


def test_a_pipeline_records_no_secrets(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"id": "1", "text": "one"}])

    def run(password: str) -> Any:
        stages = [
            JsonlReader(str(tmp_path / "in"), storage_options={"secret": password}),
            Caller(server={"password": password, "host": "here", "base_url": f"https://me:{password}@here/v1"}),
            JsonlWriter(str(tmp_path / "out"), storage_options={"token": password}),
        ]
        return Pipeline("job", stages=stages).run(executor=LocalExecutor({"num_cpus": 0})).report

    run(HIDDEN)
    assert run("another").partitions_done_before == 1, "another password is no other plan"
    shown = capfd.readouterr()
    _nothing_in(tmp_path, shown.out + shown.err)


def test_a_recipe_records_no_secrets(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"id": "1", "text": "one"}])
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "variables: {db_password: ''}\nstages:\n"
        f"- JsonlReader: {{file_paths: '{tmp_path}/in', storage_options: {{secret: '${{db_password}}', "
        f"client_kwargs: {{aws_secret_access_key: '${{db_password}}', endpoint_url: 'http://me:{HIDDEN}@localhost:1'}}}}}}\n"
        f"- JsonlWriter: {{path: '{tmp_path}/out'}}\n"
    )
    done = CliRunner().invoke(cli, ["run", str(recipe), "--set", f"db_password={HIDDEN}", "--workers", "0"])
    assert done.exit_code == 0, done.output
    _nothing_in(tmp_path, done.output)


@pytest.mark.parametrize(
    "name",
    [
        *("hf_token", "token", "secret", "AWS_SECRET_ACCESS_KEY", "api_key", "apikey", "password", "db-password"),
        *("sas_token", "X-Api-Key", "Authorization", "Cookie", "clientSecret", "awsSecretAccessKey", "auth", "db_pwd"),
        *("aws.secret", "x-amz-security-token", "accessToken", "passphrase", "pass"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert SECRET.search(name)


@pytest.mark.parametrize(
    "name",
    [
        "pad_token",
        "max_tokens",
        "key",
        "sort_key",
        "tokenizer",
        "secretary",
        "id_field",
        "author",
        "passage",
        "monkey",
        "keypass_id",
        "compass",
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not SECRET.search(name)


@pytest.mark.parametrize("argument", ["input", "output"])
def test_a_password_in_a_url_is_refused_and_not_repeated(tmp_path: Path, argument: str) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"id": "1", "text": "one"}])
    url = f"s3://user:{HIDDEN}@bucket/data"
    paths = [url, str(tmp_path / "out")] if argument == "input" else [str(tmp_path / "in"), url]
    result = CliRunner().invoke(cli, ["run", "english", *paths])
    assert result.exit_code == 1
    assert "s3://user:***@bucket/data" in result.output
    assert HIDDEN not in result.output
