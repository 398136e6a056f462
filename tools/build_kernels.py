"""Compile every kernel for every level of this kind of processor, for a wheel to bring.

`python -m tools.build_kernels` fills `src/gristmill/kernels/compiled/`, from where `make wheel` takes the files. They
fit the Python, the numba and the llvmlite that this is run with. No level has to be one that this processor reaches:
nothing is run. What is compiled stays in the cache too, so that a second build is quick.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm

ROOT = Path(__file__).resolve().parent.parent
COMPILED = ROOT / "src" / "gristmill" / "kernels" / "compiled"


def build(level: str, folder: Path, kernels: list[str] | None = None) -> int:
    """Compile for a level on all cores and copy the files into a folder; returns how many there are.

    Args:
        level: A name of `gristmill.kernels.processor.LEVELS`.
        folder: Where the files go.
        kernels: Only these, as `module.function`.
    """
    # numba settles what it compiles for once in a process: each level has processes of its own.
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": ""}
    jobs = _jobs(kernels)
    command = [sys.executable, "-m", "gristmill.kernels.ahead", *map("|".join, jobs)]
    begun = [subprocess.Popen(command, env=environment, cwd=ROOT) for _ in range(os.cpu_count() or 1)]
    if sum(process.wait() != 0 for process in begun):
        raise SystemExit(f"Not all kernels could be compiled for {level}; see above.")
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tools.build_kernels", "--collect", str(folder), *map("|".join, jobs)]
    subprocess.run(command, env=environment, cwd=ROOT, check=True)
    return len(jobs)


def collect(folder: Path, jobs: list[list[str]]) -> None:
    """Copy the files of kernels for the level that this process compiles for."""
    from gristmill.kernels.compiler import stores

    for module in {name.partition(".")[0] for name, _ in jobs}:
        importlib.import_module(f"gristmill.kernels.{module}")
    by_name = {store.name: store for store in stores.values()}
    for name, signature in jobs:
        found = [path for path, header in by_name[name].files().items() if header["signature"] == signature]
        if not found:
            raise SystemExit(f"{name} ({signature}) is not in the cache. Can its folder be written to?")
        shutil.copyfile(found[0], folder / Path(found[0]).name)


def _jobs(kernels: list[str] | None) -> list[tuple[str, str]]:
    from gristmill.kernels.ahead import read_list

    return [(one.kernel, one.signature) for one in read_list() if kernels is None or one.kernel in kernels]


def main() -> None:
    """Build what is asked for."""
    from gristmill.kernels.processor import LEVELS

    architecture = llvm.get_process_triple().partition("-")[0]
    if not sys.platform.startswith("linux") or architecture not in LEVELS:
        raise SystemExit(f"Kernels ship for Linux on {' and '.join(LEVELS)}; this is {sys.platform} on {architecture}.")
    parser = argparse.ArgumentParser(description="Compile every kernel, for a wheel to bring.")
    parser.add_argument("--level", action="append", choices=list(LEVELS[architecture]), help="only this; repeatable")
    arguments = parser.parse_args()
    shutil.rmtree(COMPILED, ignore_errors=True)
    for level in arguments.level or LEVELS[architecture]:
        print(f"{level}: {build(level, COMPILED)} kernels", flush=True)
    print(f"{sum(path.stat().st_size for path in COMPILED.iterdir()) / 1e6:.1f} MB in {COMPILED.relative_to(ROOT)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--collect"]:
        collect(Path(sys.argv[2]), [job.split("|") for job in sys.argv[3:]])
    else:
        main()
