"""`gristmill crawl`: from snapshots of Common Crawl to documents."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli.dedup import make_engine
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
from gristmill.errors import RecipeError

if TYPE_CHECKING:
    from gristmill.pipeline import Pipeline

crawl_options = options(
    click.option(
        "--crawl-type",
        type=click.Choice(["main", "news"]),
        default="main",
        show_default=True,
        help="Which crawl: snapshots of main are year and week (2024-10), those of news year and month (2024-03).",
    ),
    click.option(
        "--url-limit", type=click.IntRange(min=1), metavar="N", help="Download only the first N files of the snapshots."
    ),
    click.option("--record-limit", type=click.IntRange(min=1), metavar="N", help="Read at most N pages of each file."),
    click.option(
        "--extraction", metavar="NAME", help="How to find the text of a page, such as trafilatura [default: justext]."
    ),
    click.option("--download-dir", metavar="FOLDER", help="Where files are downloaded to [default: OUTPUT.downloads]."),
    click.option(
        "--keep-downloads/--remove-downloads",
        default=False,
        show_default=True,
        help="Keep downloaded files, or remove each once it is read. A file has about 1 GB.",
    ),
    click.option(
        "--bandwidth",
        metavar="SIZE",
        help="Download at most this much per second, all workers of a machine together: 20MB.",
    ),
    click.option("--aws", is_flag=True, help="Download from S3 with the AWS credentials of the environment."),
    click.option("--data-prefix", metavar="URL", help="Download from a mirror of data.commoncrawl.org."),
    click.option("--index-prefix", metavar="URL", help="Take the list of snapshots from a mirror."),
    click.option(
        "--recipe",
        metavar="RECIPE",
        help="Run the stages of this recipe on the documents before they are written, in place of what it reads.",
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
    **run_with: Any,  # options that are called as those of `Pipeline.run`
) -> None:
    """Download Common Crawl and extract its text.

    START and END are the first and the last snapshot, such as 2024-10. The text of their pages goes to the folder
    OUTPUT, one file for each file of the crawl. Interrupt it at any time: run the same command again to resume, also in
    the middle of a file.

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
    """From the documents of `stage` to files: as they are, or through the stages of a recipe.

    Raises:
        RecipeError: The recipe does not go from a reader to a writer.
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
        raise RecipeError(f"The recipe {recipe!r} does not go from a reader to a writer, so a crawl cannot use it.")
    pipeline = found.pipeline()
    pipeline.stages[0] = stage
    return pipeline


def _renamed(writing: dict[str, Any]) -> dict[str, Any]:
    """Options of the command line as parameters of a writer."""
    return {key.removeprefix("output_"): value for key, value in writing.items()}
