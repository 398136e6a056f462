"""`gristmill split`: cuts a large file into several."""

from __future__ import annotations

import click

from gristmill.cli.main import before_the_run, common_options, echo, json_option, print_json


@click.command("split")
@click.argument("file")
@click.argument("output")
@click.option(
    "--size", default="128MB", show_default=True, metavar="SIZE", help="Size of each part, such as 500MB or 1GiB."
)
@json_option
@common_options
def command(file: str, output: str, size: str, as_json: bool) -> None:
    """Split a large file into parts.

    FILE is JSONL or Parquet, optionally compressed; the parts go to the folder OUTPUT. Readers split large files
    themselves; this command is for tools that do not.

    \b
    gristmill split crawl.jsonl.gz parts/ --size 500MB
    """
    from gristmill.figures import parse_size, plural
    from gristmill.storage.splitting import split_file

    with before_the_run():
        parts = split_file(file, output, target_size=parse_size(size, name="--size"))
    if as_json:
        print_json({"parts": [{"path": part.path, "rows": part.rows, "bytes": part.size} for part in parts]})
        return
    for part in parts:
        echo(part.path)
    echo(f"{plural(sum(part.rows for part in parts), 'row')} in {plural(len(parts), 'part')}.", err=True)
