"""`gristmill view`: a local page to browse, search and label the documents of a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gristmill.cli.main import common_options, echo, record_option
from gristmill.figures import plural

if TYPE_CHECKING:
    from gristmill.viewer.app import View


@click.command("view")
@click.argument("output")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on [default: any free one].")
@click.option("--browser/--no-browser", default=True, help="Open the page in a browser.  [default: browser]")
@click.option("--labels", metavar="FILE", help="File to keep labels in [default: labels.jsonl in the record].")
@click.option("--export", metavar="FILE", help="Write the labelled documents to FILE (JSONL) and exit.")
@click.option("--text-field", help="Column that holds the text [default: the one read by the stages].")
@record_option
@common_options
def command(
    output: str,
    port: int,
    browser: bool,
    labels: str | None,
    export: str | None,
    text_field: str | None,
    record_path: str | None,
) -> None:
    """Browse, search and label documents.

    Serves a page on 127.0.0.1 with the kept, dropped and quarantined documents of OUTPUT. Search by stage, reason,
    score, source file, id, URL or text; each document shows what happened to it and why. Label decisions as right or
    wrong to get training data for 'gristmill classifier train'. Press Ctrl+C to stop.

    \b
    gristmill view clean/
    gristmill view clean/ --export labels.jsonl
    gristmill classifier train labels.jsonl --kind linear --out model/
    """
    from gristmill.ledger.record.layout import RunFolder
    from gristmill.viewer.app import View
    from gristmill.viewer.server import Server

    view = View(RunFolder(output, record_path=record_path), labels=labels, text_field=text_field)
    if export is not None:
        _export(view, export)
        return
    with Server(view, port) as server:
        try:
            echo(f"{view.catalog.documents:,} documents of {output} at {server.url}\nPress Ctrl+C to stop.")
            sys.stdout.flush()
            if browser:
                _open(server.url)
            server.serve_forever()
        except KeyboardInterrupt:
            echo("Stopped.")


def _export(view: View, path: str) -> None:
    from gristmill.viewer.server import write_export

    with Path(path).open("wb") as file:
        written, skipped = write_export(view, file)
    echo(f"{plural(written, 'labelled document')} written to {path}.")
    if skipped:
        echo(f"{plural(skipped, 'labelled document')} skipped: the text is gone, or the input has changed.", err=True)


def _open(url: str) -> None:
    """Open the page if there is a display; a text-mode browser would take over the terminal."""
    import webbrowser

    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)
