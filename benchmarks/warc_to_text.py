"""Whole runs from WARC to text, for `bench_warc.py`: what is not extraction, how busy both cores are, and a peer."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

METHODS = ("fast", "resiliparse", "auto", "trafilatura", "justext")
"""The careful ones are measured on the smallest file only."""
WORKER_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
"""What the local executor sets for its workers, for a run without them."""
_ROUNDS = 2
_FILES, _FILE_COPIES = 30, 2
"""The crawl that shows how busy the cores are: the number of files, and of copies of the pages in each."""
_STEADY = (0.1, 0.9)
"""The part of a run that is neither its start nor its end."""
_SAMPLE_S = 0.1
_SET_CHILD_SUBREAPER = 36
_RUN = """
import sys
from gristmill.backends.local import LocalExecutor
from gristmill.pipeline import Pipeline
from gristmill.stages.text.extraction import HtmlExtractor
from gristmill.stages.text.io import JsonlWriter, WarcReader

source, output, cpus, blocksize = sys.argv[1:]
blocksize = None if blocksize == "None" else blocksize
stages = [WarcReader(source, blocksize=blocksize), HtmlExtractor("fast"), JsonlWriter(output)]
executor = LocalExecutor({"num_cpus": int(cpus)})
print(Pipeline("text", stages=stages).run(executor, progress=False, report=False).report.rows_written)
"""
_DATATROVE = """
import sys
import pylibmagic
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.readers import WarcReader
from datatrove.pipeline.writers import JsonlWriter

folder, name, output = sys.argv[1:]
steps = [WarcReader(folder, glob_pattern=name), Trafilatura(timeout=30), JsonlWriter(output, compression=None)]
if __name__ == "__main__":
    LocalPipelineExecutor(pipeline=steps, tasks=1, workers=1, logging_dir=output + ".logs").run()
"""


def measure_text(pages: Sequence[Path], copies: int, datatrove_path: str | None) -> dict[str, Any]:
    """All figures; `copies` times the pages are in the file that two cores and the peer get."""
    result: dict[str, Any] = {"outside_the_library": {}}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "pages.warc.gz"
        source.write_bytes(b"".join(path.read_bytes() for path in pages) * copies)
        for method in METHODS:
            read = source if method in METHODS[:2] else min(pages, key=lambda path: path.stat().st_size)
            program = "import sys; from benchmarks.warc_to_text import print_shares; print_shares(*sys.argv[1:])"
            told = _output([sys.executable, "-c", program, method, str(read)], WORKER_ENVIRONMENT)
            result["outside_the_library"][method] = json.loads(told)
        _adopt_orphans()
        result["same_file"] = _beside_datatrove(source, Path(folder), datatrove_path)
        source.unlink()
        result["fast_on_a_crawl"] = measure_crawl(pages)
    return result


def measure_crawl(pages: Sequence[Path]) -> dict[str, Any]:
    """How busy two cores are in a run of about a minute, on files of the size at which archives are split."""
    with tempfile.TemporaryDirectory() as folder:
        content = b"".join(path.read_bytes() for path in pages) * _FILE_COPIES
        crawl = Path(folder) / "crawl"
        crawl.mkdir()
        for number in range(_FILES):
            (crawl / f"{number:05d}.warc.gz").write_bytes(content)
        _adopt_orphans()
        return {"files": _FILES, "megabytes": round(_FILES * len(content) / 1e6, 1)} | _timed(
            _run(crawl, Path(folder) / "texts", 2, "None")
        )


def _adopt_orphans() -> None:
    """Let processes that outlive their parents become children of this one, so that their time is counted."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _run(source: Path, output: Path, cpus: int, blocksize: str = "8MB") -> list[str]:
    return [sys.executable, "-c", _RUN, str(source), str(output), str(cpus), blocksize]


def _beside_datatrove(source: Path, folder: Path, datatrove_path: str | None) -> dict[str, Any]:
    """`fast` with one worker and with two, in turns with datatrove, which reads one file in one process."""
    _timed(_run(source, folder / "warm", 2))
    ours: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    peer: list[dict[str, float]] = []
    for number in range(_ROUNDS):
        for cpus, runs in ours.items():
            runs.append(_timed(_run(source, folder / f"out{number}-{cpus}", cpus)))
        if datatrove_path and not number:
            script = folder / "datatrove_run.py"
            script.write_text(_DATATROVE)
            command = [sys.executable, str(script), str(folder), source.name, str(folder / "datatrove")]
            peer.append(_timed(command, path=datatrove_path))
    figures: dict[str, Any] = {"megabytes": round(source.stat().st_size / 1e6, 1)}
    for cpus, name in ((1, "one_worker"), (2, "two_workers")):
        figures[name] = min(ours[cpus], key=lambda run: run["wall_seconds"])
    if peer:
        figures["datatrove"] = peer[0]
        for name in ("one_worker", "two_workers"):
            for key in ("wall_seconds", "processor_seconds"):
                of = figures[name]
                of[f"times_datatrove_by_{key.partition('_')[0]}"] = round(peer[0][key] / of[key], 1)
    return figures


