"""Writes documents as tokens, in the formats that trainers read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError, did_you_mean
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import Manifest
from gristmill.ledger.record.shape import open_table
from gristmill.ledger.record.summary import OutputSummary
from gristmill.stages.base import Spec
from gristmill.stages.source_sink import BaseWriter, Mode, PartFile
from gristmill.stages.text.models.text_encoder import EncoderSource, TextEncoder
from gristmill.stages.text.models.tokens import list_column
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.compression import open_raw
from gristmill.storage.table_sinks import ArrowSink
from gristmill.storage.token_formats.packing import PACKS, Pack
from gristmill.storage.token_formats.part import (
    DTYPES,
    EXTENSIONS,
    ID,
    ROW,
    SOURCE,
    TokenFormat,
    TokenLayout,
    TokenPart,
)
from gristmill.storage.token_formats.places import facts_of
from gristmill.storage.token_formats.streams import INDEX_NAME, litdata_index, mds_index
from gristmill.storage.token_formats.tables import INPUT_IDS
from gristmill.tasks.document import DocumentBatch

if TYPE_CHECKING:
    from gristmill.backends.base import NodeInfo, WorkerMetadata

_TABLES = ("parquet", "arrow")
_STREAMS = ("mds", "litdata")
_STREAM_TOKENS = 1 << 25
"""Shards of streaming formats are downloaded as a whole, so they are limited by default."""


class TokenWriter(BaseWriter):
    """Tokenizes documents and writes the tokens as training data.

    Every partition becomes one shard, or several with `shard_tokens`. No token is ever lost: a document longer than a
    shard gets its own shard, and packing only rearranges tokens. The record of the run holds the position of every
    document (`gristmill tokens inspect` shows it) and the totals in `summary.json`.

    A document without text (empty or null) consists of the end-of-text token only. Without that token it keeps an entry
    of length 0 in Megatron, NumPy, Parquet and Arrow files, and does not appear in packed sequences, MDS and LitData.

    Args:
        path: Output folder.
        tokenizer: A folder with a `tokenizer.json` or SentencePiece model (or anything that transformers loads), the
            file itself, `package:NAME`, or a hub id.
        format: `megatron` (.bin and .idx), `numpy` (.npy and .bounds.npy), `parquet` or `arrow` (token lists in
            `input_ids`), `mds` (MosaicML Streaming) or `litdata` (for its `TokensLoader`).
        text_field: Column that holds the text.
        append_eod: Append the end-of-text token to every document.
        eod_token: The end-of-text token or its id; defaults to the tokenizer's.
        add_special_tokens: Add the tokenizer's special tokens around each text, such as a start token.
        token_dtype: Integer type of a token: `uint16`, `uint32`, `int32` or `int64`; `auto` uses the smallest that fits
            the vocabulary and is supported by readers of the format (Parquet and Arrow: `int32`).
        sequence_length: Pack documents into sequences of this length.
        pack: How to pack: `concatenate` (sequences run across documents), `documents` (no sequence mixes documents)
            or `best_fit` (whole documents share sequences, cut only if longer than one). Default: `concatenate`.
        pad_token: The padding token or its id; defaults to the tokenizer's, otherwise the end-of-text token.
        shard_tokens: Maximum number of tokens per shard; by default no limit, and 33,554,432 for `mds` and `litdata`.
        id_field: Column that holds document ids, for the list of positions.
        fields: Columns to keep besides the tokens (Parquet and Arrow without packing only).
        mode: How to treat existing files, as for other writers.
        compression: Compression of Parquet (default `zstd`) and Arrow files.
        cache_dir: Cache folder for hub downloads.
        hf_token: Access token for gated models; it is never shown.
        transformers_init_kwargs: Options for transformers' `from_pretrained`, which then loads the tokenizer.
        storage_options: File system options for URLs.

    Raises:
        UsageError: Options contradict each other.

    Example:
        >>> pipeline.add_stage(TokenWriter("tokens/", "my-tokenizer/", format="mds", sequence_length=2048))
    """

    name = "token_writer"
    fork_safe = True
    has_summary = True
    text_parameter = "text_field"

    def __init__(
        self,
        path: str,
        tokenizer: str,
        format: TokenFormat = "megatron",
        *,
        text_field: str = "text",
        append_eod: bool = True,
        eod_token: str | int | None = None,
        add_special_tokens: bool = False,
        token_dtype: str = "auto",
        sequence_length: int | None = None,
        pack: Pack | None = None,
        pad_token: str | int | None = None,
        shard_tokens: int | None = None,
        id_field: str | None = "id",
        fields: Sequence[str] | None = None,
        mode: Mode = "ignore",
        compression: str | None = None,
        cache_dir: str | None = None,
        hf_token: str | None = None,
        transformers_init_kwargs: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(path, None, fields, mode, compression=compression, storage_options=storage_options)
        self._check_choice("format", format, get_args(TokenFormat))
        if token_dtype != "auto":
            self._check_choice("token_dtype", token_dtype, DTYPES[format])
        if pack is not None:
            self._check_choice("pack", pack, PACKS)
        for option, value in (("sequence_length", sequence_length), ("shard_tokens", shard_tokens)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(f"{self._called(option, value)}: must be a whole number, at least 1.")
        if pack is not None and sequence_length is None:
            raise UsageError(f"{self._called('pack', pack)} needs sequence_length, the length to pack to.")
        if shard_tokens is not None and sequence_length is not None and shard_tokens < sequence_length:
            raise UsageError(
                f"{self._called('shard_tokens', shard_tokens)}: a shard must hold at least one sequence of "
                f"sequence_length={sequence_length} tokens."
            )
        if fields is not None and (format not in _TABLES or sequence_length is not None):
            raise UsageError(
                f"{self._called('fields', list(self.fields or ()))}: only Parquet and Arrow without packing keep other "
                "columns beside the tokens. The record of the run has the id and the source of every document."
            )
        if compression is not None and format not in _TABLES:
            raise UsageError(f"{self._called('compression', compression)}: only Parquet and Arrow are compressed.")
        if INPUT_IDS in (self.fields or ()):
            raise UsageError(f"{self._called('fields', list(self.fields or ()))}: {INPUT_IDS} holds the tokens.")
        self._source = EncoderSource(
            tokenizer, cache_dir=cache_dir, hf_token=hf_token, init_options=transformers_init_kwargs
        )
        self._layout: TokenLayout | None = None
        self.tokenizer = self._source.identifier
        self.format = format
        self.text_field = text_field
        self.append_eod = append_eod
        self.eod_token = eod_token
        self.add_special_tokens = add_special_tokens
        self.token_dtype = token_dtype
        self.sequence_length = sequence_length
        self.pack: Pack | None = "concatenate" if sequence_length is not None and pack is None else pack
        self.pad_token = pad_token
        self.shard_tokens = _STREAM_TOKENS if shard_tokens is None and format in _STREAMS else shard_tokens
        self.id_field = id_field
        self.compression = "zstd" if compression is None and format == "parquet" else compression
        self.cache_dir = cache_dir
        self.transformers_init_kwargs = dict(transformers_init_kwargs or {})

    def _called(self, option: str, value: Any) -> str:
        return f"{type(self).__name__}({option}={value!r})"

    def _check_choice(self, option: str, value: Any, known: Sequence[str]) -> None:
        if value not in known:
            raise UsageError(
                f"{self._called(option, value)}: choose one of {', '.join(known)}.{did_you_mean(str(value), known)}"
            )

    @property
    def extension(self) -> str:
        return EXTENSIONS[self.format]

    def inputs(self) -> Spec:
        """The text, and the columns to keep."""
        return ["data"], [self.text_field, *(self.fields or ())]

    def content_digest(self) -> str | None:
        """The fingerprint of the tokenizer's files, if they are on this machine."""
        return self._source.digest()

    # --- the tokenizer ---

    def check_environment(self) -> None:
        """Reject a tokenizer that is missing, has no end-of-text token, or is too large for the requested type."""
        if self._source.is_here():
            _ = self.layout

    def setup_on_node(self, _node_info: NodeInfo | None = None, _worker_metadata: WorkerMetadata | None = None) -> None:
        """Download the tokenizer's files, once per node."""
        self._source.fetch()

    def setup(self, worker_metadata: WorkerMetadata | None = None) -> None:
        """Load the tokenizer from local files, once per worker."""
        # A worker uses the CPU cores that its stage requested.
        self._source.load(threads=None if worker_metadata is None else self.resources.cpus > 1)
        _ = self.layout

    def teardown(self) -> None:
        """Release the tokenizer."""
        self._source.forget()
        self._layout = None

    @property
    def encoder(self) -> TextEncoder:
        """The tokenizer."""
        return self._source.load()

    @property
    def eod_id(self) -> int | None:
        """The id of the end-of-text token, None if none is appended.

        Raises:
            UsageError: The tokenizer has none.
        """
        if not self.append_eod:
            return None
        found = self.encoder.token_id("eos_token", self.eod_token)
        if found is None:
            raise UsageError(
                f"append_eod: the tokenizer {self.tokenizer} does not define an end-of-text token. "
                f"{self.encoder.told_special_tokens()} Pass eod_token (--eod-token), or append_eod=False (--no-eod)."
            )
        return found

    @property
    def layout(self) -> TokenLayout:
        """The layout of the files, with the token type that the vocabulary needs.

        Raises:
            UsageError: The requested type is too small, or there is no padding token.
        """
        if self._layout is None:
            self._layout = self._made_layout()
        return self._layout

    def _made_layout(self) -> TokenLayout:
        size = self.encoder.vocabulary_size
        end = self.eod_id
        choices = DTYPES[self.format] if self.token_dtype == "auto" else (self.token_dtype,)
        fitting = [name for name in choices if size - 1 <= np.iinfo(name).max]
        if not fitting:
            raise UsageError(
                f"{self._called('token_dtype', self.token_dtype)} holds ids up to {np.iinfo(choices[-1]).max:,}, but "
                f"the vocabulary of {self.tokenizer} has {size:,} tokens. Use token_dtype='auto', or one of "
                f"{', '.join(name for name in DTYPES[self.format] if size - 1 <= np.iinfo(name).max)}."
            )
        pad = 0
        if self.pack is not None:
            found = self.encoder.token_id("pad_token", self.pad_token)
            found = end if found is None else found
            if found is None:
                raise UsageError(
                    f"sequence_length={self.sequence_length}: the last sequences need padding, but the tokenizer "
                    f"{self.tokenizer} defines no padding token. {self.encoder.told_special_tokens()} Pass one as "
                    "pad_token."
                )
            pad = found
        return TokenLayout(
            format=self.format,
            dtype=fitting[0],
            pack=self.pack,
            sequence_length=self.sequence_length,
            pad_id=pad,
            shard_tokens=self.shard_tokens,
            compression=self.compression,
        )

    # --- the work ---

    def encode(self, batch: DocumentBatch) -> pa.Table:
        """The tokens of a batch, with the origin of each document."""
        ids, lengths = self.encoder.encode(
            batch.text(self.text_field), special=self.add_special_tokens, end=self.eod_id
        )
        self._log_metrics({"tokens": float(len(ids))})
        columns: dict[str, Any] = {
            INPUT_IDS: list_column(ids.astype(self.layout.dtype), lengths),
            ROW: pa.array(batch.rows.astype(np.int64)),
        }
        if self.id_field is not None and batch.columns.has(self.id_field):
            columns[ID] = batch.text(self.id_field)
        else:
            columns[ID] = pa.nulls(batch.num_items, pa.large_string())
        files, places = batch.sources()
        columns[SOURCE] = pa.array(files, pa.large_string()).take(pa.array(places))
        table = pa.table(columns)
        if self.fields:
            names = [name for name in self.fields if batch.columns.has(name)]
            kept = batch.columns.table(names).replace_schema_metadata(None)
            for name in names:
                table = table.append_column(name, kept.column(name))
        return table

    def open_part(self, path: str) -> PartFile:
        return TokenPart(path, self.layout, storage_options=self.storage_options)

    def open_piece(self, path: str) -> PartFile:
        return _Piece(path.removesuffix(self.extension) + ".arrow", self.storage_options)

    def concatenate(self, pieces: Sequence[WrittenFile], path: str) -> list[WrittenFile]:
        part = self.open_part(path)
        try:
            for piece in pieces:
                with open_raw(piece.path, storage_options=self.storage_options) as source:
                    opened = pa.ipc.open_file(pa.PythonFile(source, mode="r"))
                    part.append(opened.read_all())
            return part.close()
        except BaseException:
            part.abort()
            raise

    def open_alone(self, path: str) -> PartFile:
        # The list of positions belongs in the record of a run, and there is none.
        return TokenPart(path, self.layout, with_places=False, storage_options=self.storage_options)

    # --- the output as a whole ---

    def notes(self) -> list[str]:
        """What the options mean for documents that are empty, or longer than a shard or a sequence."""
        told = []
        if self.append_eod:
            told.append("Documents without text are written as an end-of-text token only.")
        elif self.pack is None and self.format not in _STREAMS:
            told.append("Documents without text are written as documents without tokens.")
        else:
            told.append("Documents without text have no tokens, so they do not appear in any sequence.")
        if self.pack is not None:
            how = {
                "concatenate": "sequences run across documents, and the last one of each partition is padded",
                "documents": "longer documents are cut into several sequences, and shorter ones are padded",
                "best_fit": "longer documents are cut, others share sequences whole, and the remainder is padded",
            }[self.pack]
            told.append(f"Packing to {self.sequence_length:,} tokens ({self.pack}): {how}.")
        elif self.shard_tokens is not None:
            told.append(f"A document of more than {self.shard_tokens:,} tokens gets its own shard, uncut.")
        return told

    def summary(self, folder: RunFolder) -> OutputSummary:
        """Totals over all partitions, and the index of a streaming dataset."""
        totals = dict.fromkeys(("documents", "empty_documents", "tokens", "padding", "shards"), 0)
        shards: list[dict[str, Any]] = []
        dtype = self.layout.dtype
        for entry in sorted(Manifest(folder).scan(), key=lambda entry: entry.index):
            if "documents" not in entry.records:
                continue
            with folder.open(folder.join(entry.records["documents"].path)) as file:
                facts = facts_of(open_table(file).schema_arrow)
            for key in ("documents", "empty_documents", "tokens", "padding"):
                totals[key] += facts[key]
            totals["shards"] += len(facts["shards"])
            if self.format in _STREAMS:
                shards += [
                    {"file": file.path, "bytes": file.size, "hash": file.hash, **shard}
                    for file, shard in zip(entry.files, facts["shards"], strict=True)
                    if shard["samples"]
                ]
        facts = {
            **totals,
            "format": self.format,
            "dtype": dtype,
            "tokenizer": self.tokenizer,
            "tokenizer_digest": self.content_digest(),
            "vocabulary_size": self.encoder.vocabulary_size,
            "eod_id": self.eod_id,
            "pack": self.pack,
            "sequence_length": self.sequence_length,
            "pad_id": self.layout.pad_id if self.pack is not None else None,
            "waste": round(totals["padding"] / totals["tokens"], 6) if totals["tokens"] else 0.0,
        }
        files = {}
        if self.format == "mds":
            files[INDEX_NAME] = mds_index(shards, dtype, self.sequence_length)
        elif self.format == "litdata":
            files[INDEX_NAME] = litdata_index(shards, dtype)
        return OutputSummary(facts, files)


class _Piece:
    """The payload of one batch as an Arrow file."""

    def __init__(self, path: str, storage_options: Any) -> None:
        self._path = path
        self._storage_options = storage_options
        self._sink: ArrowSink | None = None

    def append(self, payload: pa.Table, /, *, rows: int | None = None) -> None:
        self._sink = ArrowSink(self._path, payload.schema, None, storage_options=self._storage_options)
        self._sink.append(payload)

    def close(self) -> list[WrittenFile]:
        assert self._sink is not None
        return [self._sink.close()]

    def abort(self) -> None:
        if self._sink is not None:
            self._sink.abort()
