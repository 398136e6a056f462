"""What output files are called: as the input files, and what happens when another file comes to have the same name."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import ResumeError
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.pipeline.run import RunReport
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.storage import partitions


def run(folder: Path, *, compression: str | None = None, fresh: bool = False) -> RunReport:
    stages = [JsonlReader(folder / "in"), JsonlWriter(str(folder / "out"), compression=compression)]
    return Pipeline("p", stages=stages).run(LocalExecutor({"num_cpus": 0}), fresh=fresh).report


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out").iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n'))
    (tmp_path / "in" / "sub" / "b.json").write_bytes(b'{"text": "b"}\n')
    (tmp_path / "in" / "c.jsonl").write_bytes(b'{"text": "c"}\n')
    return tmp_path


def test_files_keep_their_names(folder: Path) -> None:
    run(folder)
    assert names(folder) == ["a.jsonl", "c.jsonl", "sub__b.jsonl"]
    run(folder, compression="gz", fresh=True)
    assert names(folder) == ["a.jsonl.gz", "c.jsonl.gz", "sub__b.jsonl.gz"]


def test_two_files_with_one_name_are_told_apart(folder: Path) -> None:
    (folder / "in" / "a.jsonl").write_bytes(b'{"text": "A"}\n')
    run(folder)
    assert names(folder) == ["a.jsonl", "a~gz.jsonl", "c.jsonl", "sub__b.jsonl"]
    assert (folder / "out" / "a.jsonl").read_bytes() == b'{"text": "A"}\n'


def test_a_later_file_never_takes_the_name_of_a_finished_one(folder: Path) -> None:
    run(folder)
    (folder / "in" / "a.jsonl").write_bytes(b'{"text": "A"}\n')
    with pytest.raises(ResumeError, match=r"a\.jsonl\.gz was written as a\.jsonl, when no other input file") as caught:
        run(folder)
    assert "--fresh" in str(caught.value)
    assert (folder / "out" / "a.jsonl").read_bytes() == b'{"text": "a"}\n'
    run(folder, fresh=True)
    assert names(folder) == ["a.jsonl", "a~gz.jsonl", "c.jsonl", "sub__b.jsonl"]
    assert verify(folder / "out").ok


def test_an_output_with_marks_in_its_names_is_resumed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(partitions, "_MARK", re.compile(r"(?!)"))
        run(folder)
    assert names(folder) == ["a~gz.jsonl", "c.jsonl", "sub__b~json.jsonl"]
    (folder / "in" / "d.jsonl.gz").write_bytes(gzip.compress(b'{"text": "d"}\n'))
    assert run(folder).partitions_done_before == 3
    assert names(folder) == ["a~gz.jsonl", "c.jsonl", "d.jsonl", "sub__b~json.jsonl"]
    # A partition that is done again gets its new name, and leaves nothing under the old one.
    (folder / "in" / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "other"}\n'))
    run(folder)
    assert names(folder) == ["a.jsonl", "c.jsonl", "d.jsonl", "sub__b~json.jsonl"]
    assert verify(folder / "out").ok
