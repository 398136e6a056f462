"""The private parts of numba that kernels rely on, each with its reason; no other file uses them.

For numba 0.61 and later. `tests/unit/kernels/test_numba_internals.py` fails when one of them is gone, or when numba has
learned to do without.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba._dynfunc import make_function
from numba.core.cgutils import raw_memcpy
from numba.core.compiler import compile_result
from numba.core.environment import _rebuild_env as environment_of
from numba.core.extending import _Intrinsic as Intrinsic
from numba.core.registry import cpu_target
from numba.core.runtime import _nrt_python, rtsys
from numba.core.typing import signature as typed_signature

__all__ = [
    "INLINE",
    "UNCOUNTED",
    "Intrinsic",
    "cache_folder",
    "code_of",
    "compile_now",
    "compile_result",
    "engine_of",
    "environment_of",
    "is_target_chosen",
    "make_function",
    "raw_memcpy",
    "typed_signature",
    "use_runtime",
    "use_store",
]

# `raw_memcpy`: numba has no public way to copy bytes between plain addresses.
# `Intrinsic`: the class of what `numba.extending.intrinsic` makes, by which such helpers are known, has no public name.
# `environment_of`, `make_function`, `typed_signature`, `compile_result`: numba's own steps from machine code to a
# callable, which it offers only together with its cache, whose files are pickles.

engine_of = attrgetter("_codegen._engine")
"""LLVM's engine behind a library of machine code. numba's own address lookup only covers functions that it can also
inline."""

UNCOUNTED = {"_nrt": False}
"""Options for a helper that does not count references to its arrays.

Counting costs more than a short helper does: four atomic operations per array and call. Such a helper cannot allocate.
"""

INLINE = {"forceinline": True}
"""Options for a helper that LLVM always inlines. The public `inline="always"` copies Python code into its caller, which
makes compiling much slower and the result no faster."""


def is_target_chosen() -> bool:
    """Whether numba has already chosen the target CPU of this process."""
    return "_toplevel_target_context" in vars(cpu_target)


def cache_folder(dispatcher: Any) -> str | None:
    """The first folder of numba's own search that can be written to; None if there is none."""
    return getattr(dispatcher._cache, "cache_path", None)


def use_runtime() -> None:
    """Tell LLVM the addresses of numba's runtime, which allocates and counts references.

    numba itself also compiles two functions in every process; cached kernels contain them.
    """
    for name, address in _nrt_python.c_helpers.items():
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


def use_store(dispatcher: Any, load: Callable[[Any, Any], Any]) -> None:
    """Load a kernel's machine code with `load`, which receives a signature and the target context.

    Before numba looks into its own cache it imports everything it could ever compile, which takes longer than a small
    job, and it reads pickles there.
    """
    dispatcher._cache.load_overload = load


def compile_now(dispatcher: Any, signature: Any, context: Any) -> Any:
    """Compile a kernel for a signature; numba's public method would look it up in the cache again."""
    rtsys.initialize(context)
    context.refresh()
    return dispatcher._compiler.compile(signature, None)


def code_of(result: Any) -> tuple[dict[str, Any], bytes]:
    """The parts of a compiled kernel to store: names, constants and machine code.

    The constants are the types of the arrays that it returns. Only helpers that have constants matter.

    Raises:
        TypeError: It has constants of another kind, which cannot be kept.
    """
    name, _, (code, _) = result.library.serialize_using_object_code()
    own, constants = result.fndesc.env_name, {}
    for one in result._find_referenced_environments():
        if one.consts or one.env_name == own:
            if not all(isinstance(value, np.dtype) for value in one.consts):
                raise TypeError(f"{result.fndesc.qualname} has constants that are not types: {one.consts}")
            constants[one.env_name] = [one.globals["__name__"], *(value.str for value in one.consts)]
    wrapper = result.fndesc.llvm_cpython_wrapper_name
    return {"library": name, "wrapper": wrapper, "environment": own, "constants": constants}, code
