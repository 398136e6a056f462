"""The page about the command line says what the command line says."""

from __future__ import annotations

import click
import pytest

from gristmill.cli.main import COMMANDS, cli
from tools.make_cli_reference import PAGE, reference


def test_page_is_what_the_help_says() -> None:
    # On a difference: python tools/make_cli_reference.py
    assert PAGE.read_text(encoding="utf-8") == reference()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_and_option_has_a_help_text(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts}"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_short_help_is_not_cut(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert not command.get_short_help_str(limit=60).endswith("...")
