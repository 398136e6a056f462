"""Make docs/reference/cli.md from the command line's own help; a test compares the two."""

from __future__ import annotations

from pathlib import Path

import click

from gristmill.cli.main import cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"
WIDTH = 100

HEAD = """# The command line

Generated from `gristmill --help` by `tools/make_cli_reference.py`; change the commands, not this page.
`python -m gristmill` runs the same command if the interpreter's scripts are not on the PATH.

## Exit codes

| code | meaning |
|---:|---|
| 0 | success |
| 1 | failure: the message says why; for `verify`, something is wrong with the output |
| 2 | usage error: the command line or the recipe is invalid; nothing was run |
| 3 | success with quarantined records: `gristmill quarantine OUTPUT` lists them |
| 130 | interrupted: run the same command again to resume |

Results go to stdout; progress, warnings and errors go to stderr. With `--json`, stdout holds one JSON object, also
when the command fails: `{"status": "failed", "error": {"type": …, "message": …}}`.
"""


def reference() -> str:
    """The whole page."""
    top = click.Context(cli, info_name="gristmill", terminal_width=WIDTH, **cli.context_settings)
    parts = [HEAD, _section("gristmill", cli.get_help(top))]
    for name in cli.list_commands(top):
        command = cli.get_command(top, name)
        context = click.Context(command, info_name=name, parent=top, terminal_width=WIDTH)
        parts.append(_section(f"gristmill {name}", command.get_help(context)))
        for below, one in sorted(getattr(command, "commands", {}).items()):
            inner = click.Context(one, info_name=below, parent=context, terminal_width=WIDTH)
            parts.append(_section(f"gristmill {name} {below}", one.get_help(inner)))
    return "\n".join(parts)


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text.rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    print(PAGE)
