"""The source stays as small and plain as `tools/house.py` demands."""

from __future__ import annotations

import re

import pytest

from gristmill.ledger.record.shape import open_table
from tools.house import Measure, modules, name_sniffing, private_names, run_measures, static_measures


def missed(measures: list[Measure]) -> list[str]:
    return [f"{one.name}: {one.value} > {one.goal} {list(one.places[:20])}" for one in measures if not one.is_met]


def test_the_source_meets_its_goals() -> None:
    # What is counted and where it was found: make house
    assert missed(static_measures()) == []


def test_a_small_run_meets_its_goals() -> None:
    assert missed(run_measures()) == []


def test_the_measures_see_what_they_count() -> None:
    assert {"_columns", "_tracking"} <= private_names()
    assert len(modules()) > 200


def test_parquet_is_never_read_ahead_from_python_streams() -> None:
    # Arrow's thread could give the bytes back while the interpreter ends, which aborts the process: one small run in
    # six did on a busy machine.
    call = re.compile(r"ParquetFile\(|partial\(pq\.ParquetFile")
    opened = [path for path in modules() for line in path.read_text().splitlines() if call.search(line)]
    assert sorted(path.name for path in opened) == ["parquet_blocks.py", "shape.py"]
    assert open_table.keywords == {"pre_buffer": False}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("type(stage).__module__.startswith(PREFIX)", 1),
        ("name.startswith('gristmill.stages')", 1),
        ("OURS = ('gristmill.stages.', 'x')\nname.startswith(OURS)", 1),
        ("kind.__module__.split('.')[0] == 'gristmill'", 1),
        ("name.startswith('models--')", 0),
        ("import_module('gristmill.stages')", 0),
    ],
)
def test_name_sniffing_is_found(
    code: str, found: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("source")
    (folder / "one.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr("tools.house.SOURCE", folder)
    monkeypatch.setattr("tools.house.modules", lambda: (folder / "one.py",))
    assert len(name_sniffing()) == found
