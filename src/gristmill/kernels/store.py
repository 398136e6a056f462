"""Machine code of kernels on disk: shipped in a wheel, or compiled on this machine.

A file holds one kernel for one signature and one level of processors: the digest of the rest, a line of JSON, and the
code from LLVM. Nothing is run before digest and key are verified, and nothing is unpickled. Code from a wheel is in
`compiled/` of this package. Code compiled here goes to the folder that numba would use: beside the source file or, if
that is read-only, the user's cache folder; no other user can write there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np

from gristmill.kernels.numba_internals import (
    cache_folder,
    code_of,
    compile_now,
    compile_result,
    engine_of,
    environment_of,
    make_function,
    typed_signature,
    use_runtime,
)
from gristmill.kernels.processor import choose_level

SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compiled")
SUFFIX = ".kernel"
_OPTIONS = ("NUMBA_BOUNDSCHECK", "NUMBA_DEBUGINFO", "NUMBA_LOOP_VECTORIZE", "NUMBA_OPT", "NUMBA_SLP_VECTORIZE")
VERSIONS = (
    f"numba {numba.__version__}",
    f"llvmlite {llvmlite.__version__}",
    f"cp{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}",
    *(f"{name}={os.environ[name]}" for name in _OPTIONS if name in os.environ),
)
"""Versions that cached code must match, in addition to its sources and the CPU level."""
LEVEL = choose_level()
use_runtime()

waiting = fcntl.LOCK_EX
"""Locks a kernel for compilation; with `LOCK_NB` it raises instead of waiting."""

# numba keeps a second form of every function, for others to inline. No kernel calls another, and reading that form
# would take most of the loading time, so it is replaced by an empty one.
_NOTHING_TO_INLINE = llvm.parse_assembly("").as_bitcode()
_PLACES = [(SHIPPED, LEVEL)] if LEVEL is not None and os.path.isdir(SHIPPED) else []


class CodeStore:
    """The files of one kernel."""

    __slots__ = ("dispatcher", "folder", "name", "on_miss", "sources")

    def __init__(self, dispatcher: Any, sources: str, on_miss: Callable[[str], None]) -> None:
        """The files of `dispatcher`, made from sources with that digest; `on_miss` is called before it is compiled."""
        plain = dispatcher.py_func
        self.dispatcher, self.sources, self.on_miss = dispatcher, sources, on_miss
        self.name = f"{plain.__module__.rpartition('.')[2]}.{plain.__qualname__}"
        self.folder = cache_folder(dispatcher) or os.devnull  # always empty

    def load(self, signature: Any, context: Any, *, may_compile: bool = True) -> Any:
        """The kernel for a signature, from the first place that has it or compiled; None if that is not allowed."""
        for folder, target in (*_PLACES, (self.folder, context.codegen().magic_tuple())):
            key = [self.name, str(signature), self.sources, *VERSIONS, *target]
            file = f"{self.name}-{hashlib.sha256(repr((key[1], key[3:])).encode()).hexdigest()[:16]}{SUFFIX}"
            try:
                with open(os.path.join(folder, file), "rb") as opened:
                    digest, content = opened.readline(), opened.read()
            except OSError:
                continue
            if digest.strip() == hashlib.sha256(content).hexdigest().encode():
                head, _, code = content.partition(b"\n")
                header = json.loads(head)
                if header["key"] == key:
                    break
        else:
            return self._compile(signature, context, file, key) if may_compile else None
        library = context.codegen().unserialize_library((header["library"], "object", (code, _NOTHING_TO_INLINE)))
        address = engine_of(library).get_function_address(header["wrapper"])
        environments = {}
        for name, (module, *constants) in header["constants"].items():
            environments[name] = environment_of(module, list(map(np.dtype, constants)), name)
            library.codegen.set_env(name, environments[name])
        plain = self.dispatcher.py_func
        own = environments[header["environment"]]
        entry = make_function(sys.modules[plain.__module__], plain.__name__, "", address, own, (library,))
        return compile_result(
            entry_point=entry,
            fndesc=SimpleNamespace(argtypes=signature),  # sufficient for calls from Python
            library=library,
            objectmode=False,
            signature=typed_signature(None, *signature),
            target_context=context,
        )

    def _compile(self, signature: Any, context: Any, file: str, key: list[str]) -> Any:
        """Compile the kernel; if another process is compiling it, wait instead."""
        self.on_miss(self.dispatcher.py_func.__name__)
        with self._lock(file):
            found = self.load(signature, context, may_compile=False)
            if found is None:
                found = compile_now(self.dispatcher, signature, context)
                self._save(file, key, signature, found)
        return found

    def signatures(self) -> list[str]:
        """The signatures that have code, as text, if they can be written as text."""
        return [header["signature"] for header in self.files().values() if header["signature"] is not None]

    def files(self) -> dict[str, dict[str, Any]]:
        """The paths of loadable files, each with its header."""
        found = {}
        for folder, target in (*_PLACES, (self.folder, self.dispatcher.targetctx.codegen().magic_tuple())):
            with contextlib.suppress(OSError):
                for file in os.listdir(folder):
                    if file.startswith(f"{self.name}-") and file.endswith(SUFFIX):
                        header = _header(os.path.join(folder, file))
                        if header.get("key", [])[2:] == [self.sources, *VERSIONS, *target]:
                            found[os.path.join(folder, file)] = header
        return found

    # --- what is compiled here ---

    @contextlib.contextmanager
    def _lock(self, file: str) -> Iterator[None]:
        """Let only one process compile this; if locking is impossible, each compiles for itself.

        Raises:
            BlockingIOError: Another process is compiling it, and `waiting` is off.
        """
        with contextlib.ExitStack() as stack:
            try:
                os.makedirs(self.folder, exist_ok=True)
                opened = stack.enter_context(open(os.path.join(self.folder, f"kernels{SUFFIX}.lock"), "ab"))
                fcntl.lockf(opened, waiting, 1, int(file[-len(SUFFIX) - 8 : -len(SUFFIX)], 16))
            except BlockingIOError:
                raise
            except OSError:
                pass
            yield

    def _save(self, file: str, key: list[str], signature: Any, result: Any) -> None:
        from gristmill.kernels.signatures import described

        header, code = code_of(result)
        header |= {"key": key, "signature": described(signature)}
        content = json.dumps(header).encode() + b"\n" + code
        part = Path(self.folder, f"{file}.{uuid4().hex}.part")
        with contextlib.suppress(OSError):  # no room: the next process compiles it again
            part.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
            part.replace(part.with_name(file))


def _header(path: str) -> dict[str, Any]:
    """The header of a file; empty if it is damaged."""
    try:
        with open(path, "rb") as opened:
            opened.readline()
            found = json.loads(opened.readline())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
