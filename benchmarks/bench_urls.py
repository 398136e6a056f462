"""How fast are the URL rules and the normaliser, against a plain Python loop that does the same?

    python benchmarks/bench_urls.py [--urls 200000] [--entries 5000000]

URLs are those of the pages in ../shared/data/extraction, repeated with other hosts, paths and queries, so that one in
ten is on the list. The list has as many domains as the UT1 list of adult sites or more. Loop and kernels take turns in
one process and are compared by processor time; what both say is compared too. The loop holds the list in a Python set,
splits with `urllib.parse.urlsplit` and walks over the labels of each host; it resolves no dots and decodes no hosts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import random
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pyarrow as pa

from gristmill.kernels.text_column import text_column
from gristmill.stages.text.filters.url.adult_terms import SEQUENCES, SOFT_WORDS, WORDS
from gristmill.stages.text.filters.url.filters import NOT_TEXT
from gristmill.stages.text.filters.url.lists import read_table
from gristmill.stages.text.filters.url.stage import UrlRules
from gristmill.stages.text.modifiers.url import DROPPED_PARAMETERS, UrlNormalizer

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "urls.json"
PAGES = ROOT.parent / "shared" / "data" / "extraction"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--urls", type=int, default=200_000)
    parser.add_argument("--entries", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "domains")
        with listed.open("w") as file:
            file.writelines(f"site{number:x}.example\n" for number in range(options.entries))
        urls = made_urls(options.urls, options.entries)
        before = psutil.Process().memory_info().rss
        begun = time.process_time()
        table = read_table((str(listed),), ())
        loading = time.process_time() - begun
        grown = psutil.Process().memory_info().rss - before
        domains = set(listed.read_text().split())
        rules = UrlRules(block_lists=str(listed), max_chars=None, allow_ip_address=True)
        column = pa.array(urls, pa.large_string())
        batches = [text_column(column.slice(at, 10_000)) for at in range(0, len(urls), 10_000)]

        def kernels() -> pa.Array:
            return pa.concat_arrays([pa.array(rules.filters.evaluate(batch).kept) for batch in batches])

        def loop() -> pa.Array:
            return pa.array([keep(url, domains) for url in urls])

        normalizer = UrlNormalizer()
        filtering = compare(kernels, loop, options.rounds)
        normalising = compare(
            lambda: normalizer.modify_column(column), lambda: pa.array(map(normal, urls)), options.rounds
        )
    result = {
        "machine": {
            "cpus": os.cpu_count(),
            "load_1m": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
        },
        "urls": len(urls),
        "entries": options.entries,
        "list": {
            "seconds_to_load": round(loading, 2),
            "table_megabytes": round(table.nbytes / 1e6, 1),
            "grown_megabytes": round(grown / 1e6, 1),
        },
        "rules": filtering,
        "normalising": normalising,
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def made_urls(count: int, entries: int) -> list[str]:
    """URLs of real pages, with hosts and paths varied."""
    real: list[str] = []
    for file in sorted(PAGES.glob("*.warc.gz")):
        with gzip.open(file, "rb") as opened:
            real += [line[17:].strip().decode() for line in opened if line.startswith(b"WARC-Target-URI:")]
    if not real:
        raise SystemExit(f"There are no pages in {PAGES}.")
    rng = random.Random(1)
    found = []
    for number in range(count):
        url = rng.choice(real)
        if number % 10 == 0:
            url = f"https://www.site{rng.randrange(entries):x}.example/{url.rpartition('/')[2]}"
        elif number % 3 == 0:
            url += f"?utm_source={number}&page={number}"
        found.append(url)
    return found


def keep(url: str, domains: set[str]) -> bool:
    """The rules in plain Python."""
    host = urlsplit(url).hostname or ""
    last = urlsplit(url).path.rpartition("/")[2]
    if "." in last and last.rpartition(".")[2].lower() in EXTENSIONS:
        return False
    labels = host.split(".")
    if any(".".join(labels[at:]) in domains for at in range(len(labels))):
        return False
    text = url.partition("://")[2].lower()
    words = set(re.split(r"[^a-z0-9\x80-\U0010ffff]+", text))
    joined = re.sub(r"[^a-z0-9\x80-\U0010ffff]", "", text)
    if words & STRICT or len(words & SOFT) > 1:
        return False
    return SEQUENCE.search(joined) is None


def normal(url: str) -> str:
    """What most of the rules of the normaliser come to for the URLs here, in plain Python."""
    parts = urlsplit(url.strip())
    kept = [piece for piece in parts.query.split("&") if piece and not DROPPED.match(piece.partition("=")[0])]
    path = re.sub(r"%([0-9a-fA-F]{2})", _decoded, parts.path).rstrip("/") or "/"
    path = re.sub(r"[^!$%&-;=@-Z_a-z~\[\]]", _encoded, path)
    query = re.sub(r"[^!$%&-;=?@-Z_a-z~\[\]]", _encoded, re.sub(r"%([0-9a-fA-F]{2})", _decoded, "&".join(kept)))
    fragment = f"#{parts.fragment}" if parts.fragment.startswith("!") else ""
    return f"{parts.scheme}://{parts.netloc.lower()}{path}{'?' + query if query else ''}{fragment}"


def _decoded(match: re.Match[str]) -> str:
    char = chr(int(match[1], 16))
    return char if re.fullmatch(r"[A-Za-z0-9\-._~]", char) else match[0].upper()


def _encoded(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode())


STRICT, SOFT, EXTENSIONS = set(WORDS), set(SOFT_WORDS), set(NOT_TEXT)
SEQUENCE = re.compile("|".join(SEQUENCES))
_NAMES = "|".join(re.escape(name.rstrip("*")) + (".*" if name.endswith("*") else "") for name in DROPPED_PARAMETERS)
DROPPED = re.compile(rf"(?:{_NAMES})\Z", re.IGNORECASE)


def compare(one: Callable[[], pa.Array], other: Callable[[], pa.Array], rounds: int) -> dict[str, float]:
    """The shortest processor times of both, in turns, and whether they say the same."""
    differing = sum(mine != plain for mine, plain in zip(one().to_pylist(), other().to_pylist(), strict=True))
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for place, work in enumerate((one, other)):
            begun = time.process_time()
            work()
            times[place].append(time.process_time() - begun)
    count = len(one())
    return {
        "differing": differing,
        "urls_per_second": round(count / min(times[0])),
        "loop_urls_per_second": round(count / min(times[1])),
        "ratio": round(min(times[1]) / min(times[0]), 1),
    }


if __name__ == "__main__":
    main()
