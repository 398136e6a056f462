"""Arrow files: Feather, the IPC file format and IPC streams, batch by batch."""

from __future__ import annotations

import pyarrow as pa

from gristmill.errors import InputError
from gristmill.storage.compression import open_raw
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import codec_of
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, Rows


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
            yield Broken("corrupt_arrow", f"the header cannot be read: {_first_line(error)}", 0, magic, rest=True)
            return
        if numbers is None:
            try:
                for batch in opened:
                    yield _plain_table(batch)
            except (pa.ArrowInvalid, OSError) as error:
                yield Broken("corrupt_arrow", _first_line(error), rest=True)
            return
        for number in numbers:
            try:
                batch = opened.get_batch(number)
            except (pa.ArrowInvalid, OSError) as error:
                told = f"batch {number} of {len(numbers)} cannot be read: {_first_line(error)}"
                yield Broken("corrupt_arrow", told, rest=True)
                return
            yield _plain_table(batch)


def _plain_table(batch: pa.RecordBatch) -> pa.Table:
    """A batch with types that kernels support: views and dictionaries are replaced by their values."""
    table = pa.Table.from_batches([batch])
    for at, field in enumerate(table.schema):
        kind = _plain_type(field.type)
        if kind != field.type:
            column = table.column(at)
            try:
                column = column.cast(kind)
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # not every view can be cast
                column = pa.array(column.to_pylist(), kind)
            table = table.set_column(at, field.with_type(kind), column)
    return table


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or isinstance(kind, pa.ListViewType | pa.LargeListViewType)
    ):
        return pa.large_list(_plain_type(kind.value_type)) if _has_views(kind) else kind
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    return kind


def _has_views(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.ListViewType | pa.LargeListViewType) or _plain_type(kind.value_type) != kind.value_type


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
