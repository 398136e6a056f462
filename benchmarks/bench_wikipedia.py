"""Wikipedia's pages as text: how fast, and how close to what a reader sees, beside a plain mwparserfromhell loop?

    pip download --no-deps --only-binary :all: gensim -d /tmp/wiki
    python benchmarks/bench_wikipedia.py --wheel /tmp/wiki/gensim-*.whl

The wheel of gensim brings real pages of English Wikipedia as test data. Measured are

- conversion alone: both converters in turns on the same articles, in one process, in processor time;
- a whole dump on two cores: the articles, repeated, as a multistream dump of MediaWiki. Gristmill reads and writes it
  with two workers; two processes with every other stream each unpack, parse, convert with mwparserfromhell, and write;
- the text: word-F1 against seven pages checked by hand (`tests/data/wikipedia`), and on all articles how much markup is
  left per 1000 characters, outside formulas and code.
"""

from __future__ import annotations

import argparse
import bz2
import json
import multiprocessing
import os
import platform
import re
import resource
import shutil
import statistics
import tempfile
import time
import xml.etree.ElementTree as ET
import zipfile
from collections import Counter
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import mwparserfromhell

from gristmill.backends.local import LocalExecutor
from gristmill.pipeline import Pipeline
from gristmill.stages.text.io.reader.wikipedia import WikipediaReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.storage.bz2_streams import index_path
from gristmill.storage.mediawiki_dump import Page, read_pages
from gristmill.wikitext import page_kind, to_text

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "wikipedia.json"
DATA = ROOT / "tests" / "data" / "wikipedia"
DUMPS = ("enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2", "enwiki-table-markup.xml.bz2")
MARKUP = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|''|^\s*[|!]|\{\||\|\}|<ref|<br|<small|&nbsp;|\bthumb\||\b(?:Category|File|Image):|__[A-Z]+__"
    r"|^\s*\||\b(?:style|class|align|width|colspan|rowspan)=",
    re.MULTILINE,
)
PAGES_PER_STREAM = 100


def theirs(wikitext: str) -> str:
    return str(mwparserfromhell.parse(wikitext).strip_code())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=10, help="How often the pages are in the dump.")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench_wikipedia_"))
    try:
        pages = real_pages(options.wheel, folder)
        articles = [page for page in pages if not page.redirect]
        result = {
            "machine": {
                "cpus": os.cpu_count(),
                "load_1m": round(os.getloadavg()[0], 1),
                "python": platform.python_version(),
                "mwparserfromhell": mwparserfromhell.__version__,
            },
            "articles": len(articles),
            "megacharacters": round(sum(len(page.wikitext) for page in articles) / 1e6, 2),
            "conversion": conversion(articles, options.rounds),
            "dump_on_two_cores": whole_dump(pages, folder, options.repeat),
            "text": text_quality(articles),
        }
    finally:
        shutil.rmtree(folder)
    RESULT.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(result, indent=2, ensure_ascii=False))


def real_pages(wheel: Path, folder: Path) -> list[Page]:
    """The pages of both excerpts."""
    pages: list[Page] = []
    with zipfile.ZipFile(wheel) as archive:
        for name in DUMPS:
            path = folder / name
            path.write_bytes(archive.read(f"gensim/test/test_data/{name}"))
            pages += [page for page in read_pages(str(path)) if isinstance(page, Page)]
    return pages


def conversion(articles: list[Page], rounds: int) -> dict[str, Any]:
    """Both converters in turns, page by page; the shortest processor time of each page."""
    converters: dict[str, Callable[[str], str]] = {"gristmill": to_text, "mwparserfromhell": theirs}
    best = {name: [float("inf")] * len(articles) for name in converters}
    for _ in range(rounds):
        for at, page in enumerate(articles):
            for name, convert in converters.items():
                started = time.process_time()
                convert(page.wikitext)
                best[name][at] = min(best[name][at], time.process_time() - started)
    size = sum(len(page.wikitext) for page in articles) / 1e6
    seconds = {name: sum(times) for name, times in best.items()}
    return {
        **{f"{name}_megacharacters_per_second": round(size / value, 2) for name, value in seconds.items()},
        "times_as_fast": round(seconds["mwparserfromhell"] / seconds["gristmill"], 1),
        "slowest_page_times_as_fast": round(
            min(old / new for old, new in zip(best["mwparserfromhell"], best["gristmill"], strict=True) if new > 1e-4),
            1,
        ),
    }


