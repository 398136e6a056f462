"""`gristmill dedup`: removes duplicates from documents, in one command."""

from __future__ import annotations

from typing import Any, Literal

import click

from gristmill.cli.early_start import start_for_files
from gristmill.cli.edge import (
    DONE,
    QUARANTINED,
    before_the_run,
    common_options,
    json_option,
    marks_resumable,
    print_json,
)
from gristmill.cli.run import error_budget_option, executor_options
from gristmill.execution.late_imports import defer_imports

KINDS = ("exact", "fuzzy", "semantic")

_SHARED_STEPS = (
    "gristmill.stages.text.io.reader:JsonlReader",
    "gristmill.stages.deduplication.sorted_runs",
    "gristmill.stages.deduplication.removal",
)
STEPS = {
    "exact": (*_SHARED_STEPS, "gristmill.stages.deduplication.exact.steps"),
    "fuzzy": (*_SHARED_STEPS, "gristmill.stages.deduplication.fuzzy.signatures"),
}
"""What workers import for the kinds that need no model."""


@click.command("dedup")
@click.argument("kind", metavar="exact|fuzzy|semantic", type=click.Choice(KINDS))
@click.argument("input_path", metavar="INPUT")
@click.argument("output_path", metavar="OUTPUT")
@executor_options
@json_option
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor the summary at the end.")
@click.option("--fresh", is_flag=True, help="Start over: do not take up what an earlier run left.")
@error_budget_option
@click.option("--text-field", default="text", show_default=True, help="The column with the text.")
@click.option("--id-field", help="The column with the documents' ids [default: id, where there is one].")
@click.option("--blocksize", metavar="SIZE", help="Partitions of about this size, such as 128MB.")
@click.option(
    "--input-filetype", type=click.Choice(["jsonl", "parquet"]), help="What to read [default: what is there]."
)
@click.option("--output-filetype", type=click.Choice(["jsonl", "parquet"]), help="What to write [default: as read].")
@click.option("--cache", "cache_path", metavar="FOLDER", help="Where intermediate files go [default: in OUTPUT].")
@click.option(
    "--keep",
    "survivor",
    type=click.Choice(["first", "longest", "best", "priority"]),
    help="Which document of a group stays [default: first; for semantic as --which-to-keep says].",
)
@click.option("--score-field", metavar="COLUMN", help="With --keep best: the column whose highest value stays.")
@click.option(
    "--source",
    "source_priority",
    multiple=True,
    metavar="PATTERN",
    help="With --keep priority: a pattern of source paths; the first one given is preferred. May be repeated.",
)
@click.option("--merge-empty", is_flag=True, help="Take empty texts for duplicates of each other.")
@click.option("--list-only", is_flag=True, help="Write a list of the duplicates' ids instead of removing them.")
@click.option(
    "--plan", "plan_only", is_flag=True, help="Only say what the run will need: documents, disk, memory, time."
)
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
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    kind: str,
    input_path: str,
    output_path: str,
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
    as_json: bool,
    quiet: bool,
    fresh: bool,
    error_budget: float | int | None,
    plan_only: bool,
    list_only: bool,
    **options: Any,
) -> None:
    """Remove duplicate documents.

    exact keeps one document of every group of equal texts; fuzzy also finds texts that share most of their word
    sequences; semantic finds texts that mean nearly the same, by embeddings. Every removal is in the ledger of OUTPUT
    with its survivor and similarity (see 'gristmill why'). Interrupt a run at any time: the same command takes it up
    where it stopped. For semantic, the same command with another --eps chooses anew without embedding again, and up to
    --max-eps without a search.

    \b
    gristmill dedup exact crawl/ unique/
    gristmill dedup fuzzy unique/ clean/ --threshold 0.75 --keep longest
    gristmill dedup semantic clean/ distinct/ --eps 0.05
    """
    if (executor or "local") == "local" and workers != 0 and kind in STEPS:
        start_for_files(input_path, STEPS[kind])
        defer_imports()
    engine = make_engine(executor, workers, memory_budget)
    with before_the_run():
        workflow = make_workflow(kind, input_path, output_path, perform_removal=not list_only, **options)
    if plan_only:
        found = workflow.plan(engine)
        if as_json:
            print_json(vars(found))
        else:
            click.echo(str(found))
        ctx.exit(DONE)
    facts = run_workflow(workflow, engine, show=not quiet, fresh=fresh, error_budget=error_budget)
    if as_json:
        print_json({"status": "done", **facts})
    elif not quiet:
        for line in summary(facts):
            click.echo(line)
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
}
"""The options that are for one kind only."""


