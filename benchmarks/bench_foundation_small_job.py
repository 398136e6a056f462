"""How long does a job of 1,000 documents take from the command line, beside datatrove with one worker?

Both sides read 1,000 real documents, keep those with enough words and not too many symbols, remove web addresses and
write the rest; each run is a new process, timed from outside after one run that fills the caches. The goal is at most
1.25 times the time of datatrove 0.10.1.

    python benchmarks/bench_foundation_small_job.py --peer PATH_TO_PEER_PYTHON [--repeat 5]

The peer's Python can also be given by the variable DATATROVE_PYTHON; without it only our side is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from foundation_inputs import best_of, make_input, save

RECIPE = """\
stages:
  - JsonlReader: {file_paths: "${folder}/in"}
  - WordCountFilter: {min_words: 5}
  - SymbolsToWordsFilter: {max_symbol_to_word_ratio: 0.1}
  - UrlRemover: {}
  - JsonlWriter: {path: "${folder}/out", mode: overwrite}
"""

PEER = """\
import re
import shutil
import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

ADDRESS = re.compile(r"https?://\\S+|www\\.\\S+", re.IGNORECASE)


def few_symbols(document):
    words = document.text.split()
    return (document.text.count("#") + document.text.count("...")) / max(1, len(words)) <= 0.1


class RemoveAddresses(PipelineStep):
    name = "remove addresses"

    def run(self, data, rank=0, world_size=1):
        for document in data:
            document.text = ADDRESS.sub("", document.text)
            yield document


if __name__ == "__main__":
    folder = sys.argv[1]
    shutil.rmtree(folder + "/peer", ignore_errors=True)
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(folder + "/in"),
            LambdaFilter(lambda document: len(document.text.split()) >= 5),
            LambdaFilter(few_symbols),
            RemoveAddresses(),
            JsonlWriter(folder + "/peer/data", compression=None),
        ],
        logging_dir=folder + "/peer/logs",
        tasks=1,
        workers=1,
    ).run()
"""


def main() -> None:
    """Run both sides in turns and keep the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default=os.environ.get("DATATROVE_PYTHON"))
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    # Compiled modules may be kept, as on any machine where the packages are installed.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_input(folder / "in" / "a.jsonl", documents=1000)
        (folder / "recipe.yaml").write_text(RECIPE)
        (folder / "peer.py").write_text(PEER)
        command = Path(sys.executable).with_name("gristmill")
        run = [str(command), "run", "--quiet", str(folder / "recipe.yaml")]

        def ours() -> None:
            subprocess.run([*run, "--set", f"folder={folder}"], check=True, env=environment)

        def peer() -> None:
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            command = [options.peer, str(folder / "peer.py"), str(folder)]
            subprocess.run(command, check=True, env=environment, **quiet)

        works = [ours, peer] if options.peer else [ours]
        for work in works:
            work()
        timed = best_of(options.repeat, *works)
        record = json.loads((folder / "out.gristmill" / "run.json").read_text())
        kept = sum(len(path.read_bytes().splitlines()) for path in (folder / "peer" / "data").glob("*"))
    result = {
        "documents": record["rows_read"],
        "kept": record["rows_written"],
        "kept_by_peer": kept or None,
        "gristmill": timed[0],
        "pipeline_wall_s": record["wall_seconds"],
        "goal": "at most 1.25 times datatrove",
    }
    if options.peer:
        result["datatrove_one_worker"] = timed[1]
        result["time_ratio_wall"] = round(timed[0]["wall_s"] / timed[1]["wall_s"], 3)
        result["time_ratio_cpu"] = round(timed[0]["cpu_s"] / timed[1]["cpu_s"], 3)
    save("foundation_small_job", result)


if __name__ == "__main__":
    main()
