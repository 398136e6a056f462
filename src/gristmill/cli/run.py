"""`gristmill run`: turns the command line into a recipe, its variables and its executor."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gristmill.backends.registry import executor_names
from gristmill.cli.main import (
    before_the_run,
    common_options,
    json_option,
    marks_resumable,
    program,
    record_option,
)
from gristmill.errors import RecipeError
from gristmill.storage.formats import FORMATS, WRITTEN_FORMATS

if TYPE_CHECKING:
    from gristmill.backends.base import BaseExecutor
    from gristmill.observe.display import Display
    from gristmill.pipeline import Pipeline
    from gristmill.recipes import Recipe

F = TypeVar("F", bound=Callable[..., Any])

EXECUTOR_PREFIX = "executor."
DOCUMENT_OPTIONS = (
    "text_field", "input_filetype", "errors", "output_filetype", "compression", "limit", "sample", "seed"
)  # fmt: skip
STANDARD_INPUT = "-"
WRITERS = frozenset({"ArrowWriter", "CsvWriter", "DocumentWriter", "JsonlWriter", "ParquetWriter"})


def _error_budget(ctx: click.Context, param: click.Parameter, text: str) -> float | int | None:
    """The budget in the form that `Pipeline.run` expects: a float is a share, an int a count."""
    if text.lower() == "none":
        return None
    try:
        number: float | int = int(text) if text.lstrip("+-").isdigit() else float(text.removesuffix("%"))
        number = number / 100 if text.endswith("%") else number
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a share such as 0.01 or 1% nor a count such as 50.") from None
    if not 0 <= number < float("inf") or (isinstance(number, float) and number > 1):
        raise click.BadParameter(f"{text} is out of range: a share lies between 0.0 and 1.0, a count is 0 or more.")
    return number


class Share(click.FloatRange):
    """A share as a number or in percent: 0.01 or 1%."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The share as a number."""
        if isinstance(value, str) and value.rstrip().endswith("%"):
            with suppress(ValueError):
                value = float(value.rstrip().removesuffix("%")) / 100
        return super().convert(value, param, ctx)


