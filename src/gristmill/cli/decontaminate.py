"""`gristmill decontaminate`: takes benchmark items out of documents; `gristmill contamination` shows what was found."""

from __future__ import annotations

from collections.abc import Mapping
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
from gristmill.cli.run import error_budget_option, executor_options, metrics_options, salvage_option
from gristmill.errors import InputNotFoundError
from gristmill.figures import plural

_LISTED = 20


@click.command("decontaminate")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.argument("output_path", metavar="OUTPUT")
@click.option(
    "--benchmarks",
    required=True,
    metavar="DIR",
    help="A folder of benchmark files (JSONL, Parquet or Arrow). Each file directly in it is a benchmark, and so is "
    "each subfolder.",
)
@click.option(
    "--match",
    type=click.Choice(["13gram", "8gram", "fuzzy", "semantic"]),
    default="13gram",
    show_default=True,
    help="What counts as contaminated: any 13 words in a row (GPT-3), half of an item's words in shared runs of 8 "
    "(Llama 3, OLMo 2), 60 % of them in runs of 5, or an embedding within --eps of an item's.",
)
@click.option(
    "--action",
    type=click.Choice(["drop", "cut", "mark"]),
    default="drop",
    show_default=True,
    help="Drop contaminated documents, cut the passages out (not with semantic), or add a column 'contamination'.",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="[NAME:]FIELD",
    help="A field of the items to search for, of the benchmark NAME or of all. May be repeated "
    "[default: question, answer, choices].",
)
@click.option("--ngram", type=int, metavar="N", help="N-grams of N words instead.")
@click.option(
    "--min-share", type=float, help="The least share of an item's words that a document has to hold; 0 for any n-gram."
)
@click.option("--min-words", type=int, help="Texts of fewer words are not searched for [default: 8].")
@click.option(
    "--max-documents",
    type=int,
    metavar="N",
    help="Ignore n-grams that more than N documents hold; GPT-3 used 10 [default: ignore none].",
)
@click.option("--window-chars", type=int, default=200, show_default=True, help="cut: also cut N characters around.")
@click.option("--min-piece-chars", type=int, default=200, show_default=True, help="cut: leave shorter pieces out.")
@click.option("--max-pieces", type=int, default=10, show_default=True, help="cut: drop documents of more pieces.")
@click.option(
    "--eps", type=float, help="semantic: how far apart an item and a document may be, as 1 - cosine [default: 0.15]."
)
@click.option(
    "--model", "model_identifier", metavar="NAME", help="semantic: the sentence model [default: all-MiniLM-L6-v2]."
)
@executor_options
@json_option
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor the summary at the end.")
@click.option("--fresh", is_flag=True, help="Start over: do not resume what an earlier run left.")
@error_budget_option
@salvage_option
@click.option("--text-field", default="text", show_default=True, help="The column with the text.")
@click.option("--id-field", help="The column with the documents' ids [default: id, where there is one].")
@click.option("--blocksize", metavar="SIZE", help="Partitions of about this size, such as 128MB.")
@click.option(
    "--input-filetype", type=click.Choice(["jsonl", "parquet"]), help="What to read [default: what is there]."
)
@click.option("--output-filetype", type=click.Choice(["jsonl", "parquet"]), help="What to write [default: as read].")
@click.option("--cache", "cache_path", metavar="FOLDER", help="Where intermediate files go [default: the record].")
@record_option
@metrics_options
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
    as_json: bool,
    quiet: bool,
    fresh: bool,
    error_budget: float | int | None,
    salvage: bool,
    metrics_port: int | None,
    metrics_file: str | None,
    **options: Any,
) -> None:
    """Take items of benchmarks out of documents.

    INPUT is a file, a folder, a glob or a URL, and there may be several. Words are compared in lower case and without
    punctuation; every match is compared letter by letter. 'gristmill contamination OUTPUT' shows each benchmark and
    item with the documents and passages in which it was found. Interrupt a run at any time: the same command resumes
    it.

    \b
    gristmill decontaminate crawl/ clean/ --benchmarks benchmarks/
    gristmill decontaminate crawl/ clean/ --benchmarks benchmarks/ --match 8gram --action cut
    gristmill decontaminate crawl/ clean/ --benchmarks benchmarks/ --match semantic --eps 0.1
    gristmill decontaminate crawl/ clean/ --benchmarks benchmarks/ --field question --field hellaswag:ctx
    """
    engine = make_engine(executor, workers, memory_budget)
    from gristmill.observe.display import make_listener
    from gristmill.stages.deduplication import DecontaminationWorkflow

    with before_the_run():
        workflow = DecontaminationWorkflow(
            inputs[0] if len(inputs) == 1 else list(inputs),
            output_path,
            fields=options.pop("fields") or None,
            input_blocksize=options.pop("blocksize"),
            **options,
        )
    marks_resumable()
    with closing(make_listener("off" if quiet else "auto")) as display:
        result = workflow.run(
            executor=engine,
            fresh=fresh,
            error_budget=error_budget,
            salvage=salvage,
            listeners=[display],
            progress=False,
            metrics_port=metrics_port,
            metrics_file=metrics_file,
        )
    facts: dict[str, Any] = result.metadata
    if as_json:
        print_json({"status": "done", **facts})
    elif not quiet:
        echo("\n".join(summary(facts)))
    ctx.exit(QUARANTINED if facts["quarantined"] else DONE)


