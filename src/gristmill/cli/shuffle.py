"""`gristmill shuffle`: writes all documents in random order, as shards and splits."""

from __future__ import annotations

from typing import Any

import click

from gristmill.cli.main import before_the_run, common_options, record_option
from gristmill.cli.run import options
from gristmill.cli.workflow_options import Start, cache_option, file_options, one_or_list, start_options, text_option

token_options = options(
    click.option("--token-count-field", metavar="COLUMN", help="Column that holds the number of tokens."),
    click.option("--tokenizer", metavar="FOLDER", help="Count tokens with this tokenizer folder or tokenizer.json."),
    text_option,
)
steps_options = options(cache_option, click.option("--keep-steps", is_flag=True, help="Keep the intermediate files."))


def _splits(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, float | None] | None:
    found: dict[str, float | None] = {}
    for text in given:
        name, has, share = text.partition("=")
        if name in found:
            raise click.BadParameter(f"the split {name!r} is set twice.")
        try:
            found[name] = float(share) if has else None
        except ValueError:
            raise click.BadParameter(f"{text!r}: write NAME=FRACTION, such as validation=0.02.") from None
    return found or None


@click.command("shuffle")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.argument("output_path", metavar="OUTPUT")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Random seed of the order.")
@click.option("--shard-size", metavar="SIZE", help="Approximate shard size, such as 500MB [default: 256MiB].")
@click.option(
    "--shard-documents", type=click.IntRange(min=1), metavar="N", help="Or: maximum number of documents per shard."
)
@click.option(
    "--shard-tokens", type=click.IntRange(min=1), metavar="N", help="Or: approximate number of tokens per shard."
)
@click.option(
    "--split",
    "splits",
    multiple=True,
    callback=_splits,
    metavar="NAME=FRACTION",
    help="A split, such as train=0.98; the last one may omit its fraction and gets the rest. Repeatable.",
)
@click.option(
    "--split-field",
    metavar="COLUMN",
    help="Column whose equal values stay in one split, such as the cluster of near-duplicates [default: id].",
)
@click.option("--balance", type=click.Choice(["length"]), help="Give every shard the same mix of document lengths.")
@token_options
@file_options
@click.option("--license-field", metavar="COLUMN", help="Column that holds licences [default: license, if present].")
@click.option("--compression", metavar="NAME", help="Compress the shards, such as zstd [default: zstd for Parquet].")
@steps_options
@record_option
@start_options
@common_options
def command(inputs: tuple[str, ...], output_path: str, compression: str | None, **given: Any) -> None:
    """Shuffle documents into shards and splits.

    INPUT is a file, folder, glob or URL, and can be repeated. All documents are put into one random order and written
    as shards of equal size. The order follows from --seed: it is the same for any number of workers. JSONL records keep
    their bytes. The record of OUTPUT has a manifest of inputs and shards (dataset.json) and a table that maps every
    document to its shard and offset (steps/documents).

    Memory does not grow with the data. Intermediate files take as much disk as the documents and are removed at the
    end. Interrupt a run at any time and run the same command again to resume.

    \b
    gristmill shuffle clean/ shuffled/ --shard-size 500MB --seed 17
    gristmill shuffle clean/ shuffled/ --split train=0.98 --split validation --split-field cluster
    """
    start = Start.taken_from(given)
    with before_the_run():
        from gristmill.stages.sharding import ShuffleWorkflow

        writing = None if compression is None else {"compression": compression}
        workflow = ShuffleWorkflow(output_path, one_or_list(inputs), write_kwargs=writing, **given)
    start.run_and_end(workflow, summary)


def summary(facts: dict[str, Any]) -> list[str]:
    """The result in a few lines."""
    from gristmill.figures import format_size, plural, share

    totals = facts["totals"]
    size = format_size(totals["bytes"])
    tokens = "" if totals["tokens"] is None else f", {totals['tokens']:,} tokens"
    shards = plural(len(facts["shards"]), "shard")
    lines = [f"{plural(totals['documents'], 'document')} ({size}{tokens}) in {shards}, {facts['total_time']:.1f} s"]
    for name, split in facts["splits"].items():
        part = share(split["documents"] / max(1, totals["documents"]))
        lines.append(
            f"  {name}: {plural(split['documents'], 'document')} ({part}) in {plural(split['shards'], 'shard')}"
        )
    if facts["kind"] == "mix":
        for source in facts["sources"]:
            amounts = [plural(source["documents"], "document"), format_size(source["bytes"])]
            amounts += [] if source["tokens"] is None else [f"{source['tokens']:,} tokens"]
            epochs = f"{source['epochs']:.3g} epochs"
            lines.append(f"  {source['name']}: {share(source['share'])}, {epochs}, {', '.join(amounts)}")
    lines += [
        f"{plural(source['quarantined'], 'record')} of {source['name']} could not be read."
        for source in facts["sources"]
        if source["quarantined"]
    ]
    return [*lines, *facts["notes"], f"output: {facts['output']}"]