def options(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options or arguments as one decorator, in the order in which help shows them."""

    def decorate(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


recipe_arguments = options(
    click.argument("recipe", metavar="RECIPE"),
    click.argument("paths", metavar="[INPUT]... [OUTPUT]", nargs=-1),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a recipe variable, or an executor setting with executor.KEY=VALUE. "
        "Values are parsed as YAML: 3 is a number, '3' is a string. Repeatable.",
    ),
)
code_option = click.option(
    "--allow-code",
    "allow_code",
    multiple=True,
    metavar="MODULE",
    help="Allow the recipe to use stages from this Python module, written as '- MODULE:Class: {…}'. The module is "
    "imported from the current folder or the installed packages. Repeatable.",
)
input_options = options(
    click.option("--text-field", metavar="NAME", help="Text column for every stage that does not set its own."),
    click.option(
        "--input-filetype",
        type=click.Choice(list(FORMATS)),
        help="Read only files of this format [default: detect].",
    ),
    click.option(
        "--limit",
        type=click.IntRange(min=1),
        metavar="N",
        help="Read at most N documents (of the sample, with --sample).",
    ),
)
sample_options = options(
    click.option(
        "--sample",
        type=Share(0, 1, min_open=True),
        metavar="SHARE",
        help="Read only a random sample of the documents: a fraction such as 0.01 or 1%.",
    ),
    click.option("--seed", type=int, metavar="N", help="Random seed of --sample [default: 0]."),
)
errors_option = click.option(
    "--errors",
    type=click.Choice(["quarantine", "replace"]),
    help="How to handle text that is not valid UTF-8: quarantine the document, or replace invalid bytes with U+FFFD "
    "and count the document as changed [default: quarantine].",
)
output_options = options(
    click.option(
        "--output-filetype",
        type=click.Choice(WRITTEN_FORMATS),
        help="Output format [default: same as the input if it is JSONL or Parquet, otherwise JSONL].",
    ),
    click.option(
        "--compression",
        type=click.Choice(["none", "gz", "gzip", "zst", "zstd", "bz2", "snappy", "lz4", "brotli"]),
        metavar="NAME",
        help="Output compression. JSONL and CSV: none, gz, zst or bz2; Parquet: none, gz, zst, snappy, lz4 or "
        "brotli; Arrow: none, zst or lz4 [default: zst for Parquet, otherwise none].",
    ),
)
document_options = options(input_options, errors_option, sample_options, output_options)
"""What to read and write, for any recipe."""
executor_options = options(
    click.option(
        "--executor", metavar="NAME", help=f"Executor: {', '.join(sorted(executor_names()))} [default: local]."
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=0),
        metavar="N",
        help="CPU cores for the local executor; 0 runs everything in the calling process.",
    ),
    click.option("--memory-budget", metavar="SIZE", help="Memory limit of the local executor, such as 4GB."),
)
error_budget_option = click.option(
    "--error-budget",
    default="0.01",
    show_default=True,
    metavar="SHARE|COUNT",
    callback=_error_budget,
    help="How many records may be quarantined before the run fails: a fraction such as 0.01, a count such as 50, "
    "or 'none' for no limit.",
)
salvage_option = click.option(
    "--salvage",
    is_flag=True,
    help="Keep the readable documents of a damaged input file, marked as unverified; by default such a file is skipped "
    "entirely.",
)
ledger_options = options(
    click.option("--id-field", default="id", show_default=True, help="Column that holds document ids."),
    click.option("--url-field", default="url", show_default=True, help="Column that holds document URLs."),
    click.option(
        "--scores",
        type=click.Choice(["decisive", "all"]),
        default="decisive",
        show_default=True,
        help="Which scores to record: the deciding one of each dropped document, or all scores of all documents.",
    ),
)
metrics_options = options(
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        metavar="N",
        help="Serve Prometheus metrics on this local port; 0 picks a free port and prints it.",
    ),
    click.option(
        "--metrics-file",
        metavar="FILE",
        help="Write the same metrics to a file every ten seconds and at the end, for the node exporter's textfile "
        "collector (FILE.prom).",
    ),
)
profile_option = click.option(
    "--profile",
    is_flag=True,
    help="Profile the run (local executor): print the time spent per stage, and write a flame graph (profile.html) and "
    "profile.json to the record.",
)
run_options = options(
    click.option("--fresh", is_flag=True, help="Start over instead of resuming the previous run."),
    click.option("--quiet", "-q", is_flag=True, help="Hide progress and the final summary."),
    click.option("--all", "show_all", is_flag=True, help="Include stages that dropped nothing in the summary."),
    json_option,
)
"""The options that `run` shares with `demo`."""


@click.command("run")
@recipe_arguments
@document_options
@code_option
@executor_options
@run_options
@error_budget_option
@salvage_option
@click.option(
    "--ignore-failures", is_flag=True, help="Quarantine documents on which a stage raises instead of failing the run."
)
@ledger_options
@click.option(
    "--alarm-share",
    type=click.FloatRange(0, 1),
    default=0.9,
    show_default=True,
    help="Warn about stages that drop more than this fraction of their input; 1 turns the warning off.",
)
@click.option("--report/--no-report", default=True, show_default=True, help="Write report.html to the record.")
@profile_option
@click.option("--keep-steps", is_flag=True, help="Keep the intermediate files of deduplication steps.")
@record_option
@metrics_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    recipe: str,
    paths: tuple[str, ...],
    settings: tuple[str, ...],
    allow_code: tuple[str, ...],
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
    quiet: bool,
    show_all: bool,
    as_json: bool,
    ignore_failures: bool,
    **run_with: Any,  # those of `document_options`, and options named like those of `Pipeline.run`
) -> None:
    """Run a recipe.

    RECIPE is a YAML file (also one of NeMo Curator, with _target_) or the name of a built-in recipe (see 'gristmill
    recipes'). INPUT is a file, folder, glob or URL, and can be repeated; '-' reads JSONL (or the format given by
    --input-filetype) from standard input and keeps a copy beside the output. The last path is OUTPUT: a folder that
    will hold nothing but data, or, for a single input file, a file such as clean.jsonl. The run's record is written
    beside it. Inputs and output set the recipe's variables input_path and output_path. An interrupted run resumes when
    you run the same command again.

    \b
    gristmill run english crawl/ clean/
    gristmill run english 'crawl/*.parquet' more.jsonl.gz clean/ --output-filetype jsonl --compression zst
    gristmill run english crawl/ tried/ --sample 0.01 --limit 1000 --text-field content
    zcat crawl.jsonl.gz | gristmill run english - clean/
    gristmill run my.yaml --set min_words=20 --workers 8
    """
    assignments = read_settings(settings, paths, run_with)
    loaded = read_recipe(recipe, assignments)
    if assignments.variables.get("input_path") == STANDARD_INPUT:
        from gristmill.cli.standard_input import keep_standard_input

        output = assignments.variables.get("output_path")
        assignments.variables["input_path"] = keep_standard_input(
            output, run_with["record_path"], assignments.options.get("input_filetype")
        )
        loaded = read_recipe(recipe, assignments)
    if loaded.workflow is not None:
        from gristmill.cli.workflow_run import run_workflow

        engine = choose_executor(loaded, assignments, executor=executor, workers=workers, memory_budget=memory_budget)
        run_workflow(loaded, engine, run_with, quiet=quiet, as_json=as_json)
    pipeline, engine, display = make_ready(
        loaded,
        assignments,
        executor=executor,
        workers=workers,
        memory_budget=memory_budget,
        show=not quiet,
        allow_code=allow_code,
    )
    with closing(display), loaded.cluster(engine.name) if loaded.ray_client else nullcontext():
        result = pipeline.run(
            executor=engine,
            listeners=[display],
            progress=False,
            # None falls back to the executor's own setting.
            ignore_failures=True if ignore_failures else None,
            **run_with,
        )
    report = result.report
    from gristmill.cli.report_view import exit_code, print_report

    print_report(
        report,
        as_json=as_json,
        quiet=quiet,
        show_all=show_all,
        record=run_with.get("record_path"),
        has_page=run_with["report"],
        profile=result.profile,
    )
    ctx.exit(exit_code(report))


@dataclass(frozen=True, slots=True)
class Assignments:
    """What the command line sets.

    Attributes:
        variables: Variables of the recipe.
        executor: Settings of the executor.
        options: Options that change parameters of stages, as `adjust` takes them.
    """

    variables: dict[str, Any] = field(default_factory=dict)
    executor: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def read_settings(
    settings: Sequence[str], paths: Sequence[str] = (), given: dict[str, Any] | None = None
) -> Assignments:
    """The assignments of `--set`, of the positional arguments and of `document_options`.

    Args:
        settings: The texts of `--set`.
        paths: Inputs and output.
        given: The command's options; those of `document_options` are removed from it.

    Raises:
        click.UsageError: A setting has no `=`, a variable is set twice, or options contradict each other. RecipeError:
        A value is not YAML.
    """
    from gristmill.recipes.yaml_source import parse_yaml

    found, given = Assignments(), given or {}
    for option in DOCUMENT_OPTIONS:
        value = given.pop(option, None)
        if value is not None:
            found.options[option] = value
    if "seed" in found.options and "sample" not in found.options:
        raise click.UsageError("--seed needs --sample.")
    inputs = list(paths[:-1] or paths)
    if len(inputs) > 1 or STANDARD_INPUT in paths:
        _check_paths(inputs, None if len(paths) == 1 else paths[-1])
    if inputs:
        found.variables["input_path"] = inputs[0] if len(inputs) == 1 else inputs
    if len(paths) > 1:
        found.variables["output_path"] = paths[-1]
    for setting in settings:
        key, sign, text = setting.partition("=")
        key = key.strip()
        if not sign or not key:
            raise click.UsageError(f"--set {setting!r}: expected KEY=VALUE, such as --set text_field=content.")
        value = parse_yaml(text, origin=f"--set {key}").value
        target = found.executor if key.startswith(EXECUTOR_PREFIX) else found.variables
        name = key.removeprefix(EXECUTOR_PREFIX)
        if name in target:
            raise click.UsageError(f"{key!r} is set twice.")
        target[name] = value
    if "text_field" in found.variables and "text_field" in found.options:
        raise click.UsageError("'text_field' is set twice: by --set and by --text-field.")
    return found


def _check_paths(inputs: Sequence[str], output: str | None) -> None:
    """Refuse combinations that make no sense with several inputs or standard input."""
    if output == STANDARD_INPUT:
        raise click.UsageError("OUTPUT is '-', but documents can only be written to files. Pass a folder.")
    if len(inputs) > 1 and STANDARD_INPUT in inputs:
        raise click.UsageError("'-' (standard input) cannot be combined with other inputs.")
    if output is not None and len(inputs) > 1 and os.path.isfile(output):
        raise click.UsageError(
            f"OUTPUT, the last path, is {output!r}, which is a file. Pass the output folder after the inputs."
        )


def read_recipe(recipe: str, assignments: Assignments) -> Recipe:
    """The recipe at a path or of a built-in name, with its variables set."""
    from gristmill.recipes.loader import find_recipe, load_recipe

    path = find_recipe(recipe)
    try:
        return load_recipe(path, variables=assignments.variables, text_field=assignments.options.get("text_field"))
    except RecipeError as error:
        missing = {name: f"variable {name!r} has no value" for name in ("input_path", "output_path")}
        missing = {name: words for name, words in missing.items() if words in error.message}
        if not missing:
            raise
        context = click.get_current_context(silent=True)
        line = f"{program()} {'run' if context is None else context.info_name} {shlex.quote(recipe)} INPUT OUTPUT"
        others = [one for one in error.facts["problems"] if not any(words in one for words in missing.values())]
        if others:
            error.add_note(f"Pass input and output after the recipe: {line}")
            raise
        needed = " and ".join(f"an {name.removesuffix('_path')}" for name in missing)
        raise RecipeError(f"The recipe {recipe!r} needs {needed}: {line}", **error.facts) from None


def choose_executor(
    recipe: Recipe,
    assignments: Assignments,
    *,
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
) -> BaseExecutor:
    """The executor set on the command line, otherwise the recipe's, otherwise the local one."""
    from gristmill.backends.registry import get_executor

    name = executor or recipe.executor or "local"
    # Settings that the recipe has for another executor would be unknown here.
    config = dict(recipe.executor_config) if name == (recipe.executor or "local") else {}
    config.update(assignments.executor)
    for option, key, value in (
        ("--workers", "num_cpus", workers),
        ("--memory-budget", "memory_budget", memory_budget),
    ):
        if value is None:
            continue
        if name != "local":
            raise click.UsageError(
                f"{option} applies only to the local executor; use --set executor.KEY=VALUE for {name!r}."
            )
        config[key] = value
    with before_the_run():
        return get_executor(name, config)


def search_current_folder(allow_code: Sequence[str]) -> None:
    """Make allowed modules importable from the current folder, also in workers; installed ones take precedence."""
    folder = os.getcwd()
    if allow_code and folder not in sys.path:
        sys.path.append(folder)


def make_ready(
    recipe: Recipe,
    assignments: Assignments,
    *,
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
    show: bool,
    allow_code: Sequence[str] = (),
) -> tuple[Pipeline, BaseExecutor, Display]:
    """What a run of a recipe needs: the pipeline, the executor and the progress display.

    Raises:
        RecipeError: Something is wrong with the recipe, or it has no writer: a command cannot return documents to a
            caller.
    """
    from gristmill.execution.late_imports import defer_imports

    if allow_code:
        search_current_folder(allow_code)
    if workers != 0:
        from gristmill.cli.early_start import start_early

        start_early(recipe, executor=executor, workers=workers, settings=assignments.executor)
    defer_imports()
    from gristmill.observe.display import LOGGING_INTERVAL_S, make_listener
    from gristmill.recipes.yaml_source import recipe_error

    if assignments.options:
        from gristmill.recipes.adjust import adjust

        recipe = adjust(recipe, assignments.options)
    pipeline = recipe.pipeline(allow_code=allow_code)
    if WRITERS.isdisjoint(map(attrgetter("name"), recipe.stages)):
        raise recipe_error(
            f"{recipe.source.origin}: the recipe has no writer, so its output would be lost. "
            "Add one at the end, such as: - DocumentWriter: {path: clean/}"
        )
    pipeline.config["recipe"] = recipe.to_yaml(secrets=False)
    engine = choose_executor(recipe, assignments, executor=executor, workers=workers, memory_budget=memory_budget)
    interval = engine.config.get("logging_interval", LOGGING_INTERVAL_S)
    display = make_listener("auto" if show else "off", logging_interval=interval)
    marks_resumable()
    gc.freeze()
    gc.enable()
    return pipeline, engine, display
