"""The code on the pages runs, block after block, as a reader would type it; every command on them exists."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from gristmill.cli.main import cli
from tests.docs.pages import PAGES, ROOT, SHELL, blocks, commands, run_page

TESTED_APART = ("trust.md", "choose-thresholds.md")
"""Pages with a test of their own, which looks at what they print."""
LONGER = ("cookbook", "tutorial")
"""Whole pipelines, run by tests/integration/test_docs_pipelines.py."""
RUN = [
    page
    for page in PAGES
    if page.parent.name not in LONGER and page.name not in TESTED_APART and blocks(page, "python", "sh")
]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_code_on_the_page_runs(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path, "python", "sh")


def test_every_command_on_a_page_is_one() -> None:
    seen = 0
    for page in PAGES:
        for kind, text in blocks(page, *SHELL):
            for words in commands(kind, text):
                seen += 1
                where = f"{page.relative_to(ROOT)}: gristmill {' '.join(words)}"
                command: click.Command | None = cli
                context = click.Context(cli, info_name="gristmill")
                while isinstance(command, click.Group):
                    name = words.pop(0)
                    command = command.get_command(context, name)
                    assert command is not None, f"{where}: no command {name!r}"
                    context = click.Context(command, parent=context, info_name=name)
                known = {option for parameter in command.params for option in parameter.opts} if command else set()
                unknown = [word for word in words if re.match(r"--?[a-z]", word) and word.split("=")[0] not in known]
                assert unknown == [], where
    assert seen > 70


def test_prompts_stand_only_where_output_follows() -> None:
    # A prompt is copied by every page that shows the Markdown itself, such as that of a repository.
    for page in PAGES:
        for kind, text in blocks(page, *SHELL, "text"):
            prompts = [line for line in text.splitlines() if line.startswith("$ ")]
            if prompts:
                assert kind in ("console", "text"), f"{page.name}: {prompts[0]}"
                assert len(prompts) < len(text.splitlines()), f"{page.name}: {prompts[0]}"
