"""What does reading web archives cost, beside the library that reads them and the one that extracts text?

    python benchmarks/bench_warc.py [--rounds 7] [--stream-gb 10] [--only text|crawl|stream] [--datatrove-path FOLDER]

On the real pages of ../shared/data/extraction and on a WET file made of them, in one process and in turns; the
shortest processor time of several rounds counts.

- Libraries: FastWARC and warcio, every record with its headers and body.
- WET: rows with all their columns, beside FastWARC alone (each text and its URL as Python objects).
- WARC: rows, beside FastWARC alone and beside fast extraction (resiliparse), so that the share of all else is known.
- Text: WARC to JSONL with `HtmlExtractor` (`warc_to_text.py`). For each method, which share of the time of a whole run
  is spent outside the extraction library and outside the extractor, and how much of that a bare FastWARC loop takes;
  how busy two cores are, from start to end and in between (`--only crawl`, a minute on an idle machine); and, on the
  same file in turns, datatrove's reader and default extractor. That needs packages
  beside datatrove's own (faust-cchardet, python-magic, pylibmagic) in a folder: `pip install --no-deps --target
  FOLDER …`.
- Stream: how much memory a stream of 10 GB takes (`--stream-gb`).
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gristmill.storage.partitions import FileRange, Partition
from gristmill.storage.row_blocks import read_row_blocks
from gristmill.storage.row_formats import reading_of, warc_rows

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from fastwarc.warc import ArchiveIterator, WarcHeader
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding
import warcio.archiveiterator

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.warc_to_text import measure_crawl, measure_text  # noqa: E402

DATA = ROOT.parent / "shared" / "data"
_WET_COPIES = 10
_CONVERSION = 128
RESULT = ROOT / "benchmarks" / "results" / "warc.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--stream-gb", type=float, default=10)
    parser.add_argument(
        "--only", choices=["text", "crawl", "stream"], help="Measure this part and keep the other results."
    )
    parser.add_argument("--copies", type=int, default=4, help="How often the real pages are in the file for text.")
    parser.add_argument("--datatrove-path", default=os.environ.get("DATATROVE_PATH"))
    options = parser.parse_args()
    pages = sorted((DATA / "extraction").glob("*.warc.gz"))
    result: dict[str, Any] = {
        "machine": {
            "cpus": os.cpu_count(),
            "load_1m": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
        }
    }
    if options.only:
        machine, result = result["machine"], json.loads(RESULT.read_text())
        if options.only == "text":
            measured = result["text"] = measure_text(pages, options.copies, options.datatrove_path)
        elif options.only == "crawl":
            measured = result["text"]["fast_on_a_crawl"] = measure_crawl(pages)
        else:
            measured = result["stream"] = stream_memory(options.stream_gb)
        measured["machine"] = machine
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
        print(json.dumps(measured, indent=2))
        return
    with tempfile.TemporaryDirectory() as folder:
        wet = make_wet(Path(folder) / "pages.warc.wet.gz", pages)
        result["libraries"] = in_turns(
            {"fastwarc": lambda: by_fastwarc(pages), "warcio": lambda: by_warcio(pages)}, options.rounds
        )
        result["wet"] = in_turns(
            {"fastwarc": lambda: texts_by_fastwarc(wet), "gristmill": lambda: by_rows([wet])}, options.rounds
        )
        result["wet"]["of_the_library"] = round(result["wet"]["fastwarc"] / result["wet"]["gristmill"], 3)
        warc = in_turns(
            {
                "fastwarc": lambda: by_fastwarc(pages),
                "gristmill": lambda: by_rows(pages),
                "extraction": lambda: extracted(pages),
            },
            max(2, options.rounds // 2),
        )
        warc["all_else_of_rows_and_extraction"] = round(
            (warc["gristmill"] - warc["fastwarc"]) / (warc["gristmill"] + warc["extraction"]), 4
        )
        warc["reading_of_rows_and_extraction"] = round(warc["gristmill"] / (warc["gristmill"] + warc["extraction"]), 4)
        result["warc"] = warc
    result["text"] = measure_text(pages, options.copies, options.datatrove_path)
    if options.stream_gb:
        result["stream"] = stream_memory(options.stream_gb)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def in_turns(programs: dict[str, Callable[[], tuple[int, int]]], rounds: int) -> dict[str, Any]:
    """The shortest processor time of each, and what it read."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    found: dict[str, Any] = {}
    for _ in range(rounds):
        for name, program in programs.items():
            start = time.process_time()
            found[name] = program()
            times[name].append(time.process_time() - start)
    assert len({seen[0] for seen in found.values()}) == 1, found
    records, size = next(iter(found.values()))
    return {
        "records": records,
        "megabytes": round(size / 1e6, 1),
        **{name: round(min(t), 4) for name, t in times.items()},
    }


def make_wet(path: Path, pages: list[Path]) -> Path:
    """A WET file made of real pages as Common Crawl makes them: all text of each, navigation and all; several times."""
    texts = []
    for body in _bodies(pages):
        page = bytes_to_str(body, detect_encoding(body))
        texts.append(extract_plain_text(page, main_content=False, alt_texts=False).encode())
    with path.open("wb") as file:
        file.write(gzip.compress(_record("warcinfo", 0, b"software: bench\r\n")))
        for number in range(1, _WET_COPIES * len(texts) + 1):
            file.write(gzip.compress(_record("conversion", number, texts[number % len(texts)]), 6))
    return path


