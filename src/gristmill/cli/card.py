"""`gristmill card`: writes a README.md with which Hugging Face's `datasets` loads an output."""

from __future__ import annotations

import click

from gristmill.cli.main import common_options, echo, json_option, print_json, record_option


@click.command("card")
@click.argument("output")
@click.option("--split", default="train", show_default=True, metavar="NAME", help="Name of the split.")
@click.option("--name", metavar="TITLE", help="Dataset title [default: the folder's name].")
@click.option("--replace", is_flag=True, help="Overwrite a README.md that was not written by this command.")
@record_option
@json_option
@common_options
def command(output: str, split: str, name: str | None, replace: bool, record_path: str | None, as_json: bool) -> None:
    """Write a dataset card into an output.

    Writes a README.md with the header that Hugging Face's 'datasets' reads (data files, split, sizes), followed by what
    was kept and dropped, by stage and reason, and the recipe. The folder can then be loaded or uploaded as is.

    \b
    gristmill card clean/
    gristmill card clean/ --name "Clean crawl" --split train
    """
    from gristmill.report.card import write_card

    place = write_card(output, split=split, name=name, replace=replace, record_path=record_path)
    if as_json:
        print_json({"card": place})
    else:
        echo(f"Card: {place}")
