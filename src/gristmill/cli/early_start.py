"""Starts the fork server for workers while the command itself is still importing its packages.

Both take most of a second and are independent. This is only a guess from the recipe and the sizes of its local files:
the executor decides whether the run uses workers, and ignores the process if it does not need it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.backends.local import SMALL_INPUT

if TYPE_CHECKING:
    from gristmill.recipes import Recipe


def start_early(recipe: Recipe, *, executor: str | None, workers: int | None, settings: Mapping[str, Any]) -> bool:
    """Start the fork server if the run is likely to use workers. Returns whether it did."""
    config = {**recipe.executor_config, **settings}
    wanted = config.get("num_cpus") if workers is None else workers
    if (executor or recipe.executor or "local") != "local" or wanted == 0:
        return False
    paths = [entry.parameters.get("file_paths") for entry in recipe.stages]
    return start_for_files([path for path in paths if path is not None], _modules(recipe))


def start_for_files(paths: object, modules: Sequence[str]) -> bool:
    """Start it with these modules loaded, if the local files of a reader's `file_paths` are large enough."""
    if not _is_large(paths):
        return False
    from gristmill.backends.local.fork_server import start_server

    start_server(modules)
    return True


_SHARED_STEPS = (
    "gristmill.stages.text.io.reader:JsonlReader",
    "gristmill.stages.deduplication.sorted_runs",
    "gristmill.stages.deduplication.removal",
)
DEDUP_STEPS = {
    "exact": (*_SHARED_STEPS, "gristmill.stages.deduplication.exact.steps"),
    "lines": (*_SHARED_STEPS, "gristmill.stages.deduplication.repeated.lines"),
    "substrings": (*_SHARED_STEPS, "gristmill.stages.deduplication.repeated.substrings"),
    "fuzzy": (
        *_SHARED_STEPS,
        "gristmill.stages.deduplication.fuzzy.signatures",
        "gristmill.stages.deduplication.fuzzy.candidates",
        "gristmill.stages.deduplication.fuzzy.shingle_store",
    ),
}
"""What workers import for the kinds of deduplication that need no model."""


def start_for_dedup(arguments: Sequence[str]) -> bool:
    """Start it for a `gristmill dedup` command that has not been parsed yet.

    Skips commands that choose an executor or a number of workers, and those that only estimate.
    """
    kind = arguments[0] if arguments else ""
    if kind not in DEDUP_STEPS or not {"-h", "--help", "--plan"}.isdisjoint(arguments):
        return False
    for argument in arguments:
        if argument.startswith(("--workers", "--executor")):
            return False
    # Without the last one, which is the output. Values of options are rarely files.
    paths = [argument for argument in arguments[1:] if not argument.startswith("-")]
    return start_for_files(paths[:-1], DEDUP_STEPS[kind])


def _modules(recipe: Recipe) -> list[str]:
    """Modules of the recipe's built-in stages; other modules are loaded when the pipeline is built."""
    from gristmill.recipes.names import NAMES

    return [f"{NAMES[entry.name].module}:{entry.name}" for entry in recipe.stages if entry.name in NAMES]


def _is_large(paths: object) -> bool:
    total = 0
    for size in _sizes(paths):
        total += size
        if total > SMALL_INPUT:
            return True
    return False


def _sizes(paths: object) -> Iterator[int]:
    """The sizes of the local files of a reader's `file_paths`, as far as a shallow listing shows them."""
    if isinstance(paths, list | tuple):
        for path in paths:
            yield from _sizes(path)
    elif isinstance(paths, str) and "://" not in paths:
        found: Iterable[str] = [paths]
        if not os.path.exists(paths):
            import glob

            found = glob.iglob(paths, recursive=True)
        for path in found:
            try:
                if os.path.isdir(path):
                    with os.scandir(path) as entries:
                        yield from [entry.stat().st_size for entry in entries if entry.is_file()]
                else:
                    yield os.path.getsize(path)
            except OSError:
                # Errors in the path are reported by the reader, which explains them better.
                continue
