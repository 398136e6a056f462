"""`gristmill crawl`: downloads Common Crawl snapshots and extracts documents."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli.main import (
    DONE,
    before_the_run,
    common_options,
    echo,
    marks_resumable,
    print_json,
    record_option,
)
from gristmill.cli.run import (
    WRITERS,
    Assignments,
    error_budget_option,
    executor_options,
    metrics_options,
    options,
    output_options,
    profile_option,
    read_recipe,
    run_options,
    salvage_option,
)
from gristmill.cli.workflow_options import make_engine
from gristmill.errors import RecipeError

if TYPE_CHECKING:
    from gristmill.pipeline import Pipeline

crawl_options = options(
    click.option(
        "--crawl-type",
        type=click.Choice(["main", "news"]),
        default="main",
        show_default=True,
        help="Which crawl. Snapshots of main are year-week (2024-10), those of news year-month (2024-03).",
    ),
    click.option("--url-limit", type=click.IntRange(min=1), metavar="N", help="Download only the first N files."),
    click.option("--record-limit", type=click.IntRange(min=1), metavar="N", help="Read at most N pages per file."),
    click.option("--extraction", metavar="NAME", help="Text extractor, such as trafilatura [default: justext]."),
    click.option("--download-dir", metavar="FOLDER", help="Folder for downloaded files [default: OUTPUT.downloads]."),
    click.option(
        "--keep-downloads/--remove-downloads",
        default=False,
        show_default=True,
        help="Keep downloaded files (about 1 GB each), or remove each one after reading it.",
    ),
    click.option(
        "--bandwidth",
        metavar="SIZE",
        help="Download limit per second and machine, such as 20MB.",
    ),
    click.option("--aws", is_flag=True, help="Download from S3 with AWS credentials from the environment."),
    click.option("--data-prefix", metavar="URL", help="Download from a mirror of data.commoncrawl.org."),
    click.option("--index-prefix", metavar="URL", help="Get the list of snapshots from a mirror."),
    click.option(
        "--recipe",
        metavar="RECIPE",
        help="Run this recipe on the documents before writing them; the crawl replaces its reader.",
    ),
    click.option("--dry-run", is_flag=True, help="Only print the URLs that would be downloaded."),
)


@click.command("crawl")
@click.argument("start_snapshot", metavar="START")
@click.argument("end_snapshot", metavar="END")
@click.argument("output", metavar="OUTPUT")
@crawl_options
@output_options
@executor_options
@run_options
@error_budget_option
@salvage_option
@profile_option
@record_option
@metrics_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    start_snapshot: str,
    end_snapshot: str,
    output: str,
    crawl_type: Any,
    url_limit: int | None,
    record_limit: int | None,
    extraction: str | None,
    download_dir: str | None,
    keep_downloads: bool,
    bandwidth: str | None,
    aws: bool,
    data_prefix: str | None,
    index_prefix: str | None,
    recipe: str | None,
    dry_run: bool,
    output_filetype: Any,
    compression: str | None,
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
    quiet: bool,
    show_all: bool,
    as_json: bool,
    **run_with: Any,  # options named like those of `Pipeline.run`
) -> None:
    """Download Common Crawl and extract its text.

    START and END are the first and last snapshot, such as 2024-10. The extracted text goes to the folder OUTPUT, one
    file per file of the crawl. An interrupted download resumes when you run the same command again, even in the middle
    of a file.

    \b
    gristmill crawl 2024-10 2024-10 pages/ --url-limit 2 --dry-run
    gristmill crawl 2024-10 2024-10 pages/ --url-limit 2 --bandwidth 20MB
    gristmill crawl 2024-10 2024-10 clean/ --url-limit 2 --recipe web
    gristmill crawl 2024-01 2024-03 news/ --crawl-type news --extraction trafilatura --output-filetype parquet
    """
    from gristmill.stages.text.download.common_crawl import stage as common_crawl

    given = {"data_prefix": data_prefix, "index_prefix": index_prefix}
    places: dict[str, Any] = {name: place for name, place in given.items() if place is not None}
    if dry_run:
        with before_the_run():
            generator = common_crawl.url_generator(start_snapshot, end_snapshot, crawl_type, url_limit, **places)
            urls = generator.generate_urls()
        if as_json:
            print_json({"status": "done", "urls": urls})
        else:
            echo("\n".join(urls))
        ctx.exit(DONE)
    from gristmill.observe.display import make_listener

    with before_the_run():
        stage = common_crawl.CommonCrawlDownloadExtractStage(
            start_snapshot,
            end_snapshot,
            download_dir or f"{output.rstrip('/')}.downloads",
            crawl_type,
            extraction,
            use_aws_to_download=aws,
            url_limit=url_limit,
            record_limit=record_limit,
            keep_downloads=keep_downloads,
            max_bytes_per_second=bandwidth,
            **places,
        )
        writing = {"output_filetype": output_filetype, "compression": compression}
        pipeline = make_pipeline(stage, output, recipe, {key: value for key, value in writing.items() if value})
    engine = make_engine(executor, workers, memory_budget)
    marks_resumable()
    with closing(make_listener("off" if quiet else "auto")) as display:
        result = pipeline.run(executor=engine, id_field="warc_id", listeners=[display], progress=False, **run_with)
    from gristmill.cli.report_view import exit_code, print_report

    print_report(
        result.report,
        as_json=as_json,
        quiet=quiet,
        show_all=show_all,
        record=run_with.get("record_path"),
        profile=result.profile,
    )
    ctx.exit(exit_code(result.report))


def make_pipeline(stage: Any, output: str, recipe: str | None, writing: dict[str, Any]) -> Pipeline:
    """A pipeline that writes the documents of `stage` to files, optionally through the stages of a recipe.

    Raises:
        RecipeError: The recipe does not start with a reader or does not end with a writer.
    """
    from gristmill.pipeline import Pipeline
    from gristmill.recipes.adjust import adjust
    from gristmill.stages.text.io.documents import DocumentWriter

    if recipe is None:
        writer: Any = DocumentWriter(output, **{"filetype": "jsonl", **_renamed(writing)})
        return Pipeline("crawl", stages=[stage, writer])
    found = adjust(read_recipe(recipe, Assignments({"input_path": "crawl", "output_path": output})), writing)
    names = [entry.name for entry in found.stages]
    if not names[0].endswith("Reader") or WRITERS.isdisjoint(names):
        raise RecipeError(
            f"The recipe {recipe!r} must start with a reader and end with a writer to be used for a crawl."
        )
    pipeline = found.pipeline()
    pipeline.stages[0] = stage
    return pipeline


def _renamed(writing: dict[str, Any]) -> dict[str, Any]:
    """The command-line options as parameters of a writer."""
    return {key.removeprefix("output_"): value for key, value in writing.items()}
