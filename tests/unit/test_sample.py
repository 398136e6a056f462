"""The shipped sample: complete records, enough junk for filters, small, and the same as its provenance says."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tools.make_sample import SOURCES, documents, pack, pieces


@pytest.fixture(scope="module")
def records(sample_path: Path) -> list[dict[str, Any]]:
    with gzip.open(sample_path, "rt", encoding="utf-8", newline="\n") as lines:
        return [json.loads(line) for line in lines]


def test_every_record_has_the_five_fields_as_text(records: list[dict[str, Any]]) -> None:
    for record in records:
        assert list(record) == ["id", "url", "text", "source", "lang"]
        assert all(isinstance(value, str) and value for value in record.values())


def test_ids_and_addresses_are_unique(records: list[dict[str, Any]]) -> None:
    assert len({record["id"] for record in records}) == len(records)
    assert len({record["url"] for record in records}) == len(records)


def test_there_is_something_to_drop_and_something_to_keep(records: list[dict[str, Any]]) -> None:
    short = sum(len(record["text"].split()) < 50 for record in records)
    foreign = sum(record["lang"] != "en" for record in records)
    assert 0.1 < short / len(records) < 0.7
    assert foreign >= 20


def test_the_file_is_small(sample_path: Path) -> None:
    assert sample_path.stat().st_size <= 1_000_000


def test_provenance_counts_the_documents(records: list[dict[str, Any]], sample_path: Path) -> None:
    text = sample_path.with_name("PROVENANCE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| ([\d,]+) \|", text, re.MULTILINE)
    stated = {name: int(count.replace(",", "")) for name, count in rows}
    assert stated == Counter(record["source"] for record in records)


def test_the_tool_makes_the_shipped_records(records: list[dict[str, Any]], shared_data: Path) -> None:
    made = [record for source in SOURCES for record in documents(source, shared_data)]
    assert sorted(made, key=lambda record: record["id"]) == sorted(records, key=lambda record: record["id"])


def test_pieces_lose_no_line() -> None:
    text = "one\ntwo\nthree\nfour"
    assert list(pieces(text, 5)) == ["one\ntwo", "three", "four"]


def test_packing_is_deterministic() -> None:
    record = {"id": "a", "text": "ü"}
    assert pack([record]) == pack([record])
    assert json.loads(gzip.decompress(pack([record]))) == record
