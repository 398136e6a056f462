"""The list of kernels to compile ahead is complete, and what it leads to is what a pipeline needs."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import gristmill.kernels
from gristmill.kernels.ahead import EVERYBODY, missing, names_in, read_list
from gristmill.kernels.compiler import all_kernels, stores
from gristmill.kernels.signatures import described, parsed
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from tools.make_signatures import users_of

START = """
import sys, time
from gristmill.kernels import union_find, vector_search
from gristmill.kernels.ahead import Listed, compile_for, read_list
import gristmill.kernels.ahead as ahead

small = [one for one in read_list() if one.kernel in ("union_find.settle", "vector_search.chain_ends")]
ahead.missing = lambda users: small
first = compile_for([], processes=2)
second = compile_for([], processes=2)  # somebody is at it already
print(len(first), len(second), [process.wait() for process in first])
print([union_find.settle.compile(ahead.parsed(small[-1].signature)) is not None])
"""


def test_every_kernel_is_listed_and_everything_listed_is_a_kernel() -> None:
    for module in pkgutil.iter_modules(gristmill.kernels.__path__):
        importlib.import_module(f"gristmill.kernels.{module.name}")
    ours = {stores[kernel].name: kernel for kernel in all_kernels if kernel.py_func.__module__.startswith("gristmill.")}
    listed = read_list()
    todo = "Run: python -m tools.make_signatures"
    assert {one.kernel for one in listed} == set(ours), todo
    for one in listed:
        assert described(parsed(one.signature)) == one.signature
        assert len(parsed(one.signature)) == ours[one.kernel].py_func.__code__.co_argcount, f"{one.kernel}. {todo}"


def test_no_kernel_calls_another() -> None:
    known = {id(kernel) for kernel in all_kernels}
    for kernel in all_kernels:
        used = map(kernel.py_func.__globals__.get, kernel.py_func.__code__.co_names)
        assert not [one for one in used if id(one) in known]


def test_a_pipeline_needs_the_kernels_of_its_stages_and_filters() -> None:
    names = names_in([ScoreFilter(WordCountFilter())])
    assert {EVERYBODY, "ScoreFilter", "WordCountFilter"} <= names
    needed = {one.kernel for one in read_list() if not one.users.isdisjoint(names)}
    assert {"text_words._words", "json_scan._scan"} <= needed
    assert not {"ngrams._ngrams", "text_clean._clean", "linear_text.linear_scores"} & needed
    assert {one.kernel for one in missing(names)} <= needed


def test_the_first_step_of_a_workflow_needs_the_kernels_of_its_own_steps_only() -> None:
    steps = {"*", "JsonlReaderStage", "MinHashes", "SortedRunWriter", "SurvivorRule", "RunFiles"}
    needed = {one.kernel for one in read_list() if not one.users.isdisjoint(steps)}
    assert {"minhash.band_hashes", "shingles.shingle_lists", "union_find.group_pairs", "union_find.join"} <= needed
    others = {one for one in needed if one.startswith("vector_search.")}  # of semantic deduplication
    assert not others | ({"minhash.signature_sets", "hashing.second_hashes"} & needed)


def test_a_stage_uses_a_kernel_that_every_run_with_it_calls() -> None:
    a, b, c = ("a", "int64"), ("b", "int64"), ("c", "int64")
    runs = [({a}, {"First", "Shared"}), ({a, b}, {"First", "Shared", "Extra"}), ({c}, {"Other", "Shared"})]
    assert users_of(runs) == {a: {"First", "Extra"}, b: {"Extra"}, c: {"Other"}}


DRIVER = """
from types import SimpleNamespace
import gristmill.kernels.ahead as ahead
from gristmill.backends.local.driver_support import compile_missing_kernels

small = ("union_find.settle", "vector_search.chain_ends")
ahead.missing = lambda users: [one for one in ahead.read_list() if one.kernel in small]
compile_missing_kernels(SimpleNamespace(segments=()))
"""


def test_a_driver_compiles_what_no_stage_asks_for_before_workers_start(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", DRIVER], env=environment, check=True)
    names = [path.name.partition("-")[0] for path in tmp_path.rglob("*.kernel")]
    assert sorted(names) == ["union_find.settle", "vector_search.chain_ends"]


def test_one_process_has_kernels_compiled_and_others_leave_it_to_it(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", START]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["2 0 [0, 0]", "[True]"], done.stderr
    names = [path.name.partition("-")[0] for path in tmp_path.rglob("*.kernel")]
    assert sorted(names) == ["union_find.settle", "vector_search.chain_ends"]


WAIT = """
import sys, time
from pathlib import Path
import numpy as np
from gristmill.kernels import store
from gristmill.kernels.vector_search import chain_ends

folder, compile_now = Path(sys.argv[1]), store.compile_now

def counted(*arguments):
    with (folder / "compiled").open("a") as file:
        file.write("once\\n")
    time.sleep(0.5)
    return compile_now(*arguments)

store.compile_now = counted
(folder / f"ready-{sys.argv[2]}").touch()
while len(list(folder.glob("ready-*"))) < 3:
    time.sleep(0.01)
print(chain_ends(np.array([0, 0, 1])).tolist())
"""


def test_a_kernel_is_compiled_by_one_process_while_others_wait_for_it(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    commands = [[sys.executable, "-c", WAIT, str(tmp_path), number] for number in "123"]
    begun = [subprocess.Popen(one, env=environment, stdout=subprocess.PIPE, text=True) for one in commands]
    assert [process.communicate()[0] for process in begun] == ["[0, 0, 0]\n"] * 3
    assert (tmp_path / "compiled").read_text() == "once\n"