def make_workflow(kind: str, input_path: str, output_path: str, **options: Any) -> Any:
    """The workflow that the options describe."""
    from gristmill.errors import UsageError
    from gristmill.stages.deduplication import ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow

    given: dict[str, Any] = {}
    for owner, names in OWN_OPTIONS.items():
        for name in names:
            value = options.pop(name)
            if value is None:
                continue
            if owner != kind:
                raise UsageError(f"--{name.replace('_', '-')} is for 'gristmill dedup {owner}', not for {kind}.")
            given[name] = value
    options["input_blocksize"] = options.pop("blocksize")
    if kind == "semantic":
        if options.pop("merge_empty"):
            raise UsageError("--merge-empty is for exact and fuzzy: an empty text has no meaning to compare.")
        return _semantic(input_path, output_path, given, options)
    options["survivor"] = options["survivor"] or "first"
    if kind == "exact":
        return ExactDeduplicationWorkflow(output_path, input_path, **options)
    if given.get("verify") == "none":
        given["verify"] = None
    return FuzzyDeduplicationWorkflow(output_path=output_path, input_path=input_path, **options, **given)


def _semantic(input_path: str, output_path: str, given: dict[str, Any], options: dict[str, Any]) -> Any:
    from gristmill.errors import UsageError
    from gristmill.stages.deduplication import SemanticDeduplicationWorkflow, TextSemanticDeduplicationWorkflow

    if "which_to_keep" in given and options["survivor"] is not None:
        raise UsageError("--keep and --which-to-keep are two ways to say which document stays: give one.")
    given.setdefault("eps", 0.01)
    model = given.pop("model", None)
    if "embedding_field" not in given:
        named = {} if model is None else {"model_identifier": model}
        return TextSemanticDeduplicationWorkflow(input_path, output_path, **options, **given, **named)
    if model is not None:
        raise UsageError("--model and --embedding-field: embeddings are made by the one or taken from the other.")
    options["id_field"] = options["id_field"] or "id"
    return SemanticDeduplicationWorkflow(input_path, output_path, **options, **given)


def run_workflow(workflow: Any, engine: Any, *, show: bool, fresh: bool, error_budget: Any) -> dict[str, Any]:
    """Run it with a display and return its facts."""
    display = Displays("auto" if show else "off")
    marks_resumable()
    try:
        result = workflow.run(
            executor=engine, fresh=fresh, error_budget=error_budget, listeners=[display], progress=False
        )
    finally:
        display.close()
    facts: dict[str, Any] = result.metadata
    return facts


class Displays:
    """Shows one pipeline after the other, each from zero."""

    def __init__(self, kind: Literal["auto", "off"]) -> None:
        self._kind = kind
        self._current: Any = None

    def __call__(self, event: Any) -> None:
        """Hand the event to the display of the pipeline it belongs to."""
        from gristmill.observe.display import make_listener
        from gristmill.observe.events import RunStarted

        if self._current is None or isinstance(event, RunStarted):
            self.close()
            self._current = make_listener(self._kind)
        self._current(event)

    def close(self) -> None:
        """End the display of the last pipeline."""
        if self._current is not None:
            self._current.close()


def summary(facts: dict[str, Any]) -> list[str]:
    """The result in a few lines."""
    read, found, groups = facts["documents"], facts["num_duplicates"], facts["clusters"]
    duplicates = f"{_count(found, 'duplicate')} of {_count(groups, 'other document')}" if found else "no duplicates"
    lines = [f"{_count(read, 'document')} read, {duplicates} found in {facts['total_time']:.1f} s"]
    if facts["perform_removal"]:
        lines.append(f"{_count(read - facts['quarantined'] - facts['num_removed'], 'document')} kept")
    if facts["empty"]:
        lines.append(f"{_count(facts['empty'], 'document')} with nothing to compare")
    if facts["quarantined"]:
        lines.append(
            f"{_count(facts['quarantined'], 'record')} could not be read: see 'gristmill quarantine {facts['output']}'"
        )
    by_eps = facts.get("duplicates_by_eps")
    if by_eps:
        lines.append("duplicates by eps: " + ", ".join(f"{eps} → {count}" for eps, count in by_eps.items()))
    for name in ("precision", "recall"):
        share = facts.get(name) or {}
        if share.get("value") is not None:
            lines.append(f"estimated {name}: {share['value']:.4f} (95 %: {share['low']:.4f} to {share['high']:.4f})")
    lines.append(f"output: {facts['output']}")
    return lines


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"
