"""Errors that come of the limits of the system or of a shell (`ulimit`): what they mean, and what to do."""

from __future__ import annotations

import errno
import resource

from gristmill.figures import format_size

_MEMORY_WORDS = ("failed to map segment", "Cannot allocate memory", "cannot allocate memory")


def limit_sentence(error: BaseException) -> str | None:
    """What to tell the user about `error`, if it comes of a limit; None otherwise."""
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
    """What an error says, with the one that it was raised from: llvmlite has advice of its own in front of it."""
    return f"{error} {error.__cause__ or error.__context__ or ''}"
