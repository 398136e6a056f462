"""Shared by the commands that run a workflow: options, the executor, progress display, result and exit code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import click

from gristmill.cli.main import DONE, QUARANTINED, before_the_run, echo, json_option, marks_resumable, print_json
from gristmill.cli.run import error_budget_option, executor_options, options, salvage_option

_FILETYPES = click.Choice(["jsonl", "parquet"])

start_options = options(
    executor_options,
    json_option,
    click.option("--quiet", "-q", is_flag=True, help="Hide progress and the final summary."),
    click.option("--fresh", is_flag=True, help="Start over instead of resuming the previous run."),
    error_budget_option,
    salvage_option,
)
"""How to run the workflow; `Start` takes their values."""
file_options = options(
    click.option("--id-field", metavar="COLUMN", help="Column that holds document ids [default: id, if present]."),
    click.option("--blocksize", "input_blocksize", metavar="SIZE", help="Approximate partition size, such as 128MB."),
    click.option("--input-filetype", type=_FILETYPES, help="Read only files of this format [default: detect]."),
    click.option("--output-filetype", type=_FILETYPES, help="Output format [default: same as the input]."),
)
text_option = click.option("--text-field", default="text", show_default=True, help="Column that holds the text.")
cache_option = click.option(
    "--cache", "cache_path", metavar="FOLDER", help="Folder for intermediate files [default: the record]."
)
_OF_RUN = ("fresh", "error_budget", "salvage", "metrics_port", "metrics_file", "profile")
"""The options that `run` of a workflow accepts, if the command has them."""


def make_engine(executor: str | None, workers: int | None, memory_budget: str | None) -> Any:
    """The executor selected by the options."""
    from gristmill.backends.registry import get_executor

    name = executor or "local"
    config = {"num_cpus": workers, "memory_budget": memory_budget}
    config = {key: value for key, value in config.items() if value is not None}
    if config and name != "local":
        raise click.UsageError("--workers and --memory-budget apply only to the local executor.")
    with before_the_run():
        return get_executor(name, config)


def one_or_list(paths: tuple[str, ...]) -> str | list[str]:
    """The paths in the form that workflows accept."""
    return paths[0] if len(paths) == 1 else list(paths)


@dataclass(frozen=True)
class Start:
    """How to run a workflow, from the command line options.

    Attributes:
        engine: The executor.
        quiet: Hide progress and summary.
        as_json: Print the facts as JSON.
        given: Arguments for `run` of the workflow.
    """

    engine: Any
    quiet: bool
    as_json: bool
    given: dict[str, Any]

    @classmethod
    def taken_from(cls, given: dict[str, Any]) -> Start:
        """Remove the values of `start_options` and of the options for metrics and profiles from `given`."""
        engine = make_engine(given.pop("executor"), given.pop("workers"), given.pop("memory_budget"))
        run_with = {name: given.pop(name) for name in _OF_RUN if name in given}
        return cls(engine, given.pop("quiet"), given.pop("as_json"), run_with)

    def _run(self, workflow: Any) -> Any:
        from gristmill.observe.display import make_listener

        marks_resumable()
        with closing(make_listener("off" if self.quiet else "auto")) as display:
            return workflow.run(executor=self.engine, listeners=[display], progress=False, **self.given)

    def run_and_end(self, workflow: Any, summary: Callable[[dict[str, Any]], list[str]]) -> None:
        """Run a workflow, print the result and exit with the matching code.

        Args:
            workflow: The workflow.
            summary: Formats its facts as lines.
        """
        result = self._run(workflow)
        facts, profile = result.metadata, result.profile
        if self.as_json:
            figures = {} if profile is None else {"profile": profile.figures()}
            print_json({"status": "done", **facts, **figures})
        elif not self.quiet:
            echo("\n".join(summary(facts)))
            if profile is not None:
                from gristmill.cli.profile_view import print_profile
                from gristmill.cli.report_view import make_console

                print_profile(profile, workflow.folder.record, make_console())
        found = facts["quarantined"] if "quarantined" in facts else sum(one["quarantined"] for one in facts["sources"])
        click.get_current_context().exit(QUARANTINED if found else DONE)
