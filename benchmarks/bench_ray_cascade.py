"""The English cascade on Ray Data with two processors, against the local engine and NeMo Curator. Start-up excluded.

    python benchmarks/bench_ray_cascade.py [--files 'CORPUS/*.jsonl'] [--nemo PYTHON]

Each side runs over the input once and over six times the input; what the second run takes longer is the time for five
times the input, without anything that happens once. Best of the rounds, which take turns. Goals: at least 0.8 of the
local engine, at least 25 times NeMo Curator 1.4.0 on its own Ray Data executor (whose environment `--nemo` or
NEMO_PYTHON names; it gets two quarters of a file, and six times that). The files of both engines are compared too.
"""

from __future__ import annotations

import argparse
import glob
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from engine_runs import digest, make_files
from foundation_inputs import save
from ray_runs import linked, one_node

MORE = 6


def run(executor: Any, source: Path, output: Path) -> float:
    from gristmill.recipes import load_recipe
    from gristmill.recipes.loader import find_recipe

    variables = {"input_path": str(source), "output_path": str(output)}
    pipeline = load_recipe(find_recipe("english"), variables=variables).pipeline()
    begun = time.perf_counter()
    pipeline.run(executor=executor, progress=False, fresh=True)
    return time.perf_counter() - begun


def nemo_rate(python: str, files: list[Path], folder: Path) -> float:
    """Bytes per second of NeMo Curator, from the difference of two sizes as well."""
    program = str(Path(__file__).with_name("bench_filters_speed.py"))
    spent = []
    for copies in (1, MORE):
        source = folder / f"nemo-{copies}"
        source.mkdir()
        for number in range(2 * copies):
            size = files[0].stat().st_size // 4
            with files[0].open("rb") as whole:
                (source / f"{number}.jsonl").write_bytes(b"".join(whole.readlines(size)))
        begun = time.perf_counter()
        command = [python, program, "--role", "nemo", "--files", f"{source}/*.jsonl", "--output", f"{source}-out"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        spent.append(time.perf_counter() - begun)
    size = sum(path.stat().st_size for path in (folder / "nemo-1").iterdir())
    return size * (MORE - 1) / (spent[1] - spent[0])


def main() -> None:
    """Measure all sides and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nemo", default=os.environ.get("NEMO_PYTHON"))
    options = parser.parse_args()
    from gristmill.backends.local import LocalExecutor
    from gristmill.backends.ray_data import RayDataExecutor

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not options.files:
            make_files(folder / "made", megabytes=200, files=16)
        files = [Path(path) for path in sorted(glob.glob(options.files or f"{folder}/made/*.jsonl"))]
        sources = {copies: linked(files, folder / f"in-{copies}", copies) for copies in (1, MORE)}
        size = sum(path.stat().st_size for path in files)
        best: dict[tuple[str, int], float] = {}
        with one_node(cpus=2):
            engines = {
                "local": lambda: LocalExecutor(config={"num_cpus": 2}),
                "ray_data": RayDataExecutor,
            }
            for _ in range(options.rounds):
                for engine, make in engines.items():
                    for copies, source in sources.items():
                        seconds = run(make(), source, folder / f"{engine}-{copies}")
                        best[engine, copies] = min(seconds, best.get((engine, copies), seconds))
                        print(f"{engine} x{copies}: {seconds:.2f} s", file=sys.stderr)
        rates = {engine: size * (MORE - 1) / (best[engine, MORE] - best[engine, 1]) for engine in engines}
        result: dict[str, Any] = {
            "bytes": size,
            "seconds": {f"{engine} x{copies}": round(value, 3) for (engine, copies), value in best.items()},
            "steady_mb_per_s": {engine: round(rate / 1e6, 1) for engine, rate in rates.items()},
            "of_local_engine": round(rates["ray_data"] / rates["local"], 3),
            "same_files": digest(folder / f"local-{MORE}") == digest(folder / f"ray_data-{MORE}"),
            "goal": "of_local_engine at least 0.8, times_nemo at least 25",
        }
        if options.nemo:
            rate = nemo_rate(options.nemo, files, folder)
            result["nemo_mb_per_s"] = round(rate / 1e6, 3)
            result["times_nemo"] = round(rates["ray_data"] / rate, 1)
        save("ray_cascade", result)


if __name__ == "__main__":
    main()
