"""What the nursery starts with: the modules it imports, its environment, and the flags of its interpreter."""

from __future__ import annotations

import sys
from collections.abc import Mapping

# Heavy packages first; modules that do not exist (yet, or in this installation) are skipped.
DEFAULT_PRELOAD: tuple[str, ...] = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "pyarrow.ipc",
    "pyarrow.parquet",
    "numba",
    "orjson",
    "cloudpickle",
    "fsspec",
    "gristmill.errors",
    "gristmill.tasks",
    "gristmill.stages.base",
    "gristmill.backends.plan",
    "gristmill.execution.runner",
    "gristmill.backends.local.shared_files",
    "gristmill.backends.local.worker",
)

LIGHT_STAGES = (
    *(f"gristmill.stages.text.{part}" for part in ("io", "filters", "modifiers", "modules")),
    *(f"gristmill.stages.deduplication.{part}" for part in ("exact", "fuzzy", "removal", "sorted_runs", "key_ranges")),
)
"""The stages whose modules a nursery may import. Models are left to the workers that use them: their packages start
threads, which must not be there when a worker is forked."""

# One thread for each worker: parallelism is the number of workers. The jemalloc settings keep the copies inside Arrow
# and Polars from starting a thread in the nursery, where a fork would lose it. The last two let a worker keep the
# memory of a batch for the next one, up to the size of a few batches; getting it anew from the kernel costs a page
# fault for every 4 kB.
SINGLE_THREADED: Mapping[str, str] = {
    "POLARS_MAX_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "ARROW_IO_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "_RJEM_MALLOC_CONF": "background_thread:false",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}

# Interpreter flags a child needs to behave like its parent; the two that ignore PYTHONPATH are honoured by passing
# none.
_FLAGS = {"optimize": "O", "dont_write_bytecode": "B", "no_user_site": "s", "no_site": "S", "bytes_warning": "b"}


def interpreter_flags() -> list[str]:
    """The flags that make a child behave as this process does."""
    flags = [
        f"-{letter * int(getattr(sys.flags, name))}" for name, letter in _FLAGS.items() if getattr(sys.flags, name)
    ]
    flags += [f"-W{option}" for option in sys.warnoptions]
    for name, value in sys._xoptions.items():
        flags.append(f"-X{name}" if value is True else f"-X{name}={value}")
    return flags
