"""The test corpus in the repository: small, complete, and every file with its origin and licence."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tests.planted_corpus import similarity
from tools.make_test_corpus import CORPUS, FILES, MAX_BYTES, open_entries, origin, provenance


def committed() -> set[str]:
    return {path.relative_to(CORPUS).as_posix() for path in CORPUS.rglob("*") if path.is_file()}


def test_the_corpus_is_small() -> None:
    assert sum((CORPUS / name).stat().st_size for name in committed()) <= MAX_BYTES


def test_every_file_has_an_origin_a_licence_and_its_checksum() -> None:
    text = (CORPUS / "PROVENANCE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+) \| ([\d,]+) \| (.+) \| (.+) \| `(\w{16})` \|$", text, re.MULTILINE)
    assert [row[0] for row in rows] == list(FILES)
    assert committed() == {*FILES, "PROVENANCE.md"}
    for name, size, source, licence, digest in rows:
        data = (CORPUS / name).read_bytes()
        assert len(data) == int(size.replace(",", ""))
        assert hashlib.sha256(data).hexdigest().startswith(digest), name
        assert source == origin(name)
        assert re.search(r"public domain|CC-BY|ODC-BY|Apache-2\.0|MIT", licence), name


def test_the_tool_makes_the_committed_corpus(larger_data: Path) -> None:
    entries = open_entries(larger_data)
    assert (CORPUS / "PROVENANCE.md").read_text(encoding="utf-8") == provenance(entries)


@pytest.mark.parametrize(
    ("other", "expected"), [("a b c d e f", 1.0), ("a b c d e x", 1 / 3), ("A, b c d e f", 1.0), ("x", 0.0)]
)
def test_similarity_of_planted_documents(other: str, expected: float) -> None:
    assert similarity("a b c d e f", other) == pytest.approx(expected)
