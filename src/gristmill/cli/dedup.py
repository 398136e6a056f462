"""`gristmill dedup`: removes duplicates from documents, in one command."""

from __future__ import annotations

from typing import Any, Literal

import click

from gristmill.cli.edge import (
    DONE,
    QUARANTINED,
    before_the_run,
    common_options,
    json_option,
    marks_resumable,
    print_json,
)
from gristmill.cli.recipe_options import error_budget_option, executor_options

KINDS = ("exact", "fuzzy")


@click.command("dedup")
@click.argument("kind", metavar="exact|fuzzy", type=click.Choice(KINDS))
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
    default="first",
    show_default=True,
    help="Which document of a group stays.",
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
    type=click.Choice(["pairs", "cluster", "none"]),
    help="fuzzy: compare every pair exactly, or besides keep apart what only others connect, or compare nothing "
    "[default: pairs].",
)
@click.option("--char-ngrams", type=int, metavar="N", help="fuzzy: shingles of N characters instead of 5 words.")
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
    sequences. Every removal is in the ledger of OUTPUT with its survivor and similarity (see 'gristmill why').
    Interrupt a run at any time: the same command takes it up where it stopped.

    \b
    gristmill dedup exact crawl/ unique/
    gristmill dedup fuzzy unique/ clean/ --threshold 0.75 --keep longest
    """
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


def make_workflow(kind: str, input_path: str, output_path: str, **options: Any) -> Any:
    """The workflow that the options describe."""
    from gristmill.errors import UsageError
    from gristmill.stages.deduplication import ExactDeduplicationWorkflow, FuzzyDeduplicationWorkflow

    fuzzy = {name: options.pop(name) for name in ("threshold", "verify", "char_ngrams")}
    given = {name: value for name, value in fuzzy.items() if value is not None}
    options["input_blocksize"] = options.pop("blocksize")
    if kind == "exact":
        if given:
            name = next(iter(given)).replace("_", "-")
            raise UsageError(f"--{name} is for 'gristmill dedup fuzzy'; equal texts need none.")
        return ExactDeduplicationWorkflow(output_path, input_path, **options)
    if given.get("verify") == "none":
        given["verify"] = None
    return FuzzyDeduplicationWorkflow(output_path=output_path, input_path=input_path, **options, **given)


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
    kept = facts["documents"] - facts["quarantined"] - facts["num_removed"]
    found = f"{facts['num_duplicates']} duplicates of {facts['clusters']} others"
    lines = [f"{facts['documents']} documents read, {found} found in {facts['total_time']:.1f} s"]
    if facts["num_removed"]:
        lines.append(f"{kept} documents kept")
    for name in ("precision", "recall"):
        share = facts.get(name) or {}
        if share.get("value") is not None:
            lines.append(f"estimated {name}: {share['value']:.4f} (95 %: {share['low']:.4f} to {share['high']:.4f})")
    lines.append(f"output: {facts['output']}")
    return lines
