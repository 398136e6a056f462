"""Arrow files: Feather, the IPC file format and IPC streams, batch by batch."""

from __future__ import annotations

import pyarrow as pa

from gristmill.storage.compression import open_raw
from gristmill.storage.files import StorageOptions
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Rows


def read_rows(part: FileRange, *, storage_options: StorageOptions = None) -> Rows:
    """The rows as they are; a batch that cannot be read is one broken piece."""
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
            yield Broken("corrupt_arrow", f"the header can't be read: {_first_line(error)}", 0, magic, rest=True)
            return
        if numbers is None:
            try:
                for batch in opened:
                    yield pa.Table.from_batches([batch])
            except (pa.ArrowInvalid, OSError) as error:
                yield Broken("corrupt_arrow", _first_line(error), rest=True)
            return
        for number in numbers:
            try:
                batch = opened.get_batch(number)
            except (pa.ArrowInvalid, OSError) as error:
                told = f"batch {number} of {len(numbers)} can't be read: {_first_line(error)}"
                yield Broken("corrupt_arrow", told, rest=True)
                return
            yield pa.Table.from_batches([batch])


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
