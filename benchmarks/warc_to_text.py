"""Whole runs from WARC to text, for `bench_warc.py`: what is not extraction, how busy both cores are, and a peer."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

METHODS = ("fast", "resiliparse", "auto", "trafilatura", "justext")
"""The careful ones are measured on the first file only."""
_ROUNDS = 2
_MORE_COPIES = 5
"""How many times the pages the file has by which it is seen how busy cores are, so that the start counts for little."""
_SET_CHILD_SUBREAPER = 36
_RUN = """
import sys
from gristmill.backends.local import LocalExecutor
from gristmill.pipeline import Pipeline
from gristmill.stages.text.extraction import HtmlExtractor
from gristmill.stages.text.io import JsonlWriter, WarcReader

source, output, method = sys.argv[1:]
stages = [WarcReader(source, blocksize="8MB"), HtmlExtractor(method), JsonlWriter(output)]
report = Pipeline("text", stages=stages).run(LocalExecutor({"num_cpus": 2}), progress=False, report=False).report
print(report.rows_written)
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
    for method in METHODS:
        read = list(pages) if method in METHODS[:2] else [min(pages, key=lambda path: path.stat().st_size)]
        program = "import sys; from benchmarks.warc_to_text import print_shares; print_shares(*sys.argv[1:])"
        told = _output([sys.executable, "-c", program, method, *map(str, read)])
        result["outside_the_library"][method] = json.loads(told)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "pages.warc.gz"
        source.write_bytes(b"".join(path.read_bytes() for path in pages) * copies)
        _adopt_orphans()
        result["two_cores"] = _two_cores(source, Path(folder), datatrove_path)
        source.write_bytes(source.read_bytes() * _MORE_COPIES)
        result["two_cores"]["fast_on_a_larger_file"] = _timed(
            [sys.executable, "-c", _RUN, str(source), str(Path(folder) / "larger"), "fast"]
        )
    return result


def _adopt_orphans() -> None:
    """Let processes that outlive their parents become children of this one, so that their time is counted."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _two_cores(source: Path, folder: Path, datatrove_path: str | None) -> dict[str, Any]:
    ours = [_timed([sys.executable, "-c", _RUN, str(source), str(folder / "warm"), "fast"])]
    peer: list[dict[str, float]] = []
    for number in range(_ROUNDS):
        ours.append(_timed([sys.executable, "-c", _RUN, str(source), str(folder / f"out{number}"), "fast"]))
        if datatrove_path and not number:
            script = folder / "datatrove_run.py"
            script.write_text(_DATATROVE)
            command = [sys.executable, str(script), str(folder), source.name, str(folder / "datatrove")]
            peer.append(_timed(command, path=datatrove_path))
    best = min(ours[1:], key=lambda run: run["wall_seconds"])
    figures: dict[str, Any] = {"megabytes": round(source.stat().st_size / 1e6, 1), "fast": best}
    if peer:
        figures["datatrove"] = peer[0]
        for key in ("wall_seconds", "processor_seconds"):
            figures[f"times_datatrove_by_{key.partition('_')[0]}"] = round(peer[0][key] / best[key], 1)
    return figures


def _timed(command: list[str], path: str | None = None) -> dict[str, float]:
    """Wall and processor time of a program with all of its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    told = _output(command, path)
    wall = time.monotonic() - start
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)  # the server that forks workers, which ends a moment later
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    figures = {"wall_seconds": round(wall, 2), "processor_seconds": round(used, 2)}
    figures["busy_share_of_two_cores"] = round(used / wall / 2, 3)
    return figures | ({"pages": int(told)} if told.strip().isdigit() else {})


def _output(command: list[str], path: str | None = None) -> str:
    paths = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", ""), path or ""]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
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
    figures = {
        "pages": report.rows_read,
        "milliseconds_per_page": round(1000 * total / report.rows_read, 2),
        "outside_the_library": round(1 - spent["library"] / total, 3),
        "outside_the_extractor": round(1 - spent["extractor"] / total, 3),
    }
    print(json.dumps(figures))


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
