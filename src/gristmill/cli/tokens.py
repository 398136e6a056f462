"""`gristmill tokens`: writes documents as tokens, counts tokens, and looks into shards."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli.main import (
    before_the_run,
    common_options,
    echo,
    json_option,
    marks_resumable,
    print_json,
    record_option,
)
from gristmill.cli.run import executor_options, input_options, sample_options
from gristmill.cli.workflow_options import make_engine
from gristmill.figures import duration, plural, printable, share
from gristmill.storage.formats import Format

if TYPE_CHECKING:
    from gristmill.advice.token_counts import SourceCount, TokenCounts
    from gristmill.stages.text.io.token_shards import DocumentTokens, ShardView

_FORMATS = ("megatron", "numpy", "parquet", "arrow", "mds", "litdata")
_PACKS = ("concatenate", "documents", "best_fit")
_DTYPES = ("auto", "uint16", "uint32", "int32", "int64")

tokenizer_option = click.option(
    "--tokenizer",
    required=True,
    metavar="NAME",
    help="A folder with a tokenizer.json or SentencePiece model, the file itself, package:NAME, or a hub id.",
)


@click.group("tokens", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Write tokens for trainers, count them, and look into shards."""


@command.command("write")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.argument("output")
@tokenizer_option
@click.option(
    "--format", "kind", type=click.Choice(_FORMATS), default="megatron", show_default=True, help="Format of the shards."
)
@click.option("--no-eod", is_flag=True, help="Do not append the end-of-text token to documents.")
@click.option("--eod-token", metavar="TOKEN", help="End-of-text token or its id [default: the tokenizer's].")
@click.option("--add-special-tokens", is_flag=True, help="Add the tokenizer's special tokens around each text.")
@click.option(
    "--token-dtype",
    type=click.Choice(_DTYPES),
    default="auto",
    show_default=True,
    help="Integer type of a token; auto uses the smallest that fits the vocabulary.",
)
@click.option("--sequence-length", type=click.IntRange(min=1), metavar="N", help="Pack into sequences of N tokens.")
@click.option(
    "--pack",
    type=click.Choice(_PACKS),
    help="How to pack: concatenate (across documents), documents (never across), best_fit (whole documents together) "
    "[default: concatenate].",
)
@click.option("--pad-token", metavar="TOKEN", help="Padding token or its id.")
@click.option("--shard-tokens", type=click.IntRange(min=1), metavar="N", help="Start a new shard after N tokens.")
@click.option("--fresh", is_flag=True, help="Start over instead of resuming the previous run.")
@input_options
@sample_options
@executor_options
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@json_option
@common_options
def write(
    inputs: tuple[str, ...],
    output: str,
    tokenizer: str,
    kind: Any,
    no_eod: bool,
    eod_token: str | None,
    add_special_tokens: bool,
    token_dtype: str,
    sequence_length: int | None,
    pack: Any,
    pad_token: str | None,
    shard_tokens: int | None,
    fresh: bool,
    text_field: str | None,
    input_filetype: Format | None,
    limit: int | None,
    sample: float | None,
    seed: int | None,
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Tokenize documents and write shards for a trainer.

    INPUT is a file, folder, glob or URL, and can be repeated. Run the same command again to resume an interrupted run.
    The record beside OUTPUT holds the position of every document and, in summary.json, the totals.

    \b
    gristmill tokens write clean/ tokens/ --tokenizer my-tokenizer/
    gristmill tokens write clean/ mds/ --tokenizer my-tokenizer/ --format mds \\
        --sequence-length 2048 --pack best_fit
    """
    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.io.documents import DocumentReader
    from gristmill.stages.text.io.writer.tokens import TokenWriter

    if seed is not None and sample is None:
        raise click.UsageError("--seed needs --sample.")
    with before_the_run():
        reader = DocumentReader(list(inputs), input_filetype, sample=sample, seed=seed or 0, max_documents=limit)
        writer = TokenWriter(
            output,
            tokenizer,
            kind,
            text_field=text_field or "text",
            append_eod=not no_eod,
            eod_token=_token(eod_token),
            add_special_tokens=add_special_tokens,
            token_dtype=token_dtype,
            sequence_length=sequence_length,
            pack=pack,
            pad_token=_token(pad_token),
            shard_tokens=shard_tokens,
        )
        writer.check_environment()
    chosen = make_engine(executor, workers, memory_budget)
    marks_resumable()
    pipeline = Pipeline("tokens", stages=[reader, writer])
    result = pipeline.run(chosen, fresh=fresh, progress=False if quiet or as_json else None)
    from gristmill.ledger.record.layout import RunFolder
    from gristmill.ledger.record.summary import read_summary

    summary = read_summary(RunFolder(output)) or {}
    if as_json:
        print_json({"status": "done", "output": output, "seconds": round(result.report.seconds, 3), **summary})
        return
    told = f"{summary['tokens']:,} tokens ({summary['dtype']}) of {plural(summary['documents'], 'document')} in "
    told += f"{plural(summary['shards'], 'shard')}"
    if summary["pack"] is not None:
        told += f", {share(summary['waste'])} of them padding"
    if summary["empty_documents"]:
        told += f"; {plural(summary['empty_documents'], 'document')} without tokens"
    echo(f"{told}. Output: {output}")


@command.command("count")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@tokenizer_option
@click.option("--by", metavar="NAME", help="Count by this column [default: by input file].")
@click.option("--add-special-tokens", is_flag=True, help="Also count the tokenizer's special tokens.")
@input_options
@sample_options
@executor_options
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@json_option
@common_options
def count(
    inputs: tuple[str, ...],
    tokenizer: str,
    by: str | None,
    add_special_tokens: bool,
    text_field: str | None,
    input_filetype: Format | None,
    limit: int | None,
    sample: float | None,
    seed: int | None,
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Count the tokens of an input, by source.

    INPUT is a file, folder, glob or URL, and can be repeated. Reads everything once and writes nothing.

    \b
    gristmill tokens count clean/ --tokenizer my-tokenizer/
    gristmill tokens count clean/ --tokenizer my-tokenizer/ --by source --sample 1%
    """
    from gristmill.advice.token_counts import count_tokens
    from gristmill.observe.display import make_listener

    if seed is not None and sample is None:
        raise click.UsageError("--seed needs --sample.")
    chosen = make_engine(executor, workers, memory_budget)
    with closing(make_listener("off" if quiet or as_json else "auto")) as display:
        found = count_tokens(
            inputs,
            tokenizer,
            chosen,
            by=by,
            text_field=text_field or "text",
            add_special_tokens=add_special_tokens,
            filetype=input_filetype,
            sample=sample,
            seed=seed or 0,
            max_documents=limit,
            listeners=[display],
        )
    if as_json:
        print_json(_counts_json(found, tokenizer))
        return
    _print_counts(found)


@command.command("inspect")
@click.argument("shard")
@click.option("--tokenizer", metavar="NAME", help="The tokenizer [default: the one used by the run].")
@click.option("--document", metavar="ID", help="Show only the document with this id.")
@click.option("--offset", type=click.IntRange(min=0), metavar="N", help="Show the document that token N belongs to.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="N",
    help="Maximum number of documents to show.",
)
@click.option(
    "--tokens",
    "max_tokens",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    metavar="N",
    help="Maximum number of tokens to show of each.",
)
@record_option
@json_option
@common_options
def inspect(
    shard: str,
    tokenizer: str | None,
    document: str | None,
    offset: int | None,
    limit: int,
    max_tokens: int,
    record_path: str | None,
    as_json: bool,
) -> None:
    """Show documents of a shard: text, token ids and where they come from.

    SHARD is a file written by 'tokens write' or TokenWriter: .bin or .idx, .npy, .parquet, .arrow or .mds. Without the
    record of the run, shows ids only.

    \b
    gristmill tokens inspect tokens/web.bin
    gristmill tokens inspect tokens/web.bin --offset 1048576
    """
    from gristmill.stages.text.io.token_shards import inspect_shard

    found = inspect_shard(
        shard,
        tokenizer=tokenizer,
        document=document,
        offset=offset,
        limit=limit,
        max_tokens=max_tokens,
        record_path=record_path,
    )
    if as_json:
        print_json(asdict(found))
        return
    _print_shard(found)


def _token(text: str | None) -> str | int | None:
    """A token by its text, or by its id if the value is a number."""
    return int(text) if text is not None and text.isdecimal() else text


# --- views ---


def _counts_json(found: TokenCounts, tokenizer: str) -> dict[str, Any]:
    return {
        "tokenizer": tokenizer,
        **asdict(found.total),
        "longest": found.longest,
        "unreadable": found.unreadable,
        "seconds": round(found.seconds, 3),
        "sources": {name: asdict(count) for name, count in found.sources.items()},
    }


def _print_counts(found: TokenCounts) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(("source", "documents", "tokens", "share", "tokens per document", "bytes per token")):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    total = found.total
    for name, one in [*found.sources.items(), ("total", total)]:
        table.add_row(*_count_row(name, one, total))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    rate = f" ({total.tokens / found.seconds:,.0f} tokens/s)" if found.seconds else ""
    echo(f"Longest document: {found.longest:,} tokens. {duration(found.seconds)}{rate}.")
    if found.unreadable:
        echo(f"Not counted because unreadable: {plural(found.unreadable, 'record')}.")


def _count_row(name: str, one: SourceCount, total: SourceCount) -> tuple[str, ...]:
    from rich.markup import escape

    return (
        escape(printable(name)),
        f"{one.documents:,}",
        f"{one.tokens:,}",
        share(one.tokens / total.tokens) if total.tokens else "",
        f"{one.tokens / one.documents:,.1f}" if one.documents else "",
        f"{one.bytes / one.tokens:.2f}" if one.tokens else "",
    )


def _print_shard(found: ShardView) -> None:
    size = f"{found.tokens:,} tokens ({found.dtype}) in {plural(found.sequences, 'sequence')}"
    if found.documents is not None:
        size += f", {plural(found.documents, 'document')}"
    if found.padding:
        size += f", {found.padding:,} tokens of padding"
    echo(f"{found.path}: {found.format}, {size}.")
    for note in found.notes:
        echo(note)
    for one in found.shown:
        echo()
        echo(_origin(one))
        echo(f"  ids: {' '.join(map(str, one.ids))}{' …' if len(one.ids) < one.tokens else ''}")
        if one.text is not None:
            echo(f"  text: {one.text!r}")


def _origin(one: DocumentTokens) -> str:
    place = f"tokens {one.offset:,} to {one.offset + one.tokens:,}"
    if one.row is None:
        return place
    told = f"{place}: {f'document {one.id}' if one.id is not None else 'a document without id'}"
    told += f", from its token {one.start:,} on" if one.start else ""
    return f"{told}, row {one.row} of partition {one.partition}" + (f", {one.source}" if one.source else "")
