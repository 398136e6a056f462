"""Files that a pipeline downloads and reads with its own iterator: only that pipeline can read them again."""

from __future__ import annotations

from gristmill.errors import InputError
from gristmill.storage.files import StorageOptions
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Rows

READING = '{"format": "download"}'
"""The `reading` of such a file."""


def read_rows(part: FileRange, *, storage_options: StorageOptions = None) -> Rows:
    """Always raises: the record of a run contains no code, and nothing is downloaded to answer queries about it.

    Raises:
        InputError: Always.
    """
    raise InputError(
        f"{part.path} was downloaded and read by the pipeline's own code, so its records cannot be shown from the "
        "record of the run. Those that were kept are in the output.",
        path=part.path,
    )
