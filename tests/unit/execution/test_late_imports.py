"""What a command leaves out until it is needed, and that it is there when it is."""

from __future__ import annotations

import subprocess
import sys

PRELUDE = """
import sys
from gristmill.execution.late_imports import defer_imports
defer_imports(kernels=False)
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", PRELUDE + program], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_nothing_that_can_wait_is_loaded() -> None:
    wanting = ("numba", "pandas", "scipy", "yaml", "pyarrow._parquet", "pydoc")
    assert (
        run(f"import pyarrow.compute, pyarrow.parquet; print([name for name in {wanting} if name in sys.modules])")
        == "[]"
    )


def test_numba_comes_without_what_it_only_looks_for() -> None:
    program = """
import numba
print(numba.__spec__.loader is numba.__loader__, type(numba.__loader__).__name__)
print([name for name in ("pandas", "scipy", "yaml", "coverage") if name in sys.modules])
import yaml
print(yaml.safe_load("[1]"), numba.njit(lambda one: one + 1)(1))
"""
    assert run(program).splitlines() == ["True SourceFileLoader", "[]", "[1] 2"]


def test_a_module_that_waited_is_whole_for_all_threads_that_come_at_once() -> None:
    program = """
import threading
import pyarrow as pa
import pyarrow.compute as pc
sys.setswitchinterval(1e-6)
barrier, found = threading.Barrier(8), []
def use(number):
    barrier.wait()
    found.append((pc.sum(pa.array([1, 2])).as_py(), hasattr(pc, "no_such_function")))
threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(set(found), len(found), type(pc).__name__, pa.array([3, 1]).take(pa.array([1])).to_pylist())
"""
    assert run(program) == "{(3, False)} 8 module [1]"


def test_code_that_names_such_a_module_can_be_sent_to_workers() -> None:
    program = """
import cloudpickle, pyarrow as pa, pyarrow.compute as pc
def total(values): return pc.sum(pa.array(values)).as_py()
sent = cloudpickle.dumps(total)
print(type(pc).__name__, cloudpickle.loads(sent)([1, 2]), type(pc).__name__)
"""
    assert run(program) == "_OnUse 3 module"


def test_a_process_that_has_the_packages_already_is_left_alone() -> None:
    program = (
        "import pyarrow, sys\n"
        "before = list(sys.meta_path)\n"
        "from gristmill.execution.late_imports import defer_imports\n"
        "defer_imports()\n"
        "print(sys.meta_path == before, 'numba' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "True False\n"
