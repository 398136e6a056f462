"""A wheel brings compiled kernels, which are used where they fit; results are the same where they are compiled here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gristmill.kernels.ahead import EVERYBODY, read_list
from gristmill.kernels.store import LEVEL, SUFFIX
from tools.build_kernels import build

ROOT = Path(__file__).resolve().parents[2]
USERS = {EVERYBODY, "WordCountFilter", "WhiteSpaceFilter", "LinearModelStage"}
RUN = """
import hashlib, json, sys
from pathlib import Path
import gristmill
from gristmill import Pipeline
from gristmill.backends.local import LocalExecutor
from gristmill.kernels.compiler import compile_listeners
from gristmill.recipes.loader import SAMPLE_FILE
from gristmill.stages.text.classifiers import LinearClassifier
from gristmill.stages.text.filters import ScoreFilter, WhiteSpaceFilter, WordCountFilter
from gristmill.stages.text.io import DocumentReader, DocumentWriter

compiled = []
compile_listeners.append(compiled.append)
stages = [
    ScoreFilter(WordCountFilter(min_words=20), score_field="words"),
    ScoreFilter(WhiteSpaceFilter(), score_field="spaces"),
    LinearClassifier(model_path="shipped:text_kind", score_field="scores"),
]
pipeline = Pipeline("shipped")
for stage in (DocumentReader(str(SAMPLE_FILE)), *stages, DocumentWriter("out/", "jsonl", compression="none")):
    pipeline.add_stage(stage)
pipeline.run(LocalExecutor({"num_cpus": int(sys.argv[1])}), progress=False)
written = b"".join(path.read_bytes() for path in sorted(Path("out").glob("*.jsonl*")))
place = Path(gristmill.__file__).parents[1]
print(json.dumps([sorted(compiled), hashlib.sha256(written).hexdigest(), len(written), str(place)]))
"""
# One small kernel, which says whether it was compiled.
ONE = """
import sys
exec(sys.argv[1])
import numpy as np
from gristmill.kernels.compiler import compile_listeners
from gristmill.kernels.vector_search import chain_ends
compile_listeners.append(lambda name: print("compiles", name))
print(chain_ends(np.array([0, 0, 1, 2, 3])).tolist())
"""
LOADED, COMPILED = "[0, 0, 0, 0, 0]\n", "compiles chain_ends\n[0, 0, 0, 0, 0]\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with the kernels of a small pipeline, for this level of processors."""
    project = tmp_path_factory.mktemp("project")
    assert LEVEL is not None
    wanted = [one.kernel for one in read_list() if not one.users.isdisjoint(USERS)]
    ignore = shutil.ignore_patterns("__pycache__", "compiled")
    shutil.copytree(ROOT / "src" / "gristmill", project / "src" / "gristmill", ignore=ignore)
    build(LEVEL[1], project / "src" / "gristmill" / "kernels" / "compiled", [*wanted, "vector_search.chain_ends"])
    for name in ("pyproject.toml", "README.md", "LICENSE", "tools"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, project / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(project), str(project)]
    subprocess.run(command, check=True, capture_output=True)
    (found,) = project.glob("gristmill-*.whl")
    return found


@pytest.fixture
def site(wheel: Path, tmp_path: Path) -> Path:
    """The wheel, installed into a folder in which nothing was compiled yet."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    return tmp_path / "site"


def run(site: Path, code: str, *arguments: str, **variables: str) -> str:
    """What a program prints that uses the package in `site` and has nothing in any cache."""
    cache = site.parent / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    environment = {**os.environ, "PYTHONPATH": str(site), "NUMBA_CACHE_DIR": str(cache), **variables}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=site.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shipped(site: Path, name: str = "vector_search.chain_ends") -> Path:
    (found,) = (site / "gristmill" / "kernels" / "compiled").glob(f"{name}-*{SUFFIX}")
    return found


def test_the_wheel_says_what_it_is_for(wheel: Path) -> None:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{python}-{python}-manylinux_" in wheel.name
    assert wheel.stat().st_size < 25_000_000


def test_nothing_is_compiled_and_results_are_the_same_where_everything_is(site: Path) -> None:
    outputs = {}
    for cpus in ("0", "2"):
        names, outputs[cpus], size, place = json.loads(run(site, RUN, cpus))
        assert (names, place) == ([], str(site))
        assert size > 1_000_000
        assert not list((site.parent / "cache").rglob(f"*{SUFFIX}"))  # nor by a worker
        shutil.rmtree(site.parent / "out")
    shutil.rmtree(site / "gristmill" / "kernels" / "compiled")
    names, outputs["compiled here"], _, _ = json.loads(run(site, RUN, "0"))
    assert len(names) > 5
    assert len(set(outputs.values())) == 1


def test_code_is_used_only_where_it_fits(site: Path) -> None:
    assert run(site, ONE, "pass") == LOADED
    assert run(site, ONE, "import numba; numba.__version__ += '.1'") == COMPILED
    assert run(site, ONE, "import llvmlite; llvmlite.__version__ += '.1'") == COMPILED
    assert run(site, ONE, "sys.abiflags = 'x'") == COMPILED
    assert run(site, ONE, "pass", NUMBA_CPU_NAME="x86-64") == COMPILED
    assert run(site, ONE, "pass", NUMBA_BOUNDSCHECK="1") == COMPILED
    # Where other code has had numba compile for the processor at hand, what was shipped still runs.
    assert run(site, ONE, "import numba; numba.njit(lambda x: x)(1)") == LOADED
    with (site / "gristmill" / "kernels" / "vector_search.py").open("a") as source:
        source.write("# changed\n")
    assert run(site, ONE, "pass") == COMPILED


def test_damaged_files_are_not_run(site: Path) -> None:
    path = shipped(site)
    sound = path.read_bytes()
    flipped = bytearray(sound)
    flipped[-500] ^= 1
    other = next(path.parent.glob(f"hashing.*{SUFFIX}")).read_bytes()
    for damaged in (b"", sound[:-100], bytes(flipped), sound.replace(b"chain_ends", b"chain_end_"), other):
        path.write_bytes(damaged)
        assert run(site, ONE, "pass") == COMPILED


def test_nothing_to_write_to_is_needed(site: Path) -> None:
    nowhere = "import numba.core.caching as caching; caching.CacheImpl._locator_classes = []"
    assert run(site, ONE, nowhere, TMPDIR="/dev/null") == LOADED
