"""`gristmill dedup`: removes duplicates from documents, in one command."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from gristmill.cli.dedup_view import summary
from gristmill.cli.early_start import DEDUP_STEPS, start_for_files
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
from gristmill.cli.run import error_budget_option, executor_options, metrics_options, profile_option, salvage_option
from gristmill.errors import UsageError
from gristmill.execution.late_imports import defer_imports

KINDS = ("exact", "fuzzy", "semantic", "lines", "substrings")


@click.command("dedup")
@click.argument("kind", metavar="exact|fuzzy|semantic|lines|substrings", type=click.Choice(KINDS))
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.argument("output_path", metavar="OUTPUT")
@executor_options
@json_option
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor the summary at the end.")
@click.option("--fresh", is_flag=True, help="Start over: do not take up what an earlier run left.")
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
@click.option(
    "--keep",
    "survivor",
    type=click.Choice(["first", "longest", "best", "newest", "priority", "none"]),
    help="Which document of a group stays [default: first; for semantic as --which-to-keep says]. lines: keep the "
    "first occurrence, or none.",
)
@click.option(
    "--score-field",
    metavar="COLUMN",
    help="With --keep best: the column whose highest value stays. With --keep newest: the column of dates.",
)
@click.option(
    "--source",
    "source_priority",
    multiple=True,
    metavar="PATTERN",
    help="With --keep priority: a pattern of source paths; the first one given is preferred. May be repeated.",
)
@click.option(
    "--against",
    multiple=True,
    metavar="PATH",
    help="Other documents (a file, a folder, a glob or a URL) to compare with: they stay where they are, and documents "
    "of INPUT that are duplicates of them go. May be repeated.",
)
@click.option("--merge-empty", is_flag=True, help="Take empty texts for duplicates of each other.")
@click.option("--list-only", is_flag=True, help="Write a list of the duplicates' ids instead of removing them.")
@click.option(
    "--plan", "plan_only", is_flag=True, help="Only say what the run will need: documents, disk, memory, time."
)
@click.option(
    "--by",
    "key",
    type=click.Choice(["text", "url", "title"]),
    help="exact: compare the text, or the normalised URL or title [default: text].",
)
@click.option("--key-field", metavar="COLUMN", help="exact: the column of --by url or title [default: url or title].")
@click.option("--threshold", type=float, help="fuzzy: the least Jaccard similarity of duplicates [default: 0.8].")
@click.option(
    "--verify",
    type=click.Choice(["pairs", "cluster", "signature", "none"]),
    help="fuzzy: compare every pair exactly, or besides keep apart what only others connect, or compare signatures, "
    "or nothing [default: pairs].",
)
@click.option("--char-ngrams", type=int, metavar="N", help="fuzzy: shingles of N characters instead of 5 words.")
@click.option("--eps", type=float, help="semantic: how far apart duplicates may be, as 1 - cosine [default: 0.01].")
@click.option(
    "--max-eps",
    type=float,
    help="semantic: pairs up to so far apart are kept, for a later run with another --eps up to this [default: 0.1, or "
    "--eps if that is more].",
)
@click.option(
    "--which-to-keep",
    type=click.Choice(["hard", "easy", "random"]),
    help="semantic: keep what is far from the centre of its cluster, near to it, or any, instead of --keep "
    "[default: hard].",
)
@click.option("--n-clusters", type=int, metavar="N", help="semantic: clusters [default: the square root of documents].")
@click.option("--model", metavar="NAME", help="semantic: the sentence model [default: all-MiniLM-L6-v2].")
@click.option(
    "--embedding-field", metavar="COLUMN", help="semantic: take embeddings from this column instead of a model."
)
@click.option(
    "--unit",
    type=click.Choice(["line", "paragraph", "sentence", "token", "byte"]),
    help="lines: compare by line, paragraph or sentence [default: line]. substrings: count words that white space "
    "separates (token) or bytes [default: token].",
)
@click.option(
    "--scope",
    type=click.Choice(["document", "domain", "all"]),
    help="lines: count repetitions within a document, within the host of its URL, or everywhere [default: all].",
)
@click.option("--max-count", type=int, metavar="N", help="lines: remove what occurs more than N times [default: 1].")
@click.option("--min-length", type=int, metavar="N", help="substrings: the shortest passage, in units [default: 50].")
@click.option("--min-chars", type=int, metavar="N", help="lines: leave units of fewer characters alone [default: 20].")
@click.option("--loose", is_flag=True, default=None, help="lines: ignore case, punctuation and digits, as CCNet does.")
@click.option(
    "--url-field", metavar="COLUMN", help="lines: the column with the URL, for --scope domain [default: url]."
)
@click.option(
    "--action",
    type=click.Choice(["cut", "mark", "drop"]),
    help="lines, substrings: cut what repeats, mark it in --marks-field, or only drop documents above --max-share "
    "[default: cut].",
)
@click.option("--marks-field", metavar="COLUMN", help="lines, substrings: the column for marks [default: repeated].")
@click.option("--max-share", type=float, help="lines, substrings: drop documents of which a higher share repeats.")
@profile_option
@metrics_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    kind: str,
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
    plan_only: bool,
    list_only: bool,
    metrics_port: int | None,
    metrics_file: str | None,
    profile: bool,
    **options: Any,
) -> None:
    """Remove duplicate documents.

    INPUT is a file, a folder, a glob or a URL, and there may be several; duplicates are found across all of them.

    exact keeps one document of every group of equal texts; fuzzy also finds texts that share most of their word
    sequences; semantic finds texts that mean nearly the same, by embeddings; lines cuts lines, paragraphs or sentences
    that repeat from the documents, and substrings passages of --min-length words or bytes. Every removal is in the
    ledger of OUTPUT with its survivor and similarity, and every cut with its place (see 'gristmill why'). Run the same
    command again to resume an interrupted run. For semantic, the same command with another --eps
    chooses anew without embedding again, and up to --max-eps without a search.

    \b
    gristmill dedup exact crawl/ 'more/*.jsonl.gz' unique/
    gristmill dedup fuzzy unique/ clean/ --threshold 0.75 --keep longest
    gristmill dedup semantic clean/ distinct/ --eps 0.05
    gristmill dedup exact crawl/ pages/ --by url --keep newest --score-field date
    gristmill dedup lines pages/ clean/ --unit paragraph --scope domain
    gristmill dedup substrings pages/ clean/ --min-length 50
    gristmill dedup fuzzy new/ added/ --against clean/
    """
    if (executor or "local") == "local" and workers != 0 and kind in DEDUP_STEPS:
        has_workers = start_for_files(inputs, DEDUP_STEPS[kind])
        defer_imports(kernels=not has_workers)
    engine = make_engine(executor, workers, memory_budget)
    with before_the_run():
        input_path = inputs[0] if len(inputs) == 1 else list(inputs)
        workflow = make_workflow(kind, input_path, output_path, perform_removal=not list_only, **options)
    if plan_only:
        found = workflow.plan(engine)
        if as_json:
            print_json(vars(found))
        else:
            echo(str(found))
        ctx.exit(DONE)
    from gristmill.observe.display import make_listener

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
            profile=profile,
        )
    facts: dict[str, Any] = result.metadata
    if as_json:
        figures = {} if result.profile is None else {"profile": result.profile.figures()}
        print_json({"status": "done", **facts, **figures})
    elif not quiet:
        echo("\n".join(summary(facts)))
        if result.profile is not None:
            from gristmill.cli.profile_view import print_profile
            from gristmill.cli.report_view import make_console

            print_profile(result.profile, workflow.folder.record, make_console())
    ctx.exit(QUARANTINED if facts["quarantined"] else DONE)


def make_engine(executor: str | None, workers: int | None, memory_budget: str | None) -> Any:
    """The executor that the options ask for."""
    from gristmill.backends.registry import get_executor

    name = executor or "local"
    config = {"num_cpus": workers, "memory_budget": memory_budget}
    config = {key: value for key, value in config.items() if value is not None}
    if config and name != "local":
        raise click.UsageError("--workers and --memory-budget are for the local executor.")
    with before_the_run():
        return get_executor(name, config)


OWN_OPTIONS = {
    "fuzzy": ("threshold", "verify", "char_ngrams"),
    "semantic": ("eps", "max_eps", "which_to_keep", "n_clusters", "model", "embedding_field"),
    "exact": ("key", "key_field"),
    "lines": (
        "unit", "scope", "max_count", "min_chars", "loose", "url_field", "action", "marks_field", "max_share",
    ),
    "substrings": ("unit", "min_length", "action", "marks_field", "max_share"),
}  # fmt: skip
"""The options that are for some kinds only."""
WHOLE_DOCUMENTS = ("survivor", "score_field", "source_priority", "merge_empty")
"""The options about which document stays."""


def make_workflow(kind: str, input_path: str | list[str], output_path: str, **options: Any) -> Any:
    """The workflow that the options describe."""
    from gristmill.stages import deduplication

    for name in dict.fromkeys(name for names in OWN_OPTIONS.values() for name in names):
        owners = [owner for owner, names in OWN_OPTIONS.items() if name in names]
        if options[name] is None:
            del options[name]
        elif kind not in owners:
            shown = {"key": "by"}.get(name, name).replace("_", "-")
            raise UsageError(f"--{shown} is for 'gristmill dedup {' or '.join(owners)}', not for {kind}.")
    against = options.pop("against")
    if against and kind not in ("exact", "fuzzy", "semantic"):
        raise UsageError(f"--against is for 'gristmill dedup exact, fuzzy or semantic', not for {kind}.")
    if against:
        options["against"] = against[0] if len(against) == 1 else list(against)
    options |= {"input_path": input_path, "output_path": output_path, "input_blocksize": options.pop("blocksize")}
    if kind == "lines":
        return deduplication.LineDeduplicationWorkflow(**_passage_options(kind, options))
    if kind == "substrings":
        return deduplication.SubstringDeduplicationWorkflow(**_passage_options(kind, options))
    if options["survivor"] == "none":
        raise UsageError(f"--keep none is for lines and substrings, not for {kind}: one document of a group stays.")
    if kind != "semantic":
        options["survivor"] = options["survivor"] or "first"
        if kind == "exact":
            return deduplication.ExactDeduplicationWorkflow(**options)
        if options.get("verify") == "none":
            options["verify"] = None
        return deduplication.FuzzyDeduplicationWorkflow(**options)
    if options.pop("merge_empty"):
        raise UsageError("--merge-empty is for exact and fuzzy: an empty text has no meaning to compare.")
    if "which_to_keep" in options and options["survivor"] is not None:
        raise UsageError("--keep and --which-to-keep are two ways to say which document stays: give one.")
    options.setdefault("eps", 0.01)
    if "embedding_field" not in options:
        if "model" in options:
            options["model_identifier"] = options.pop("model")
        return deduplication.TextSemanticDeduplicationWorkflow(**options)
    if "model" in options:
        raise UsageError("--model and --embedding-field: embeddings are made by the one or taken from the other.")
    options["id_field"] = options["id_field"] or "id"
    return deduplication.SemanticDeduplicationWorkflow(**options)


def _passage_options(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a kind that cuts passages from documents."""
    keep = options["survivor"]
    if keep not in (None, "first", "none"):
        raise UsageError(f"--keep {keep} chooses a document of a group; {kind} keeps the first occurrence or none.")
    if not options.pop("perform_removal"):
        raise UsageError(f"--list-only lists documents; for {kind}, --action mark leaves the texts as they are.")
    for name in WHOLE_DOCUMENTS[1:]:
        if options[name]:
            shown = {"source_priority": "source"}.get(name, name).replace("_", "-")
            raise UsageError(f"--{shown} is about whole documents, and has no meaning for {kind}.")
    kept = {name: value for name, value in options.items() if name not in WHOLE_DOCUMENTS}
    return kept if keep is None else {**kept, "keep": keep}
