"""What the command line says about errors that come of limits."""

from __future__ import annotations

import errno

import pytest

from gristmill.cli.limits import limit_sentence


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "ulimit -u"),
        (RuntimeError("can't start new thread"), "--workers 0"),
        (MemoryError("no room"), "Out of memory"),
        (ImportError("libarrow.so: failed to map segment from shared object"), "Out of memory"),
    ],
)
def test_a_limit_is_named_with_what_to_do(error: Exception, words: str) -> None:
    assert words in (limit_sentence(error) or "")


@pytest.mark.parametrize("error", [RuntimeError("other"), ImportError("no module"), OSError(errno.EIO, "disk")])
def test_other_errors_are_not_explained_by_limits(error: Exception) -> None:
    assert limit_sentence(error) is None
