"""Whatever is done to whatever file of a finished run, verification finds it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetWriter
from gristmill.stages.text.modifiers import Modify, UrlRemover
from tests.outputs import copy_output, files_of
from tests.unit.pipeline.jobs import here, write_lines


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run in each format, with all kinds of records: decisions, changes, scores, both indexes and a quarantine."""
    folder = tmp_path_factory.mktemp("runs")
    for file in range(2):
        texts = ["word " * (row % 5 + 1) + ("https://example.org/x" if row % 3 == 0 else "") for row in range(8)]
        rows = [{"id": f"{file}-{row}", "url": f"u/{file}/{row}", "text": text} for row, text in enumerate(texts)]
        write_lines(folder / "in" / f"{file}.jsonl", [*rows, "{broken"])
    made = {}
    for name, writer in (("jsonl", JsonlWriter), ("parquet", ParquetWriter)):
        made[name] = folder / name
        stages = [Modify(UrlRemover()), ScoreFilter(WordCountFilter(min_words=3))]
        reader = JsonlReader(str(folder / "in"), files_per_partition=1)
        pipeline = Pipeline("job", stages=[reader, *stages, writer(str(made[name]))])
        pipeline.config["recipe"] = "name: job\n"
        pipeline.run(executor=here(), scores="all")
        report = verify(made[name])
        assert report.ok, report
        folders = {path.parent for path in files_of(made[name]).values()}
        assert len(folders) == 6, "data, record, manifest, ledger, index, quarantine"
    return made


def _flip(path: Path, place: float, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    path.write_bytes(data)


def _cut(path: Path, place: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(place * len(data))])


@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_everything_that_is_changed_is_found(
    runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = runs[data.draw(st.sampled_from(sorted(runs)))]
    names = sorted(name for name in files_of(whole) if "report.html" not in name)  # made from the others, at any time
    name = data.draw(st.sampled_from(names))
    how = data.draw(st.sampled_from(["flip", "cut", "add", "repeat", "remove", "copy", "swap", "replace"]))
    assume((name, how) != ("record/report.html", "remove"))  # a page may be deleted, and made again from the record
    output = copy_output(whole, tmp_path_factory.mktemp("tampered") / "out")
    files = files_of(output)
    path = files[name]
    place = data.draw(st.floats(0, 1, exclude_max=True))
    if how == "flip":
        _flip(path, place, data.draw(st.integers(0, 7)))
    elif how == "cut":
        _cut(path, place)
    elif how == "add":
        path.write_bytes(path.read_bytes() + data.draw(st.binary(min_size=1, max_size=3)))
    elif how == "repeat":
        path.write_bytes(path.read_bytes() * 2)
    elif how == "remove":
        path.unlink()
    elif how == "copy":
        shutil.copy(path, path.with_name(f"other-{path.name}"))
    else:
        other = files[data.draw(st.sampled_from([one for one in names if one != name]))]
        mine, theirs = path.read_bytes(), other.read_bytes()
        assume(mine != theirs)
        path.write_bytes(theirs)
        if how == "swap":
            other.write_bytes(mine)
    report = verify(output)
    shutil.rmtree(output.parent)
    assert not report.ok, (how, name)
