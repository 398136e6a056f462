"""`gristmill dedup`: removes duplicates from documents, in one command."""

from __future__ import annotations

from typing import Any

import click

from gristmill.cli.dedup_view import summary
from gristmill.cli.early_start import DEDUP_STEPS, start_for_files
from gristmill.cli.main import DONE, before_the_run, common_options, echo, print_json, record_option
from gristmill.cli.run import metrics_options, profile_option
from gristmill.cli.workflow_options import Start, cache_option, file_options, one_or_list, start_options, text_option
from gristmill.errors import UsageError
from gristmill.execution.late_imports import defer_imports

KINDS = ("exact", "fuzzy", "semantic", "lines", "substrings")


@click.command("dedup")
@click.argument("kind", metavar="exact|fuzzy|semantic|lines|substrings", type=click.Choice(KINDS))
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.argument("output_path", metavar="OUTPUT")
@start_options
@text_option
@file_options
@cache_option
@record_option
@click.option(
    "--keep",
    "survivor",
    type=click.Choice(["first", "longest", "best", "newest", "priority", "none"]),
    help="Which document of a group to keep [default: first; for semantic, see --which-to-keep]. lines: keep the "
    "first occurrence, or none.",
)
@click.option(
    "--score-field",
    metavar="COLUMN",
    help="With --keep best: column of scores; the highest is kept. With --keep newest: column of dates.",
)
@click.option(
    "--source",
    "source_priority",
    multiple=True,
    metavar="PATTERN",
    help="With --keep priority: pattern of source paths; earlier patterns take precedence. Repeatable.",
)
@click.option(
    "--against",
    multiple=True,
    metavar="PATH",
    help="Other documents (a file, folder, glob or URL) to compare with: they are not changed, and documents of INPUT "
    "that duplicate them are removed. Repeatable.",
)
@click.option("--merge-empty", is_flag=True, help="Treat empty documents as duplicates of each other.")
@click.option("--list-only", is_flag=True, help="Write a list of the duplicates' ids instead of removing them.")
@click.option(
    "--plan", "plan_only", is_flag=True, help="Only estimate what the run will need: documents, disk, memory, time."
)
@click.option(
    "--by",
    "key",
    type=click.Choice(["text", "url", "title"]),
    help="exact: compare the text, or the normalised URL or title [default: text].",
)
@click.option("--key-field", metavar="COLUMN", help="exact: column for --by url or title [default: url or title].")
@click.option("--threshold", type=float, help="fuzzy: minimum Jaccard similarity of duplicates [default: 0.8].")
@click.option(
    "--verify",
    type=click.Choice(["pairs", "cluster", "signature", "none"]),
    help="fuzzy: how to verify candidates: pairs (exact Jaccard), cluster (also split clusters linked only "
    "transitively), signature (MinHash estimate), none [default: pairs].",
)
@click.option("--char-ngrams", type=int, metavar="N", help="fuzzy: use shingles of N characters instead of 5 words.")
@click.option("--eps", type=float, help="semantic: maximum distance (1 - cosine) between duplicates [default: 0.01].")
@click.option(
    "--max-eps",
    type=float,
    help="semantic: keep pairs up to this distance, so that a later run can raise --eps without a new search "
    "[default: 0.1, or --eps if larger].",
)
@click.option(
    "--which-to-keep",
    type=click.Choice(["hard", "easy", "random"]),
    help="semantic: which duplicate to keep, instead of --keep: hard (farthest from its centroid), easy (nearest) or "
    "random [default: hard].",
)
@click.option(
    "--n-clusters",
    type=int,
    metavar="N",
    help="semantic: number of clusters [default: square root of the number of documents].",
)
@click.option("--model", metavar="NAME", help="semantic: the sentence model [default: all-MiniLM-L6-v2].")
@click.option(
    "--embedding-field", metavar="COLUMN", help="semantic: read embeddings from this column instead of computing them."
)
@click.option(
    "--unit",
    type=click.Choice(["line", "paragraph", "sentence", "token", "byte"]),
    help="lines: compare by line, paragraph or sentence [default: line]. substrings: count whitespace-separated words "
    "(token) or bytes [default: token].",
)
@click.option(
    "--scope",
    type=click.Choice(["document", "domain", "all"]),
    help="lines: count repetitions within a document, within the same URL host, or everywhere [default: all].",
)
@click.option("--max-count", type=int, metavar="N", help="lines: remove what occurs more than N times [default: 1].")
@click.option(
    "--min-length", type=int, metavar="N", help="substrings: minimum length of a passage, in units [default: 50]."
)
@click.option("--min-chars", type=int, metavar="N", help="lines: ignore units with fewer characters [default: 20].")
@click.option("--loose", is_flag=True, default=None, help="lines: ignore case, punctuation and digits, as CCNet does.")
@click.option(
    "--url-field", metavar="COLUMN", help="lines: column that holds the URL, for --scope domain [default: url]."
)
@click.option(
    "--action",
    type=click.Choice(["cut", "mark", "drop"]),
    help="lines, substrings: cut what repeats, mark it in --marks-field, or only drop documents above --max-share "
    "[default: cut].",
)
@click.option("--marks-field", metavar="COLUMN", help="lines, substrings: column for marks [default: repeated].")
@click.option("--max-share", type=float, help="lines, substrings: drop documents with a larger share of repeated text.")
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
    plan_only: bool,
    list_only: bool,
    **given: Any,
) -> None:
    """Remove duplicate documents.

    INPUT is a file, folder, glob or URL, and can be repeated; duplicates are found across all inputs.

    exact keeps one document of every group of identical texts; fuzzy also finds texts that share most of their word
    sequences; semantic finds texts with nearly the same meaning, by embeddings; lines cuts lines, paragraphs or
    sentences that repeat from the documents, and substrings passages of --min-length words or bytes. Every removal is
    in the ledger of OUTPUT with its survivor and similarity, and every cut with its place (see 'gristmill why'). Run
    the same command again to resume an interrupted run. For semantic, the same command with another --eps reselects
    without recomputing embeddings, and up to --max-eps without a new search.

    \b
    gristmill dedup exact crawl/ 'more/*.jsonl.gz' unique/
    gristmill dedup fuzzy unique/ clean/ --threshold 0.75 --keep longest
    gristmill dedup semantic clean/ distinct/ --eps 0.05
    gristmill dedup exact crawl/ pages/ --by url --keep newest --score-field date
    gristmill dedup lines pages/ clean/ --unit paragraph --scope domain
    gristmill dedup substrings pages/ clean/ --min-length 50
    gristmill dedup fuzzy new/ added/ --against clean/
    """
    if (given["executor"] or "local") == "local" and kind in DEDUP_STEPS:
        has_workers = given["workers"] != 0 and start_for_files(inputs, DEDUP_STEPS[kind])
        defer_imports(kernels=not has_workers)
    start = Start.taken_from(given)
    with before_the_run():
        workflow = make_workflow(kind, one_or_list(inputs), output_path, perform_removal=not list_only, **given)
    if plan_only:
        found = workflow.plan(start.engine)
        if start.as_json:
            print_json(vars(found))
        else:
            echo(str(found))
        ctx.exit(DONE)
    start.run_and_end(workflow, summary)


