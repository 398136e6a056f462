"""How long does the viewer take to answer, on a million documents?

A real run over the shipped sample, repeated under new ids with every text cut to 400 characters, is served, and each
question is asked over HTTP as the page asks it, several times; the slowest answer counts. The peak memory is that of
the process that serves, which has made no run itself. A search in texts answers after 0.7 s with what it has found;
for it the share of the documents that one answer covers is reported.

    python benchmarks/bench_view.py --documents 1000000
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "view.json"
SAMPLE = ROOT / "src" / "gristmill" / "recipes" / "sample" / "sample.jsonl.gz"
CHARS = 400
REPEATS = 5


def write_corpus(folder: Path, documents: int, files: int) -> None:
    folder.mkdir(parents=True)
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"][:CHARS] for line in file]
    each = documents // files
    for part in range(files):
        with (folder / f"part-{part:05}.jsonl").open("w", encoding="utf-8") as file:
            for number in range(part * each, (part + 1) * each):
                record = {"id": f"doc-{number:08}", "url": f"https://example.org/{number}"}
                record["text"] = f"{number} {texts[number % len(texts)]}"
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


class Viewer:
    """`gristmill view` in a process of its own, asked over HTTP."""

    def __init__(self, output: Path) -> None:
        begun = time.monotonic()
        command = [sys.executable, "-m", "gristmill", "view", str(output), "--no-browser"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.start_seconds = time.monotonic() - begun
        found = re.search(r"127\.0\.0\.1:(\d+)/\?token=(\S+)", line)
        assert found is not None, line
        self.port = int(found[1])
        self.headers = {"Cookie": f"gristmill-view-{found[1]}={found[2]}"}

    def ask(self, path: str, **given: str) -> tuple[dict[str, Any], float, float]:
        """The answer, the seconds until it was there, and the processor seconds that the server took."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        before = psutil.Process(self.process.pid).cpu_times()
        begun = time.monotonic()
        connection.request("GET", f"/api/{path}?{urlencode(given)}", headers=self.headers)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        seconds = time.monotonic() - begun
        after = psutil.Process(self.process.pid).cpu_times()
        assert answer.status == 200, found
        return found, seconds, after.user + after.system - before.user - before.system

    def peak_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1000

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def measure(output: Path, documents: int) -> dict[str, Any]:
    viewer = Viewer(output)
    try:
        run, seconds, _ = viewer.ask("run")
        rare = min(run["reasons"], key=lambda one: one["documents"])
        common = max(run["reasons"], key=lambda one: one["documents"])
        last = run["sources"][-1]
        questions: dict[str, tuple[str, dict[str, str]]] = {
            "all, first page": ("search", {}),
            "kept, from the middle": ("search", {"status": "kept", "cursor": f"{_middle(run)}#7"}),
            "most frequent reason": ("search", {"stage": common["stage"], "reason": common["reason"]}),
            "least frequent reason": ("search", {"stage": rare["stage"], "reason": rare["reason"]}),
            "stage without any": ("search", {"stage": "no such stage"}),
            "score range, few": ("search", {"score_min": "49", "score_max": "49", "source": last}),
            "score range, none": ("search", {"score_min": "1e300"}),
            "score range, counted": ("count", {"score_min": "40"}),
            "kept, counted": ("count", {"status": "kept"}),
            "source, last file": ("search", {"source": last}),
            "id": ("find", {"name": f"doc-{documents - 1:08}"}),
            "URL": ("find", {"name": "https://example.org/5"}),
            "id that is not there": ("find", {"name": "unknown"}),
        }
        answers = {}
        for name, (path, given) in questions.items():
            taken = [viewer.ask(path, **given) for _ in range(REPEATS)]
            found = taken[0][0]
            answers[name] = {
                "hits": found.get("count", len(found.get("hits", ()))),
                "whole": found.get("cursor") is None or len(found.get("hits", ())) == 50,
                "slowest_s": round(max(one[1] for one in taken), 3),
                "median_s": round(statistics.median(one[1] for one in taken), 3),
                "processor_s": round(statistics.median(one[2] for one in taken), 3),
            }
        hits = viewer.ask("search", status="dropped")[0]["hits"]
        snippets = viewer.ask("snippets", refs="\n".join(hit["ref"] for hit in hits))
        document = viewer.ask("document", ref=f"{last.removesuffix('.jsonl')}#{documents // run['partitions'] - 1}")
        text, *_ = viewer.ask("search", text="no such words anywhere")
        return {
            "documents": run["documents"],
            "partitions": run["partitions"],
            "start_s": round(viewer.start_seconds, 2),
            "first_answer_s": round(seconds, 3),
            "questions": answers,
            "slowest_s": max(one["slowest_s"] for one in answers.values()),
            "snippets_of_a_page_s": round(snippets[1], 3),
            "last_document_of_a_partition_s": round(document[1], 3),
            "text_search_documents_per_answer": text["searched"],
            "peak_mb": round(viewer.peak_mb()),
        }
    finally:
        viewer.close()


def _middle(run: dict[str, Any]) -> str:
    return str(run["sources"][len(run["sources"]) // 2]).removesuffix(".jsonl")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--folder", type=Path, help="Where the run is kept for the next time.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        if not (folder / "out").exists():
            write_corpus(folder / "in", arguments.documents, arguments.files)
            run = [sys.executable, "-m", "gristmill", "run", "english", str(folder / "in"), str(folder / "out")]
            subprocess.run([*run, "--quiet"], check=True)
        found = measure(folder / "out", arguments.documents)
    facts = {"cores": os.cpu_count(), "python": platform.python_version(), **found}
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results[str(arguments.documents)] = facts
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
