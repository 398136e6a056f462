"""The folder that a training writes its classifier to: checked before the work, filled only when it is done."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gristmill.errors import OutputError
from gristmill.stages.text.models.sources import TOKENIZER_FILES

EVALUATION_NAME = "evaluation.json"
_WORK = ".training-"

# What trainings write; nothing else is ever replaced or removed.
_OURS = {
    "linear.json", "linear.npz", "config.json", "model.safetensors", "chat_template.jinja", EVALUATION_NAME,
    *TOKENIZER_FILES,
}  # fmt: skip


@contextmanager
def filled_when_done(out: Path) -> Iterator[Path]:
    """A folder to write a classifier to, whose files come to `out` when the block ends without an error.

    A classifier that is there is replaced then, and stays as it is if the block fails or is interrupted.

    Raises:
        OutputError: `out` cannot be written, or holds files that are not of a classifier.
    """
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in out.iterdir() if not path.name.startswith(_WORK)}
        others = sorted(names - _OURS if EVALUATION_NAME in names else names)
        if others:
            raise OutputError(
                f"The folder {out} holds other files than those of a classifier that was trained here "
                f"({', '.join(others[:5])}): give a new or an empty one.",
                path=str(out),
            )
        work = Path(tempfile.mkdtemp(prefix=_WORK, dir=out))
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(
            f"The classifier cannot be written to {out}: {error.strerror or error}. Give a folder that can be made.",
            path=str(out),
        ) from error
    try:
        yield work
        made = sorted(path.name for path in work.iterdir())
        for name in _OURS.difference(made):
            (out / name).unlink(missing_ok=True)
        for name in made:
            os.replace(work / name, out / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        for folder in new:
            with suppress(OSError):
                folder.rmdir()  # only where nothing was written