def whole_dump(pages: list[Page], folder: Path, repeat: int) -> dict[str, Any]:
    """A dump from bzip2 to JSONL, by two workers and by two processes of a plain loop."""
    dump = folder / "enwiki-20240101-pages-articles-multistream.xml.bz2"
    offsets = write_dump(dump, pages * repeat)
    size = dump.stat().st_size
    own, report = [], None
    for cores in (2, 0):  # without workers, every second of processor time is seen
        started, spent = time.perf_counter(), processor_seconds()
        reader = WikipediaReader(str(dump), blocksize=size // 8, kinds=["article", "list", "disambiguation"])
        pipeline = Pipeline("wikipedia", stages=[reader, JsonlWriter(str(folder / f"out{cores}"))])
        report = pipeline.run(executor=LocalExecutor({"num_cpus": cores}), progress=False).report
        own.append((time.perf_counter() - started, processor_seconds() - spent))
    assert report is not None
    ours = own[0][0], own[1][1]
    started, spent = time.perf_counter(), processor_seconds()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        borders = list(zip(offsets, [*offsets[1:], size], strict=True))
        counts = pool.starmap(plain_loop, [(str(dump), borders[at::2], str(folder / f"{at}.jsonl")) for at in (0, 1)])
        pool.close()
        pool.join()
    plain = time.perf_counter() - started, processor_seconds() - spent
    assert sum(counts) == report.rows_written, (counts, report.rows_written)
    return {
        "megabytes_stored": round(size / 1e6, 1),
        "documents": report.rows_written,
        "gristmill": {"seconds": round(ours[0], 2), "processor_seconds_in_one_process": round(ours[1], 2)},
        "plain_loop": {"seconds": round(plain[0], 2), "processor_seconds": round(plain[1], 2)},
        "times_as_fast": round(plain[0] / ours[0], 1),
        "times_less_processor": round(plain[1] / ours[1], 1),
    }


def processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def write_dump(path: Path, pages: list[Page]) -> list[int]:
    """A multistream dump with its index; where its streams with pages begin."""
    head = (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="en">\n'
        "<siteinfo><base>https://en.wikipedia.org/wiki/Main_Page</base></siteinfo>\n"
    )
    offsets, lines = [], []
    with path.open("wb") as file:
        file.write(bz2.compress(head.encode()))
        for first in range(0, len(pages), PAGES_PER_STREAM):
            offsets.append(file.tell())
            group = pages[first : first + PAGES_PER_STREAM]
            lines += [f"{offsets[-1]}:{first + at}:{page.title}\n" for at, page in enumerate(group)]
            file.write(bz2.compress("".join(page_xml(first + at, page) for at, page in enumerate(group)).encode()))
        file.write(bz2.compress(b"</mediawiki>\n"))
    index = index_path(str(path))
    assert index is not None
    Path(index).write_bytes(bz2.compress("".join(lines).encode()))
    return offsets


def page_xml(number: int, page: Page) -> str:
    redirect = '<redirect title="x" />' if page.redirect else ""
    return (
        f"<page><title>{escape(page.title)}</title><ns>{page.namespace}</ns><id>{number}</id>{redirect}<revision>"
        f"<timestamp>{page.timestamp}</timestamp><text>{escape(page.wikitext)}</text></revision></page>\n"
    )


def plain_loop(dump: str, streams: list[tuple[int, int]], output: str) -> int:
    """What people write: unpack, parse, strip the code, write."""
    count = 0
    with open(dump, "rb") as file, open(output, "w", encoding="utf-8") as out:
        for start, end in streams:
            file.seek(start)
            xml = bz2.BZ2Decompressor().decompress(file.read(end - start)).decode()
            for page in ET.fromstring(f"<pages>{xml}</pages>"):
                wikitext = page.findtext("revision/text") or ""
                title = page.findtext("title") or ""
                if page.find("redirect") is not None or page_kind(title, wikitext) == "redirect":
                    continue
                out.write(json.dumps({"id": page.findtext("id"), "title": title, "text": theirs(wikitext)}) + "\n")
                count += 1
    return count


def text_quality(articles: list[Page]) -> dict[str, Any]:
    by_title = {page.title: page for page in articles}
    f1: dict[str, list[float]] = {"gristmill": [], "mwparserfromhell": []}
    lost: dict[str, int] = dict.fromkeys(f1, 0)
    words = 0
    for path in sorted((DATA / "visible").iterdir()):
        wanted = Counter(re.findall(r"\w+", path.read_text()))
        words += wanted.total()
        wikitext = by_title[path.stem.replace("_", " ")].wikitext
        for name, text in (("gristmill", to_text(wikitext)), ("mwparserfromhell", theirs(wikitext))):
            found = Counter(re.findall(r"\w+", text))
            f1[name].append(2 * (found & wanted).total() / (found.total() + wanted.total()))
            lost[name] += (wanted - found).total()
    left: dict[str, Any] = {}
    for name, convert in (("gristmill", to_text), ("mwparserfromhell", theirs)):
        texts = [re.sub(r"\$[^$\n]*\$", "", convert(page.wikitext)) for page in articles]
        chars = sum(map(len, texts))
        left[name] = {
            "characters": chars,
            "markup_per_1000_characters": round(1000 * sum(len(MARKUP.findall(text)) for text in texts) / chars, 3),
        }
    return {
        name: {
            "word_f1_mean_of_7_pages": round(statistics.mean(f1[name]), 4),
            "word_f1_least": round(min(f1[name]), 4),
            "visible_words_lost_percent": round(100 * lost[name] / words, 2),
            **left[name],
        }
        for name in f1
    }


if __name__ == "__main__":
    main()
