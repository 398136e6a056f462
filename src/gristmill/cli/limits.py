"""Explains errors caused by system or shell limits (`ulimit`) and says what to do about them."""

from __future__ import annotations

import errno
import resource

from gristmill.figures import format_size

_MEMORY_WORDS = ("failed to map segment", "Cannot allocate memory", "cannot allocate memory")


def limit_sentence(error: BaseException) -> str | None:
    """The message to show for `error` if a limit caused it; None otherwise."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"Too many open files: the limit is {allowed} (ulimit -n). Raise it, or use fewer workers (--workers)."
    if number == errno.EAGAIN or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        return (
            "Cannot start another process or thread for this user (ulimit -u). Raise the limit, stop other "
            "processes, or run in one process with --workers 0."
        )
    if (
        isinstance(error, MemoryError)
        or number == errno.ENOMEM
        or (isinstance(error, ImportError | OSError) and any(words in _told(error) for words in _MEMORY_WORDS))
    ):
        allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
        bound = "" if allowed == resource.RLIM_INFINITY else f" of address space ({format_size(allowed)}, ulimit -v)"
        return f"Out of memory{bound}: {error}. Raise the limit, or use fewer workers and a smaller blocksize."
    return None


def _told(error: BaseException) -> str:
    """The message of an error together with that of its cause, because llvmlite wraps the cause in its own advice."""
    return f"{error} {error.__cause__ or error.__context__ or ''}"
