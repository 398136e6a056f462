"""The card of an output: `datasets` loads the folder by it, and people see what was dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gristmill.cli.main import cli
from gristmill.errors import NotSupportedError, OutputExistsError
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.report.card import write_card
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import DocumentReader, DocumentWriter
from tests.unit.pipeline.jobs import here, write_lines

datasets = pytest.importorskip("datasets")
ROWS = [{"id": f"d{n}", "text": "word " * (n % 6)} for n in range(50)]


def run(folder: Path, kind: Any, **options: Any) -> Path:
    write_lines(folder / "in" / "a.jsonl", ROWS[:30])
    write_lines(folder / "in" / "b.jsonl", ROWS[30:])
    out = folder / "my_data"
    stages = [
        DocumentReader(folder / "in"),
        ScoreFilter(WordCountFilter(min_words=3)),
        DocumentWriter(str(out), kind, **options),
    ]
    Pipeline("small | one", stages=stages).run(executor=here())
    return out


@pytest.mark.parametrize(
    ("kind", "options"), [("jsonl", {}), ("jsonl", {"compression": "gz"}), ("parquet", {}), ("csv", {}), ("arrow", {})]
)
def test_datasets_loads_the_folder(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    out = run(tmp_path, kind, **options)
    said = CliRunner().invoke(cli, ["card", str(out), "--split", "clean"])
    assert said.exit_code == 0, said.output
    assert said.output == f"Card: {out}/README.md\n"
    loaded = datasets.load_dataset(str(out), cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["clean"]
    kept = [row for row in ROWS if row["text"].count("word") >= 3]
    assert loaded["clean"]["id"] == [row["id"] for row in kept]
    assert verify(str(out)).ok


def test_the_card_says_what_was_dropped(tmp_path: Path) -> None:
    out = run(tmp_path, "jsonl")
    card = Path(write_card(str(out))).read_text()
    _, header, body = card.split("---\n", 2)
    told = yaml.safe_load(header)
    assert told["size_categories"] == ["n<1K"]
    assert told["dataset_info"]["splits"][0]["num_examples"] == 24
    assert "# my\\_data" in body
    assert "24 documents in 2 files" in body
    assert "small \\| one" in body
    assert "Of 50 documents that were read, 24 were kept, 26 dropped and 0 could not be" in body
    assert "| WordCountFilter | too\\_few\\_words | 26 | 52.0 % |" in body
    write_card(str(out), split="test")  # its own card is replaced
    assert "split: test" in (out / "README.md").read_text()
    # A later run resumes beside the card.
    run(tmp_path, "jsonl")
    assert verify(str(out)).ok


def test_a_readme_of_somebody_else_stays(tmp_path: Path) -> None:
    out = run(tmp_path, "jsonl")
    (out / "README.md").write_text("mine")
    with pytest.raises(OutputExistsError, match="was not written by gristmill"):
        write_card(str(out))
    write_card(str(out), replace=True)
    assert "mine" not in (out / "README.md").read_text()


def test_what_is_no_folder_of_data(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ROWS)
    for name, least in {"one.jsonl": 0, "none": 99}.items():
        writer = DocumentWriter(str(tmp_path / name), "parquet" if least else None)
        stages = [DocumentReader(tmp_path / "a.jsonl"), ScoreFilter(WordCountFilter(min_words=least)), writer]
        Pipeline("p", stages=stages).run(executor=here())
        with pytest.raises(NotSupportedError, match=r"is a single file|holds no file"):
            write_card(str(tmp_path / name))
