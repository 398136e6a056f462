"""`gristmill run` and `gristmill plan` for a recipe that runs a deduplication workflow instead of stages."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gristmill.cli.dedup_view import summary
from gristmill.cli.main import DONE, QUARANTINED, echo, marks_resumable, print_json
from gristmill.recipes.yaml_source import recipe_error

if TYPE_CHECKING:
    from gristmill.backends.base import BaseExecutor
    from gristmill.recipes.loader import Recipe

RUN_OPTIONS = ("fresh", "error_budget", "salvage", "metrics_port", "metrics_file", "profile")
"""The options of `gristmill run` that workflows also accept, by their Python names."""
_SHARED = {
    *RUN_OPTIONS, "recipe", "paths", "settings", "executor", "workers", "memory_budget", "quiet", "as_json",
    "record_path", "text_field",
}  # fmt: skip


def run_workflow(
    recipe: Recipe, engine: BaseExecutor, run_with: Mapping[str, Any], *, quiet: bool, as_json: bool
) -> None:
    """Run the workflow of a recipe, print its result and exit."""
    ctx = click.get_current_context()
    _check_options(ctx, recipe)
    workflow: Any = _built(recipe, run_with["record_path"])
    from gristmill.observe.display import make_listener

    marks_resumable()
    with recipe.cluster(engine.name), closing(make_listener("off" if quiet else "auto")) as display:
        options = {name: run_with[name] for name in RUN_OPTIONS}
        result = workflow.run(executor=engine, listeners=[display], progress=False, **options)
    facts: dict[str, Any] = result.metadata
    if as_json:
        figures = {} if result.profile is None else {"profile": result.profile.figures()}
        print_json({"status": "done", **facts, **figures})
    elif not quiet:
        searched = "num_duplicates" in facts
        echo("\n".join(summary(facts) if searched else [f"{key}: {value}" for key, value in facts.items()]))
    ctx.exit(QUARANTINED if facts.get("quarantined") else DONE)


def print_workflow_plan(recipe: Recipe, engine: BaseExecutor, record_path: str | None) -> None:
    """Print what a run of the workflow will need."""
    workflow: Any = _built(recipe, record_path)
    if not hasattr(workflow, "plan"):
        assert recipe.workflow is not None
        raise recipe_error(f"{recipe.source.origin}: {recipe.workflow.name} cannot be planned; run it.")
    echo(str(workflow.plan(engine)))


def _built(recipe: Recipe, record_path: str | None) -> Any:
    workflow: Any = recipe.build_workflow()
    if record_path is not None:
        workflow.record_path = record_path
    return workflow


def _check_options(ctx: click.Context, recipe: Recipe) -> None:
    """Refuse command-line options that apply only to pipelines of stages."""
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name not in _SHARED and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            assert recipe.workflow is not None
            raise click.UsageError(
                f"{max(parameter.opts, key=len)} does not apply: {recipe.source.origin} runs {recipe.workflow.name}. "
                "Set a parameter of the workflow in the recipe instead."
            )
