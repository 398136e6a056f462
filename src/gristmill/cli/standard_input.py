"""Saves standard input to a file in the record of the output, so that a run can be resumed, replayed and verified."""

from __future__ import annotations

import sys
from contextlib import ExitStack

import click

from gristmill.ledger.record.layout import RunFolder
from gristmill.storage.atomic import AtomicFile
from gristmill.storage.formats import CODEC_KINDS, FORMATS, HEAD_BYTES, Format, recognise

_CHUNK = 1 << 20


def keep_standard_input(output: str | None, record_path: str | None, filetype: Format | None = None) -> str:
    """Copy standard input into the record of an output; returns the path of the copy.

    An existing copy with the same bytes is kept, so that the same stream resumes a run.

    Args:
        output: The output of the run.
        record_path: Path of its record, if not beside it.
        filetype: Format of the data, if not JSONL.

    Raises:
        click.UsageError: Standard input is empty, or there is no output.
    """
    if output is None:
        raise click.UsageError("INPUT is '-' (standard input), and OUTPUT is missing: gristmill run RECIPE - OUTPUT")
    folder = RunFolder(output, record_path=record_path)
    stream = sys.stdin.buffer
    if stream.isatty():
        raise click.UsageError("INPUT is '-', but nothing is piped in. Try: zcat FILE | gristmill run RECIPE - OUTPUT")
    piece = stream.read(_CHUNK)
    path = _place(folder, filetype or "jsonl", piece)
    with ExitStack() as stack:
        earlier = stack.enter_context(folder.open(path)) if folder.exists(path) else None
        file = stack.enter_context(AtomicFile(path, storage_options=folder.storage_options))
        same = earlier is not None
        while piece:
            file.write(piece)
            same = same and earlier is not None and earlier.read(len(piece)) == piece
            piece = stream.read(_CHUNK)
        if (
            not file.size
        ):  # the command before the pipe may have failed: do not replace an existing copy by an empty one
            raise click.UsageError("INPUT is '-', but standard input is empty. Check the command before the pipe.")
        if same and earlier is not None and not earlier.read(1):
            file.discard()
    return path


def _place(folder: RunFolder, filetype: Format, head: bytes) -> str:
    """Path of the copy; its extension indicates the format."""
    kind = recognise(head[:HEAD_BYTES]) or ""
    ending = ".zip" if (filetype, kind) == ("archive", "zip") else FORMATS[filetype].extensions[0]
    ending += f".{CODEC_KINDS[kind]}" if kind in CODEC_KINDS else ""
    return folder.record_path("stdin") if ending == ".jsonl" else folder.record_path("input", f"stdin{ending}")
