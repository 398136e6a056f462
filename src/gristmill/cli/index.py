"""`gristmill index`: indexes of documents deduplicated earlier, for `gristmill dedup fuzzy --against`."""

from __future__ import annotations

from typing import Any

import click

from gristmill.cli.main import before_the_run, common_options, echo, json_option, print_json
from gristmill.figures import plural


@click.group("index", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def command() -> None:
    """Keep an index of deduplicated documents.

    'gristmill dedup fuzzy NEW/ OUT/ --against INDEX' removes duplicates of all documents in the index as well, and adds
    the documents of NEW to it.

    \b
    gristmill index create seen/
    gristmill dedup fuzzy 2024-10/ clean-10/ --against seen/
    gristmill dedup fuzzy 2024-11/ clean-11/ --against seen/
    """


@command.command("create")
@click.argument("index", metavar="INDEX")
@click.option("--threshold", type=float, default=0.8, show_default=True, help="Minimum similarity of duplicates.")
@click.option(
    "--verify", type=click.Choice(["pairs", "cluster"]), default="pairs", show_default=True, help="As in 'dedup fuzzy'."
)
@click.option("--char-ngrams", type=int, metavar="N", help="Use shingles of N characters instead of 5 words.")
@common_options
def create(index: str, **options: Any) -> None:
    """Create an empty index in a new folder."""
    from gristmill.stages.deduplication import FuzzyDeduplicationWorkflow
    from gristmill.stages.deduplication.fuzzy.index import FuzzyIndex

    with before_the_run():
        settings = FuzzyDeduplicationWorkflow(output_path="unused", **options).index_settings()
        FuzzyIndex.create(index, settings)
    echo(f"Created the index {index}. Use it with: gristmill dedup fuzzy INPUT OUTPUT --against {index}")


@command.command("show")
@click.argument("index", metavar="INDEX")
@json_option
@common_options
def show(index: str, as_json: bool) -> None:
    """Check an index and list its sources."""
    from gristmill.stages.deduplication.fuzzy.index import FuzzyIndex

    _print(FuzzyIndex.load(index), as_json=as_json)


@command.command("forget")
@click.argument("index", metavar="INDEX")
@click.argument("source", metavar="SOURCE")
@json_option
@common_options
def forget(index: str, source: str, as_json: bool) -> None:
    """Remove a source from an index, as if it had never been added."""
    from gristmill.stages.deduplication.fuzzy.index_changes import forget_source

    with before_the_run():
        _print(forget_source(index, source), as_json=as_json)


@command.command("merge")
@click.argument("index", metavar="INDEX")
@click.argument("other", metavar="OTHER")
@json_option
@common_options
def merge(index: str, other: str, as_json: bool) -> None:
    """Add the sources of OTHER to INDEX; OTHER is not changed."""
    from gristmill.stages.deduplication.fuzzy.index_changes import merge_indices

    with before_the_run():
        _print(merge_indices(index, other), as_json=as_json)


def _print(index: Any, *, as_json: bool) -> None:
    sources = [one for one in index.sources if not one.get("forgotten")]
    gone = sum(map(len, index.removed.parts("document")))
    if as_json:
        shown = [{"name": one["name"], "partitions": len(one["partitions"])} for one in sources]
        print_json({"index": index.path, "settings": index.settings, "sources": shown, "duplicates": gone})
        return
    echo(f"{index.path}: {plural(len(sources), 'source')}, {plural(gone, 'duplicate')} in total")
    for one in sources:
        echo(f"  {one['name']}: {plural(len(one['partitions']), 'partition')}")