def _timed(command: list[str], path: str | None = None) -> dict[str, float]:
    """Wall and processor time of a program with all of its processes.

    `busy_share_of_two_cores` is what it got of both cores. `wanted_share_of_two_cores` also counts the time in which
    its threads waited for a core that another program had, so that it says the same on a busy machine; where more
    threads are ready than there are cores, it says 1. `steady_share_of_two_cores` is the same between the first and the
    last tenth of the time, without the start of the program and its last partition.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    with _Demand() as demand:
        told = _output(command, {"PYTHONPATH": path or ""})
    wall = time.monotonic() - start
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)  # the server that forks workers, which ends a moment later
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    figures = {"wall_seconds": round(wall, 2), "processor_seconds": round(used, 2)}
    figures["busy_share_of_two_cores"] = round(used / wall / 2, 3)
    figures["wanted_share_of_two_cores"] = round(demand.share(0, wall), 3)
    figures["steady_share_of_two_cores"] = round(demand.share(*(part * wall for part in _STEADY)), 3)
    return figures | ({"pages": int(told)} if told.strip().isdigit() else {})


class _Demand:
    """How long the threads of all processes below this one ran or were ready to run, looked up ten times a second."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], int] = {}
        self._begun = time.monotonic()
        self._samples = [(0.0, 0.0)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> _Demand:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def share(self, start: float, end: float) -> float:
        """Of two cores between two times, in seconds since the beginning; of each moment at most all."""
        wanted = took = 0.0
        for (before, seen), (now, more) in itertools.pairwise(self._samples):
            if start <= before < end:
                wanted += min(2 * (now - before), more - seen)
                took += now - before
        return wanted / took / 2

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            parents = {}
            for stat in Path("/proc").glob("[0-9]*/stat"):
                with contextlib.suppress(OSError):
                    parents[stat.parent.name] = stat.read_text().rpartition(")")[2].split()[1]
            below, more = {str(os.getpid())}, True
            while more:
                found = {process for process, parent in parents.items() if parent in below} - below
                below |= found
                more = bool(found)
            for process in below - {str(os.getpid())}:
                for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
                    with contextlib.suppress(OSError):
                        running, waiting, _ = map(int, thread.read_text().split())
                        self._seen[process, thread.parent.name] = running + waiting
            self._samples.append((time.monotonic() - self._begun, sum(self._seen.values()) / 1e9))


def _output(command: list[str], variables: dict[str, str]) -> str:
    paths = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH"), variables.get("PYTHONPATH")]
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, text=True)
    return done.stdout.splitlines()[-1] if done.stdout.strip() else ""


def print_shares(method: str, *sources: str) -> None:
    """Run in this process, with a clock around every call of an extraction library, and print where time went."""
    from gristmill.backends.local import LocalExecutor
    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.extraction import HtmlExtractor
    from gristmill.stages.text.io import JsonlWriter, WarcReader

    spent = _clocks()

    def run(paths: Sequence[str], **options: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            stages = [WarcReader(list(paths), **options), HtmlExtractor(method), JsonlWriter(f"{folder}/out")]
            pipeline = Pipeline("text", stages=stages)
            return pipeline.run(LocalExecutor({"num_cpus": 0}), progress=False, report=False).report

    run(sources, max_documents=5)  # imports and compiled kernels
    spent.update(dict.fromkeys(spent, 0.0))
    start = time.process_time()
    report = run(sources)
    total = time.process_time() - start
    reading = min(_read_bare(sources) for _ in range(3))
    figures = {
        "pages": report.rows_read,
        "milliseconds_per_page": round(1000 * total / report.rows_read, 2),
        "outside_the_library": round(1 - spent["library"] / total, 3),
        "outside_the_extractor": round(1 - spent["extractor"] / total, 3),
        "of_it_bare_reading": round(reading / total, 3),
    }
    print(json.dumps(figures))


def _read_bare(sources: Sequence[str]) -> float:
    """The processor time of FastWARC alone: every record decompressed, with headers and body as Python objects."""
    from fastwarc.warc import ArchiveIterator, WarcHeader

    start = time.process_time()
    for source in sources:
        with open(source, "rb", buffering=0) as raw:
            for record in ArchiveIterator(raw, parse_http=True, auto_decode="all"):
                record.headers.get(WarcHeader.WARC_TARGET_URI)
                record.reader.read()
    return time.process_time() - start


def _clocks() -> dict[str, float]:
    """Put a clock around the libraries' functions, and one around the stage that calls them."""
    import justext
    import resiliparse.extract.html2text as html2text
    import resiliparse.parse.html as parsing
    import trafilatura

    from gristmill.stages.text.extraction import HtmlExtractor

    spent = {"library": 0.0, "extractor": 0.0}

    def timed(function: Callable[..., Any], what: str = "library") -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent[what] += time.process_time() - start

        return call

    class Tree:
        parse = staticmethod(timed(parsing.HTMLTree.parse))

    parsing.HTMLTree = Tree
    html2text.extract_plain_text = timed(html2text.extract_plain_text)
    trafilatura.extract = timed(trafilatura.extract)
    justext.justext = timed(justext.justext)
    HtmlExtractor.process = timed(HtmlExtractor.process, "extractor")  # type: ignore[method-assign]
    return spent
