"""Arrow files: Feather, the IPC file format and IPC streams, batch by batch."""

from __future__ import annotations

import pyarrow as pa

from gristmill.errors import InputError, first_line
from gristmill.storage.compression import open_raw
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import codec_of
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Rows
from gristmill.storage.schemas import plain_table


def read_rows(part: FileRange, *, storage_options: StorageOptions = None) -> Rows:
    """The rows, unchanged; nothing after an unreadable batch can be read.

    Raises:
        InputError: The file is compressed as a whole.
    """
    if codec_of(part.path) != "none":
        raise InputError(
            f"{part.path!r} is an Arrow file that was compressed as a whole. Decompress it first; Arrow files use "
            "internal compression.",
            path=part.path,
        )
    return _batches(part, storage_options)


def _batches(part: FileRange, storage_options: StorageOptions) -> Rows:
    with open_raw(part.path, storage_options=storage_options) as raw:
        try:
            magic = raw.read(6)
            raw.seek(0)
            if magic == b"ARROW1":
                opened = pa.ipc.open_file(raw)
                numbers: range | None = range(opened.num_record_batches)
            else:
                opened = pa.ipc.open_stream(raw)
                numbers = None
        except (pa.ArrowInvalid, OSError) as error:
            yield Broken("corrupt_arrow", f"the header cannot be read: {first_line(error)}", 0, magic, rest=True)
            return
        if numbers is None:
            try:
                for batch in opened:
                    yield plain_table(pa.Table.from_batches([batch]), dictionaries=True)
            except (pa.ArrowInvalid, OSError) as error:
                yield Broken("corrupt_arrow", first_line(error), rest=True)
            return
        for number in numbers:
            try:
                batch = opened.get_batch(number)
            except (pa.ArrowInvalid, OSError) as error:
                told = f"batch {number} of {len(numbers)} cannot be read: {first_line(error)}"
                yield Broken("corrupt_arrow", told, rest=True)
                return
            yield plain_table(pa.Table.from_batches([batch]), dictionaries=True)
