"""The token files of one partition: documents come in batch by batch, shards and the list of places come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.storage.atomic import AtomicFile, WrittenFile
from gristmill.storage.files import StorageOptions
from gristmill.storage.token_formats.arrays import NumpyShard
from gristmill.storage.token_formats.megatron import MegatronShard
from gristmill.storage.token_formats.packing import Integers, Pack, Sequences, Spans, packer
from gristmill.storage.token_formats.places import merge_runs, places_bytes
from gristmill.storage.token_formats.shard import ShardFile
from gristmill.storage.token_formats.streams import LITDATA_DTYPES, StreamShard
from gristmill.storage.token_formats.tables import INPUT_IDS, TableShard

TokenFormat = Literal["megatron", "numpy", "parquet", "arrow", "mds", "litdata"]
EXTENSIONS: Mapping[TokenFormat, str] = {
    "megatron": ".bin",
    "numpy": ".npy",
    "parquet": ".parquet",
    "arrow": ".arrow",
    "mds": ".mds",
    "litdata": ".bin",
}
DTYPES: Mapping[TokenFormat, tuple[str, ...]] = {
    "megatron": ("uint16", "int32", "int64"),
    "numpy": ("uint16", "uint32", "int32", "int64"),
    "parquet": ("int32", "uint16", "uint32", "int64"),
    "arrow": ("int32", "uint16", "uint32", "int64"),
    "mds": ("uint16", "uint32", "int32", "int64"),
    "litdata": LITDATA_DTYPES,
}
"""Token types that readers of a format support, in the order in which they are tried."""

ROW, ID, SOURCE = "gristmill.row", "gristmill.id", "gristmill.source"
"""Columns of a payload that hold the origin of each document; others go into the table of a shard."""
_ORIGINS = {"row": ROW, "id": ID, "source": SOURCE}
_RUN_COLUMNS = ("document", "start", "shard", "offset", "tokens")


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """How the documents of a partition become files.

    Attributes:
        format: Format of the shards.
        dtype: Type of a token.
        pack: How documents are packed; None for no packing.
        sequence_length: Length of a sequence, with packing.
        pad_id: Padding token, with packing.
        shard_tokens: Maximum number of tokens per shard; a longer document gets its own shard. None for no limit.
        compression: Compression of Parquet and Arrow files.
    """

    format: TokenFormat
    dtype: str
    pack: Pack | None = None
    sequence_length: int | None = None
    pad_id: int = 0
    shard_tokens: int | None = None
    compression: str | None = None

    def open_shard(self, path: str, storage_options: StorageOptions) -> ShardFile:
        """A new shard."""
        if self.format == "megatron":
            return MegatronShard(path, self.dtype, storage_options=storage_options)
        if self.format in ("parquet", "arrow"):
            return TableShard(path, self.dtype, compression=self.compression, storage_options=storage_options)
        kind = NumpyShard if self.format == "numpy" else StreamShard
        return kind(path, self.dtype, sequence_length=self.sequence_length, storage_options=storage_options)


def _sorted_runs(parts: list[dict[str, Integers]]) -> dict[str, Integers]:
    """The runs by document, joined if they were split only by the end of a batch."""
    empty = np.zeros(0, np.int64)
    columns = {name: np.concatenate([empty, *(part[name] for part in parts)]) for name in _RUN_COLUMNS}
    order = np.lexsort((columns["start"], columns["document"]))
    return merge_runs({name: values[order] for name, values in columns.items()})


class _OpenShard:
    """The shard that is being written, and its contents so far."""

    def __init__(self, file: ShardFile, ending: str) -> None:
        self.file = file
        self.ending = ending
        self.tokens = self.samples = self.documents = 0
        self.runs: list[dict[str, Integers]] = []

    def bounds(self) -> tuple[Integers, Integers]:
        """Where the runs of documents begin and end in the shard."""
        runs = _sorted_runs(self.runs)
        order = np.lexsort((runs["document"], runs["offset"]))
        return runs["offset"][order], (runs["offset"] + runs["tokens"])[order]


class TokenPart:
    """The output of one partition while it is written.

    Payloads are tables with the column `input_ids`, the columns `ROW`, `ID` and `SOURCE` as far as known, and columns
    for the tables of Parquet and Arrow.

    Args:
        path: The first shard.
        layout: How documents become files.
        with_places: Also write the list of places.
        storage_options: File system options for URLs.
    """

    def __init__(
        self, path: str, layout: TokenLayout, *, with_places: bool = True, storage_options: StorageOptions = None
    ) -> None:
        self._with_places = with_places
        self._path = path
        self._layout = layout
        self._storage_options = storage_options
        self._extension = EXTENSIONS[layout.format]
        self._packer = packer(layout.pack, layout.sequence_length or 0, layout.pad_id, layout.dtype)
        self._shard: _OpenShard | None = None
        self._done: list[WrittenFile] = []
        self._shards: list[dict[str, Any]] = []
        self._origins: list[pa.Table] = []
        self._runs: list[dict[str, Integers]] = []
        self._documents = self._empty = self._tokens = self._padding = 0

    def append(self, payload: pa.Table, /, *, rows: int | None = None) -> None:
        """Add the documents of one batch."""
        lists = payload.column(INPUT_IDS).combine_chunks()
        if isinstance(lists, pa.ChunkedArray):
            lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], lists.type)
        offsets = lists.offsets.to_numpy()
        ids = lists.values.to_numpy()[offsets[0] : offsets[-1]] if len(lists) else lists.values.to_numpy()[:0]
        lengths = np.diff(offsets).astype(np.int64)
        self._origins.append(payload.select([name for name in _ORIGINS.values() if name in payload.column_names]))
        extra = payload.drop_columns([INPUT_IDS, *self._origins[-1].column_names])
        made = self._packer.add(ids, lengths, self._documents)
        self._documents += len(lengths)
        self._empty += int((lengths == 0).sum())
        self._write(made, extra if extra.num_columns and self._layout.pack is None else None)

    def _write(self, made: Sequences, extra: pa.Table | None) -> None:
        """Write sequences into shards, beginning a new one when one is full."""
        self._tokens += len(made.ids)
        self._padding += made.padding
        limit = self._layout.shard_tokens
        # A run without tokens goes with the token before it, however batches are cut: those in front into the shard
        # that is open, if there is one.
        if self._shard is not None or not len(made.lengths):
            leading = np.flatnonzero((made.spans.tokens == 0) & (made.spans.offset == 0))
            if len(leading):
                self._note(self._shard or self._open(), made.spans.take(leading), 0, 0, leading=True)
            leading_left = False
        else:
            leading_left = True
        ends = np.cumsum(made.lengths)
        first, before = 0, 0  # the sequences and the tokens that are written already
        while first < len(made.lengths):
            shard = self._shard or self._open()
            last = len(made.lengths)
            if limit is not None:
                room = limit - shard.tokens
                last = int(np.searchsorted(ends, before + room, side="right"))
                if last == first and not shard.tokens:
                    last = first + 1  # longer than a shard: never cut
            if last > first:
                until = int(ends[last - 1])
                part = None if extra is None else extra.slice(first, last - first)
                shard.file.append(made.ids[before:until], made.lengths[first:last], part)
                self._note(shard, made.spans, before, until, leading=leading_left)
                leading_left = False
                shard.samples += int((made.lengths[first:last] > 0).sum())
                shard.tokens += until - before
                first, before = last, until
            if first < len(made.lengths) and shard.tokens:
                self._close_shard()

    def _note(self, shard: _OpenShard, spans: Spans, begin: int, end: int, *, leading: bool) -> None:
        """Record which runs of documents went into a shard with the tokens `begin` to `end`.

        This includes runs without tokens between the token before `begin` and the last one of these, and with `leading`
        those before all tokens.
        """
        start, stop = spans.offset, spans.offset + spans.tokens
        inside = (start < end) & (stop > begin) & (spans.tokens > 0)
        empty = (spans.tokens == 0) & (start <= end) & ((start > begin) | leading)
        chosen = inside | empty
        low, high = np.maximum(start[chosen], begin), np.minimum(stop[chosen], end)
        high = np.maximum(low, high)
        skipped = low - start[chosen]
        offset = low - begin + shard.tokens
        number = np.full(len(low), len(self._shards), np.int64)
        first = spans.start[chosen] + skipped
        runs = (spans.document[chosen], first, number, offset, high - low)
        shard.runs.append(dict(zip(_RUN_COLUMNS, runs, strict=True)))
        shard.documents += int((first == 0).sum())

    def _open(self) -> _OpenShard:
        number = len(self._shards)
        ending = self._extension if number == 0 else f"~{number}{self._extension}"
        path = self._path.removesuffix(self._extension) + ending
        self._shard = _OpenShard(self._layout.open_shard(path, self._storage_options), ending)
        return self._shard

    def _close_shard(self) -> None:
        shard = self._shard
        if shard is None:
            return
        files = shard.file.close(shard.documents, shard.bounds())
        self._runs += shard.runs
        self._shard = None
        self._done += files
        facts = {"samples": shard.samples, "tokens": shard.tokens, "documents": shard.documents}
        prefix = len(self._path.removesuffix(self._extension))
        self._shards.append({**facts, "files": [file.path[-(len(file.path) - prefix) :] for file in files]})

    def close(self) -> list[WrittenFile]:
        """Finish the shards and the list of places."""
        self._write(self._packer.finish(), None)
        if self._shard is None and not self._shards:
            self._open()
        self._close_shard()
        if not self._with_places:
            return self._done
        places = self._list_of_places()
        path = self._path.removesuffix(self._extension) + ".documents.parquet"
        with AtomicFile(path, storage_options=self._storage_options) as file:
            file.write(places)
        written = file.publish(rows=self._documents)
        self._done.append(WrittenFile(written.path, written.size, written.rows, written.hash, record="documents"))
        return self._done

    def _list_of_places(self) -> bytes:
        columns = _sorted_runs(self._runs)
        origins = pa.concat_tables(self._origins) if self._origins else None
        table = pa.table({name: columns[name] for name in ("start", "shard", "offset", "tokens")})
        document = pa.array(columns["document"])
        for place, (name, given) in enumerate(_ORIGINS.items()):
            if origins is not None and given in origins.column_names:
                column = origins.column(given).take(document)
            else:
                column = pa.nulls(table.num_rows, pa.large_string())
            if name == "source":
                column = pc.dictionary_encode(column.cast(pa.large_string()))
            table = table.add_column(place, name, column)
        facts = {
            "format": self._layout.format,
            "dtype": self._layout.dtype,
            "pack": self._layout.pack,
            "sequence_length": self._layout.sequence_length,
            "documents": self._documents,
            "empty_documents": self._empty,
            "tokens": self._tokens,
            "padding": self._padding,
            "shards": self._shards,
        }
        return places_bytes(table, facts)

    def abort(self) -> None:
        """Discard unfinished files."""
        if self._shard is not None:
            self._shard.file.abort()
            self._shard = None