OWN_OPTIONS = {
    "fuzzy": ("threshold", "verify", "char_ngrams"),
    "semantic": ("eps", "max_eps", "which_to_keep", "n_clusters", "model", "embedding_field"),
    "exact": ("key", "key_field"),
    "lines": (
        "unit", "scope", "max_count", "min_chars", "loose", "url_field", "action", "marks_field", "max_share",
    ),
    "substrings": ("unit", "min_length", "action", "marks_field", "max_share"),
}  # fmt: skip
"""The options that apply to some kinds only."""
WHOLE_DOCUMENTS = ("survivor", "score_field", "source_priority", "merge_empty")
"""The options that select the document to keep."""


def make_workflow(kind: str, input_path: str | list[str], output_path: str, **options: Any) -> Any:
    """The workflow that the options describe."""
    from gristmill.stages import deduplication

    for name in dict.fromkeys(name for names in OWN_OPTIONS.values() for name in names):
        owners = [owner for owner, names in OWN_OPTIONS.items() if name in names]
        if options[name] is None:
            del options[name]
        elif kind not in owners:
            shown = {"key": "by"}.get(name, name).replace("_", "-")
            raise UsageError(f"--{shown} applies to 'gristmill dedup {' or '.join(owners)}', not to {kind}.")
    against = options.pop("against")
    if against and kind not in ("exact", "fuzzy", "semantic"):
        raise UsageError(f"--against applies to 'gristmill dedup exact, fuzzy or semantic', not to {kind}.")
    if against:
        options["against"] = against[0] if len(against) == 1 else list(against)
    options |= {"input_path": input_path, "output_path": output_path}
    if kind == "lines":
        return deduplication.LineDeduplicationWorkflow(**_passage_options(kind, options))
    if kind == "substrings":
        return deduplication.SubstringDeduplicationWorkflow(**_passage_options(kind, options))
    if options["survivor"] == "none":
        raise UsageError(
            f"--keep none applies to lines and substrings, not to {kind}: one document of each group is kept."
        )
    if kind != "semantic":
        options["survivor"] = options["survivor"] or "first"
        if kind == "exact":
            return deduplication.ExactDeduplicationWorkflow(**options)
        if options.get("verify") == "none":
            options["verify"] = None
        return deduplication.FuzzyDeduplicationWorkflow(**options)
    if options.pop("merge_empty"):
        raise UsageError("--merge-empty applies to exact and fuzzy only: an empty text has no meaning to compare.")
    if "which_to_keep" in options and options["survivor"] is not None:
        raise UsageError("--keep and --which-to-keep cannot be combined: both select the document to keep.")
    options.setdefault("eps", 0.01)
    if "embedding_field" not in options:
        if "model" in options:
            options["model_identifier"] = options.pop("model")
        return deduplication.TextSemanticDeduplicationWorkflow(**options)
    if "model" in options:
        raise UsageError(
            "--model and --embedding-field cannot be combined: embeddings are either computed or read from a column."
        )
    options["id_field"] = options["id_field"] or "id"
    return deduplication.SemanticDeduplicationWorkflow(**options)


def _passage_options(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a kind that cuts passages from documents."""
    keep = options["survivor"]
    if keep not in (None, "first", "none"):
        raise UsageError(f"--keep {keep} selects a document of a group; {kind} keeps the first occurrence or none.")
    if not options.pop("perform_removal"):
        raise UsageError(f"--list-only lists documents; for {kind}, --action mark leaves the texts unchanged.")
    for name in WHOLE_DOCUMENTS[1:]:
        if options[name]:
            shown = {"source_priority": "source"}.get(name, name).replace("_", "-")
            raise UsageError(f"--{shown} is about whole documents and does not apply to {kind}.")
    kept = {name: value for name, value in options.items() if name not in WHOLE_DOCUMENTS}
    return kept if keep is None else {**kept, "keep": keep}
