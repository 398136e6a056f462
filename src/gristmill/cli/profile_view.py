"""Prints a profile: where each stage spent its time. Views never load anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.figures import printable
from gristmill.ledger.record.layout import RECORD_FILES
from gristmill.observe.profile.profile import Profile

if TYPE_CHECKING:
    from rich.console import Console


def print_profile(profile: Profile, record: str | None, console: Console) -> None:
    """Print the table of stages, one line per process, and the path of the flame graph."""
    from rich.table import Table
    from rich.text import Text

    head, rows = profile.table()
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.add_column(head[0], overflow="fold")
    for title in head[1:]:
        table.add_column(title, justify="right")
    for name, *figures in rows:
        table.add_row(Text(name), *figures)
    console.print("\nTime by stage, in seconds summed over all workers:")
    console.print(table)
    for line in profile.process_lines():
        console.print(printable(line))
    if record:
        console.print(printable(f"Flame graph: {record}/{RECORD_FILES['profile_page']}"), soft_wrap=True)
