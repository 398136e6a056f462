"""Inspects token shards: the documents in them, their origin, token ids and text."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import InputNotFoundError, UsageError, VerificationError
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import Manifest, ManifestEntry
from gristmill.ledger.record.shape import open_table
from gristmill.ledger.record.summary import read_summary
from gristmill.stages.text.models.text_encoder import TextEncoder, load_encoder
from gristmill.storage.token_formats.places import facts_of
from gristmill.storage.token_formats.reading import ShardTokens


@dataclass(frozen=True, slots=True)
class DocumentTokens:
    """A run of tokens of one document.

    Attributes:
        offset: Position of its first token in the shard.
        tokens: Number of tokens.
        ids: The first token ids.
        text: Their text, if the tokenizer is known.
        start: Position of the run's first token within the document; not 0 for a later part of a split document.
        partition: Partition of the run that wrote it, with `row` the document's row there; None without a record.
        row: See `partition`.
        id: Id of the document, if it has one.
        source: Input file, if known.
    """

    offset: int
    tokens: int
    ids: list[int]
    text: str | None = None
    start: int = 0
    partition: str | None = None
    row: int | None = None
    id: str | None = None
    source: str | None = None


@dataclass(slots=True)
class ShardView:
    """The contents of a shard.

    Attributes:
        path: File with the tokens.
        format: Format of the shard.
        dtype: Type of a token.
        tokens: Number of tokens, padding included.
        sequences: Number of sequences.
        documents: Number of documents that begin in it; None without the record of a run.
        padding: Number of padding tokens; None without the record of a run.
        tokenizer: Tokenizer used to decode the tokens; None if none was found.
        shown: Some of the documents.
        notes: What is unknown, and why.
    """

    path: str
    format: str
    dtype: str
    tokens: int
    sequences: int
    documents: int | None = None
    padding: int | None = None
    tokenizer: str | None = None
    shown: list[DocumentTokens] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def inspect_shard(
    path: str,
    *,
    tokenizer: str | None = None,
    document: str | None = None,
    offset: int | None = None,
    limit: int = 5,
    max_tokens: int = 64,
    record_path: str | None = None,
) -> ShardView:
    """Show documents of a shard with their origin.

    Args:
        path: The shard.
        tokenizer: The tokenizer, if not the one used by the run.
        document: Only the document with this id.
        offset: Only the document that the token at this position belongs to.
        limit: Show at most this many runs of documents.
        max_tokens: Show at most this many tokens of each.
        record_path: Path of the run's record, if not beside the output.

    Raises:
        InputNotFoundError: There is no such shard, or nothing in it matches.

    Example:
        >>> inspect_shard("tokens/web.bin", limit=1).shown[0].source  # doctest: +SKIP
        'crawl/web.jsonl'
    """
    shard = ShardTokens(path)
    view = ShardView(shard.path, shard.format, shard.dtype, shard.tokens, len(shard.lengths))
    folder = RunFolder(os.path.dirname(os.path.abspath(shard.path)), record_path=record_path)
    entry = _entry_of(folder, os.path.basename(shard.path))
    encoder = _encoder(folder, tokenizer, view)
    if entry is None:
        view.notes.append(f"No record of a run lists this shard (looked in {folder.record}), so origins are unknown.")
        if document is not None:
            raise InputNotFoundError(
                f"{shard.path} is not in a record of a run, so the document {document!r} cannot be found in it.",
                path=shard.path,
            )
        runs = _sequences(shard)
    else:
        runs = _runs(folder, entry, shard, view)
    if document is not None:
        runs = runs.filter(pc.equal(runs.column("id"), document))
        if not runs.num_rows:
            raise InputNotFoundError(f"No document with the id {document!r} is in {shard.path}.", path=shard.path)
    if offset is not None:
        if not 0 <= offset < shard.tokens:
            raise UsageError(f"offset={offset}: {shard.path} has {shard.tokens:,} tokens, numbered from 0.")
        begin = runs.column("offset")
        inside = pc.and_(pc.less_equal(begin, offset), pc.greater(pc.add(begin, runs.column("tokens")), offset))
        runs = runs.filter(inside)
        if not runs.num_rows:
            view.notes.append(f"The token at {offset:,} is padding.")
    for row in runs.slice(0, limit).to_pylist():
        ids = shard.read(row["offset"], min(max_tokens, row["tokens"])).tolist()
        text = encoder.decode(ids) if encoder is not None else None
        partition = None if entry is None else entry.partition
        view.shown.append(DocumentTokens(**row, ids=ids, text=text, partition=partition))
    return view


def _entry_of(folder: RunFolder, name: str) -> ManifestEntry | None:
    """The partition that a shard belongs to."""
    if not os.path.isdir(folder.record):
        return None
    return next((one for one in Manifest(folder).scan() if any(file.path == name for file in one.files)), None)


def _encoder(folder: RunFolder, tokenizer: str | None, view: ShardView) -> TextEncoder | None:
    named = tokenizer
    if named is None:
        summary = read_summary(folder) or {}
        named = summary.get("tokenizer")
    if named is None:
        view.notes.append("The tokenizer is unknown; pass it (--tokenizer) to see the text.")
        return None
    try:
        encoder = load_encoder(named)
    except (OSError, ValueError) as error:
        if tokenizer is not None:
            raise
        view.notes.append(f"Cannot load the tokenizer of the run ({error}). Pass it (--tokenizer) to see the text.")
        return None
    view.tokenizer = named
    return encoder


def _sequences(shard: ShardTokens) -> pa.Table:
    """The sequences of a shard without a record, in place of its documents."""
    offset = np.cumsum(shard.lengths) - shard.lengths
    return pa.table({"offset": offset, "tokens": shard.lengths})


def _runs(folder: RunFolder, entry: ManifestEntry, shard: ShardTokens, view: ShardView) -> pa.Table:
    """The runs of documents in a shard, in the order of their tokens."""
    place: Any = entry.records.get("documents")
    if place is None:
        raise VerificationError(f"The record of {entry.partition} has no list of documents.", path=shard.path)
    with folder.open(folder.join(place.path)) as file:
        opened = open_table(file)
        facts = facts_of(opened.schema_arrow)
        table = opened.read()
    # The files of a partition are listed shard by shard.
    owners = [number for number, one in enumerate(facts["shards"]) for _ in one["files"]]
    names = [file.path for file in entry.files]
    number = owners[names.index(os.path.basename(shard.path))]
    table = table.filter(pc.equal(table.column("shard"), number)).drop_columns(["shard"])
    at = table.schema.get_field_index("source")
    table = table.set_column(at, "source", table.column(at).cast(pa.large_string()))
    view.documents = facts["shards"][number]["documents"]
    view.padding = shard.tokens - int(pc.sum(table.column("tokens")).as_py() or 0)
    return table.sort_by([("offset", "ascending"), ("row", "ascending")])