def summary(facts: Mapping[str, Any]) -> list[str]:
    """The result in a few lines."""
    found, action = facts["contaminated"], facts["action"]
    lines = [f"{plural(facts['documents'], 'document')} read, {found} contaminated in {facts['total_time']:.1f} s"]
    done = {"drop": "dropped", "cut": "cut or dropped", "mark": "marked"}[action]
    lines.append(
        f"{plural(found, 'document')} {done}, {facts['num_removed']} of them gone" if found else "none changed"
    )
    lines += [benchmark_line(benchmark) for benchmark in facts["benchmarks"][:_LISTED]]
    more = len(facts["benchmarks"]) - _LISTED
    if more > 0:
        lines.append(f"and {plural(more, 'more benchmark')}: see 'gristmill contamination {facts['output']}'")
    if facts["common_ngrams"]:
        lines.append(f"{plural(facts['common_ngrams'], 'n-gram')} ignored because too many documents hold them")
    lines += facts["damaged"]
    if facts["quarantined"]:
        lines.append(
            f"{plural(facts['quarantined'], 'record')} could not be read: see 'gristmill quarantine {facts['output']}'"
        )
    lines.append(f"output: {facts['output']}")
    return lines


def benchmark_line(benchmark: Mapping[str, Any]) -> str:
    """One benchmark in a line: how many of its items were searched for and found."""
    line = f"{benchmark['benchmark']}: {benchmark['contaminated']} of {plural(benchmark['searched'], 'item')} found"
    if benchmark["too_short"]:
        line += f"; {benchmark['too_short']} too short to search for"
    if benchmark["only_templates"]:
        line += f"; {benchmark['only_templates']} of nothing but text shared by many items"
    return line


@click.command("contamination")
@click.argument("output")
@click.option("--benchmark", metavar="NAME", help="Only this benchmark.")
@click.option("--limit", type=click.IntRange(1), default=_LISTED, show_default=True, help="Show at most N items.")
@record_option
@json_option
@common_options
def contamination(output: str, benchmark: str | None, limit: int, record_path: str | None, as_json: bool) -> None:
    """Show the benchmark items found in documents.

    For each benchmark how many of its items were searched for and found; then the items, the most contaminated first,
    with the documents that hold them and the passage.

    \b
    gristmill contamination clean/
    gristmill contamination clean/ --benchmark mmlu --limit 5
    """
    from gristmill.ledger.record.contamination import read_contamination
    from gristmill.ledger.record.layout import RunFolder

    folder = RunFolder(output, record_path=record_path)
    found = read_contamination(folder)
    if found is None:
        raise InputNotFoundError(
            f"{output} was not decontaminated: there is no contamination.json in its record. Run 'gristmill "
            "decontaminate' first.",
            path=output,
        )
    benchmarks = [one for one in found["benchmarks"] if benchmark in (None, one["benchmark"])]
    if not benchmarks:
        known = ", ".join(repr(one["benchmark"]) for one in found["benchmarks"])
        raise InputNotFoundError(f"There is no benchmark {benchmark!r} in {output}, only {known}.", path=output)
    items = [one for one in found["items"] if benchmark in (None, one["item"].rpartition("#")[0])]
    if as_json:
        print_json({**found, "benchmarks": benchmarks, "items": items[:limit]})
        return
    for one in benchmarks:
        echo(benchmark_line(one))
    for item in items[:limit]:
        echo(f"\n{item['item']}: {item['share']:.0%} in {plural(item['documents'], 'document')}")
        echo(f"  item: {_line(item['text'])}")
        for document in item["found_in"]:
            echo(f"  {_line(document['document'])} ({document['share']:.0%}): {_line(document['passage'])}")
    left = len(items) - limit + (found["items_not_shown"] if benchmark is None else 0)
    if left > 0:
        echo(f"\n{plural(left, 'more item')} found")


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
