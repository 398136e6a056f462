"""`gristmill decontaminate`: removes benchmark items from documents; `gristmill contamination` shows what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from gristmill.cli.main import before_the_run, common_options, echo, json_option, print_json, record_option
from gristmill.cli.run import metrics_options
from gristmill.cli.workflow_options import Start, cache_option, file_options, one_or_list, start_options, text_option
from gristmill.errors import InputNotFoundError
from gristmill.execution.late_imports import defer_imports
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
    help="What counts as contaminated: any 13 words in a row (GPT-3), more than half of an item's words in shared "
    "8-grams (Tülu 3, OLMo 2), 60 % of them in shared 5-grams, or an embedding within --eps of an item's.",
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
    help="A field of the items to search for, for the benchmark NAME or for all of them. Repeatable [default: "
    "question, answer, choices].",
)
@click.option("--ngram", type=int, metavar="N", help="Use N-grams of N words instead.")
@click.option(
    "--min-share", type=float, help="Minimum share of an item's words that a document must contain; 0 for any n-gram."
)
@click.option("--min-words", type=int, help="Skip items with fewer words [default: 8].")
@click.option(
    "--max-documents",
    type=int,
    metavar="N",
    help="Ignore n-grams that occur in more than N documents; GPT-3 used 10 [default: ignore none].",
)
@click.option(
    "--window-chars", type=int, default=200, show_default=True, help="cut: also cut N characters on either side."
)
@click.option(
    "--min-piece-chars",
    type=int,
    default=200,
    show_default=True,
    help="cut: remove remaining pieces shorter than this.",
)
@click.option(
    "--max-pieces",
    type=int,
    default=10,
    show_default=True,
    help="cut: drop documents split into more pieces than this.",
)
@click.option(
    "--eps", type=float, help="semantic: maximum distance (1 - cosine) between an item and a document [default: 0.15]."
)
@click.option(
    "--model", "model_identifier", metavar="NAME", help="semantic: the sentence model [default: all-MiniLM-L6-v2]."
)
@start_options
@text_option
@file_options
@cache_option
@record_option
@metrics_options
@common_options
def command(inputs: tuple[str, ...], output_path: str, **given: Any) -> None:
    """Remove benchmark items from documents.

    INPUT is a file, folder, glob or URL, and can be repeated. Words are compared in lower case and without punctuation;
    every match is compared letter by letter. 'gristmill contamination OUTPUT' shows each benchmark and item with the
    documents and passages in which it was found. Run the same command again to resume an interrupted run.

    \b
    gristmill decontaminate crawl/ clean/ --benchmarks benchmarks/
    gristmill decontaminate crawl/ clean/ --benchmarks benchmarks/ --match 8gram --action cut
    gristmill decontaminate crawl/ clean/ --benchmarks benchmarks/ --match semantic --eps 0.1
    gristmill decontaminate crawl/ clean/ --benchmarks benchmarks/ --field question --field hellaswag:ctx
    """
    if (given["executor"] or "local") == "local" and given["match"] != "semantic":
        defer_imports()
    start = Start.taken_from(given)
    from gristmill.stages.deduplication import DecontaminationWorkflow

    fields = given.pop("fields") or None
    with before_the_run():
        workflow = DecontaminationWorkflow(one_or_list(inputs), output_path, fields=fields, **given)
    start.run_and_end(workflow, summary)


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
        lines.append(f"{plural(facts['common_ngrams'], 'n-gram')} ignored because they occur in too many documents")
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
        line += f"; {benchmark['only_templates']} with only text shared by many items"
    return line


@click.command("contamination")
@click.argument("output")
@click.option("--benchmark", metavar="NAME", help="Only this benchmark.")
@click.option(
    "--limit", type=click.IntRange(1), default=_LISTED, show_default=True, help="Maximum number of items to show."
)
@record_option
@json_option
@common_options
def contamination(output: str, benchmark: str | None, limit: int, record_path: str | None, as_json: bool) -> None:
    """Show the benchmark items found in documents.

    For each benchmark, shows how many of its items were searched for and found; then the items, the most contaminated
    first, with the documents that contain them and the passage.

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
