"""The keys of JSONL files before a run: a plain look, for drivers without kernels, finds what kernels do, or passes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.reader.partitioning import _look
from gristmill.storage.json_records import JsonRecords
from gristmill.storage.jsonl_blocks import read_blocks

Keys = dict[str, set[str]]


def both(path: Path, wanted: set[str]) -> list[tuple[Keys | None, Keys]]:
    """What a look finds in each block of a file, and what kernels find."""
    found = []
    for partition in JsonlReader(str(path)).decompose()[0].partitions():
        for block in read_blocks(partition, block_bytes=1 << 20):
            good, _, _ = JsonRecords.scan(block.buffer, block.starts, block.ends, fields=list(wanted))
            keys = {name: good.kinds(name) if name in wanted else set() for name in good.keys()}  # noqa: SIM118
            found.append((_look(block, wanted), keys))
    return found


def test_real_texts(tmp_path: Path, shared_data: Path) -> None:
    for name in ("movie_reviews", "state_union", "dict_jargon"):
        with gzip.open(shared_data / "texts" / f"{name}.jsonl.gz", "rb") as source:
            (tmp_path / f"{name}.jsonl").write_bytes(source.read(3 << 20).rpartition(b"\n")[0] + b"\n")
    found = both(tmp_path, {"text", "label", "none of these"})
    assert len(found) > 5
    for looked, keys in found:
        assert looked is not None
        assert list(looked.items()) == list(keys.items())
        assert keys["text"] == {"text"}


@pytest.mark.parametrize(
    "lines",
    [
        [{"text": None}, {"text": "a\nb", "more": 1}],
        [{"text": 1}, {"text": 1.5}, {"text": True}, {"text": [1]}, {"text": {}}, {"text": 10**30}],
        ["", {"text": []}, "  "],
        [{"text": "a", "id": 3}, {"id": "b"}],
    ],
)
def test_plain_records(tmp_path: Path, lines: list[object]) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines))
    ((looked, keys),) = both(path, {"text"})
    assert looked == keys


@pytest.mark.parametrize("line", ['{"text": "\\ud800"}', '{"text": NaN}', "[1]", '{"text": "a"} b', '{"text": "\xff"}'])
def test_a_look_passes_where_a_line_is_no_plain_record(tmp_path: Path, line: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line.encode("latin-1") + b'\n{"text": "b"}\n')
    ((looked, _),) = both(path, {"text"})
    assert looked is None