def _record(kind: str, number: int, block: bytes) -> bytes:
    return (
        (
            f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: https://example.org/pages/{number}.html\r\n"
            f"WARC-Date: 2026-01-02T03:04:05Z\r\nWARC-Record-ID: <urn:uuid:00000000-0000-4000-8000-{number:012d}>\r\n"
            f"WARC-Refers-To: <urn:uuid:00000000-0000-4000-9000-{number:012d}>\r\n"
            f"WARC-Block-Digest: sha1:{number:032d}\r\nWARC-Identified-Content-Language: eng\r\n"
            f"Content-Type: text/plain\r\nContent-Length: {len(block)}\r\n\r\n"
        ).encode()
        + block
        + b"\r\n\r\n"
    )


def by_fastwarc(paths: list[Path]) -> tuple[int, int]:
    count = size = 0
    for path in paths:
        with path.open("rb", buffering=0) as raw:
            for record in ArchiveIterator(raw, parse_http=True, auto_decode="all"):
                record.headers.get(WarcHeader.WARC_TARGET_URI)
                body = record.reader.read()
                count += 1
                size += len(body)
    return count, size


def by_warcio(paths: list[Path]) -> tuple[int, int]:
    count = size = 0
    for path in paths:
        with path.open("rb") as raw:
            for record in warcio.archiveiterator.ArchiveIterator(raw):
                record.rec_headers.get_header("WARC-Target-URI")
                body = record.content_stream().read()
                count += 1
                size += len(body)
    return count, size


def texts_by_fastwarc(path: Path) -> tuple[int, int]:
    count = size = 0
    with path.open("rb", buffering=0) as raw:
        for record in ArchiveIterator(raw, parse_http=False):
            if record.record_type == _CONVERSION:
                record.headers.get(WarcHeader.WARC_TARGET_URI)
                text = record.reader.read().decode()
                count += 1
                size += len(text)
    return count, size


def _tables(paths: list[Path]) -> Any:
    """The rows as a reader passes them to the next stage: blocks of 16 MB whose texts are UTF-8."""
    for path in paths:
        part = FileRange(str(path), path.name, path.stat().st_size, "", 0, -1, True, reading_of("warc", {}))
        for block in read_row_blocks(Partition(0, path.name, (part,))):
            yield block.table


def by_rows(paths: list[Path]) -> tuple[int, int]:
    rows = size = 0
    for table in _tables(paths):
        rows += table.num_rows
        size += table.nbytes
    return rows, size


def extracted(paths: list[Path]) -> tuple[int, int]:
    """The time of extraction alone: reading is not counted, by being done before."""
    count = size = 0
    for body in _bodies(paths):
        page = bytes_to_str(body, detect_encoding(body))
        size += len(extract_plain_text(page, main_content=True))
        count += 1
    return count, size


_HELD: list[bytes] = []


def _bodies(paths: list[Path]) -> list[bytes]:
    if not _HELD:
        for table in _tables(paths):
            _HELD.extend(table.column("html").to_pylist())
    return _HELD


def stream_memory(gigabytes: float) -> dict[str, Any]:
    """Peak memory of a process that reads a WARC of this many gigabytes."""
    program = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]; import benchmarks.bench_warc as b; b.read_stream({gigabytes})"
    )
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return dict(json.loads(run.stdout))


class _Endless(io.RawIOBase):
    """A WARC of many gigabytes that is never stored: the same records repeatedly."""

    def __init__(self, piece: bytes, size: int) -> None:
        self._piece, self._size, self._at = piece, size - size % len(piece), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        place = self._at % len(self._piece)
        given = self._piece[place : place + size][: self._size - self._at]
        self._at += len(given)
        return given


def peak_kilobytes() -> int:
    """The largest memory of this process; `getrusage` would tell that of the one that started it, if it was larger."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def read_stream(gigabytes: float) -> None:
    """Read it and print figures; the memory after the first hundredth is what it takes anyway."""
    piece = (DATA / "extraction" / "trafilatura_eval.warc.gz").read_bytes()
    stream = _Endless(piece, int(gigabytes * 1e9))
    warc_rows.open_raw = lambda path, storage_options=None: stream
    part = FileRange("stream.warc.gz", "stream.warc.gz", 0, "", 0, -1, True, reading_of("warc", {}))
    rows = early = 0
    start = time.process_time()
    for block in read_row_blocks(Partition(0, "stream", (part,))):
        rows += block.table.num_rows
        assert not block.bad
        if not early and stream.tell() > gigabytes * 1e7:
            early = peak_kilobytes()
    figures = {
        "stored_gigabytes": gigabytes,
        "rows": rows,
        "peak_megabytes_after_a_hundredth": round(early / 1024, 1),
        "peak_megabytes": round(peak_kilobytes() / 1024, 1),
        "processor_seconds": round(time.process_time() - start, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
