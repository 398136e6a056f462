"""`gristmill card`: writes a README.md with which Hugging Face's `datasets` loads an output."""

from __future__ import annotations

from typing import Any

import click

from gristmill.cli.main import common_options, echo, json_option, print_json, record_option


@click.command("card")
@click.argument("output")
@click.option("--split", default="train", show_default=True, metavar="NAME", help="Name of the split.")
@click.option("--name", metavar="TITLE", help="Dataset title [default: the folder's name].")
@click.option("--replace", is_flag=True, help="Overwrite a README.md that was not written by this command.")
@click.option("--croissant", is_flag=True, help="Also write _croissant.json (MLCommons Croissant 1.0).")
@click.option("--license", "license_name", metavar="NAME", help="Croissant: the licence [default: as documents say].")
@click.option("--url", metavar="URL", help="Croissant: where the dataset is published.")
@click.option("--creator", metavar="NAME", help="Croissant: who made the dataset.")
@click.option("--description", metavar="TEXT", help="Croissant: what the dataset is [default: its size].")
@record_option
@json_option
@common_options
def command(
    output: str,
    split: str,
    name: str | None,
    replace: bool,
    record_path: str | None,
    as_json: bool,
    croissant: bool,
    license_name: str | None,
    url: str | None,
    creator: str | None,
    description: str | None,
) -> None:
    """Write a dataset card into an output.

    Writes a README.md with the header that Hugging Face's 'datasets' reads (data files, split, sizes), followed by what
    was kept and dropped, by stage and reason, and the recipe. The folder can then be loaded or uploaded as is. For a
    shuffle or a mixture, it lists splits, sources and licences. --croissant also describes every file with its SHA-256.

    \b
    gristmill card clean/
    gristmill card clean/ --name "Clean crawl" --split train
    """
    from gristmill.report.card import write_card

    place = write_card(output, split=split, name=name, replace=replace, record_path=record_path)
    answer: dict[str, Any] = {"card": place}
    if croissant:
        from gristmill.report.croissant import write_croissant

        known = {"license": license_name, "url": url, "creator": creator, "description": description}
        given = {key: value for key, value in known.items() if value}
        described, missing = write_croissant(output, name=name, given=given, replace=replace, record_path=record_path)
        answer |= {"croissant": described, "missing": missing}
    if as_json:
        print_json(answer)
        return
    echo(f"Card: {place}")
    if croissant:
        echo(f"Croissant: {answer['croissant']}")
        if answer["missing"]:
            echo(f"Croissant also requires: {', '.join(answer['missing'])}. Pass them as options.")
