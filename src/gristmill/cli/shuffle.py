"""`gristmill shuffle`: all documents in random order, as shards and splits."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from gristmill.cli.dedup import make_engine
from gristmill.cli.main import (
    DONE,
    QUARANTINED,
    before_the_run,
    common_options,
    echo,
    json_option,
    marks_resumable,
    print_json,
    record_option,
)
from gristmill.cli.run import error_budget_option, executor_options, options, salvage_option

token_options = options(
    click.option("--token-count-field", metavar="COLUMN", help="Column that holds the number of tokens."),
    click.option("--tokenizer", metavar="FOLDER", help="Count tokens with this tokenizer folder or tokenizer.json."),
    click.option("--text-field", default="text", show_default=True, help="Column that holds the text."),
)
steps_options = options(
    click.option("--cache", "cache_path", metavar="FOLDER", help="Where intermediate files go [default: the record]."),
    click.option("--keep-steps", is_flag=True, help="Keep the intermediate files."),
)


def _splits(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, float | None] | None:
    found: dict[str, float | None] = {}
    for text in given:
        name, has, share = text.partition("=")
        if name in found:
            raise click.BadParameter(f"the split {name!r} is given twice.")
        try:
            found[name] = float(share) if has else None
        except ValueError:
            raise click.BadParameter(f"{text!r}: write NAME=FRACTION, such as validation=0.02.") from None
    return found or None


@click.command("shuffle")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.argument("output_path", metavar="OUTPUT")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Another seed gives another order.")
@click.option("--shard-size", metavar="SIZE", help="About how large a shard is, such as 500MB [default: 256MiB].")
@click.option("--shard-documents", type=click.IntRange(min=1), metavar="N", help="Or the most documents of a shard.")
@click.option("--shard-tokens", type=click.IntRange(min=1), metavar="N", help="Or about how many tokens of a shard.")
@click.option(
    "--split",
    "splits",
    multiple=True,
    callback=_splits,
    metavar="NAME=FRACTION",
    help="A split, such as train=0.98; the last one may leave out its fraction and gets the rest. May be repeated.",
)
@click.option(
    "--split-field",
    metavar="COLUMN",
    help="Documents with the same value here stay in one split, such as the cluster of near-duplicates [default: id].",
)
@click.option("--balance", type=click.Choice(["length"]), help="Give every shard the same mix of document lengths.")
@token_options
@click.option("--id-field", metavar="COLUMN", help="Column that holds ids [default: id, where there is one].")
@click.option("--license-field", metavar="COLUMN", help="Column that holds licences [default: license, if there].")
@click.option("--blocksize", "input_blocksize", metavar="SIZE", help="Partitions of about this size [default: 128MiB].")
@click.option(
    "--input-filetype", type=click.Choice(["jsonl", "parquet"]), help="What to read [default: what is there]."
)
@click.option("--output-filetype", type=click.Choice(["jsonl", "parquet"]), help="What to write [default: as read].")
@click.option("--compression", metavar="NAME", help="Compress the shards, such as zstd [default: zstd for Parquet].")
@steps_options
@record_option
@executor_options
@error_budget_option
@salvage_option
@click.option("--fresh", is_flag=True, help="Start over instead of resuming the previous run.")
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor the summary at the end.")
@json_option
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    inputs: tuple[str, ...],
    output_path: str,
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
    compression: str | None,
    as_json: bool,
    quiet: bool,
    fresh: bool,
    error_budget: float | int | None,
    salvage: bool,
    **given: Any,
) -> None:
    """Shuffle documents into shards and splits.

    INPUT is a file, a folder, a glob or a URL, and there may be several. All documents are put into one random order
    and written as shards of equal size. The order follows from --seed: it is the same for any number of workers. JSONL
    records keep their bytes. The record of OUTPUT has a manifest of inputs and shards (dataset.json) and a table that
    leads from every document to its shard and offset (steps/documents).

    Memory does not grow with the data. Intermediate files take as much disk as the documents and are removed at the
    end. Interrupt a run at any time and run the same command again to resume.

    \b
    gristmill shuffle clean/ shuffled/ --shard-size 500MB --seed 17
    gristmill shuffle clean/ shuffled/ --split train=0.98 --split validation --split-field cluster
    """
    engine = make_engine(executor, workers, memory_budget)
    with before_the_run():
        from gristmill.stages.sharding import ShuffleWorkflow

        writing = None if compression is None else {"compression": compression}
        paths = inputs[0] if len(inputs) == 1 else list(inputs)
        workflow = ShuffleWorkflow(output_path, paths, write_kwargs=writing, **given)
    result = run_workflow(workflow, engine, quiet, fresh=fresh, error_budget=error_budget, salvage=salvage)
    finish(ctx, result, as_json=as_json, quiet=quiet)


def run_workflow(workflow: Any, engine: Any, quiet: bool, **given: Any) -> dict[str, Any]:
    """Run a workflow with its progress on the terminal; gives what it says of itself."""
    from gristmill.observe.display import make_listener

    marks_resumable()
    with closing(make_listener("off" if quiet else "auto")) as display:
        result = workflow.run(executor=engine, listeners=[display], progress=False, **given)
    facts: dict[str, Any] = result.metadata
    return facts


def finish(ctx: click.Context, facts: dict[str, Any], *, as_json: bool, quiet: bool) -> None:
    """Say what came out, and end with the exit code that fits."""
    quarantined = sum(source["quarantined"] for source in facts["sources"])
    if as_json:
        print_json({"status": "done", **facts})
    elif not quiet:
        echo("\n".join(summary(facts)))
    ctx.exit(QUARANTINED if quarantined else DONE)


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
