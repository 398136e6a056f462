"""Draw the rooms into docs/explanation/architecture.md from the import graph: `python -m tools.make_architecture`."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import grimp

from tools.house import is_engine

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "gristmill"
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
BEGIN = "<!-- drawn by tools/make_architecture.py: begin -->"
END = "<!-- drawn by tools/make_architecture.py: end -->"

DIVIDED = ("backends", "stages")
"""Rooms that hold a contract in their own files and one room per folder."""

LOWER = ("tracking.origins",)
"""Modules that stand lower than the room that they lie in, because the data itself needs them."""

OTHER_NAMES = "gristmill.stages.text.deduplication"
"""A package that only provides workflows under the import paths that scripts use."""

Imports = Mapping[str, frozenset[str]]


@cache
def imports() -> Imports:
    """The rooms, each with the rooms that it imports; imports for type checkers only do not count."""
    graph = grimp.build_graph("gristmill", include_external_packages=False, exclude_type_checking_imports=True)
    found: dict[str, set[str]] = {}
    for module in graph.modules - {"gristmill"} - graph.find_descendants(OTHER_NAMES):
        uses = found.setdefault(room_of(module), set())
        uses |= {room_of(one) for one in graph.find_modules_directly_imported_by(module) if one != "gristmill"}
    return {room: frozenset(uses - {room}) for room, uses in found.items()}


def room_of(module: str) -> str:
    """The room of a module: `backends.local`, `stages contract`, `ledger`."""
    names = module.split(".")[1:]
    if names[0] == "__main__":
        return "cli"
    if ".".join(names) in LOWER:
        return ".".join(names)
    if names[0] not in DIVIDED:
        return names[0]
    place = SOURCE.joinpath(*names[:2])
    is_contract = len(names) == 1 or (not place.is_dir() and not is_engine(place.with_suffix(".py")))
    return f"{names[0]} contract" if is_contract else ".".join(names[:2])


def rows(uses: Imports) -> list[list[str]]:
    """The rooms from top to bottom, each above all that it imports; those that import each other side by side."""
    reach = {room: _reached(room, uses) for room in uses}
    height: dict[str, int] = {}

    def of(room: str) -> int:
        if room not in height:
            below = {one for one in reach[room] if room not in reach[one]}
            height[room] = 1 + max((of(one) for one in below), default=-1)
        return height[room]

    levels: dict[int, list[str]] = {}
    for room in sorted(uses):
        levels.setdefault(of(room), []).append(room)
    return [levels[level] for level in sorted(levels, reverse=True)]


def _reached(room: str, uses: Imports) -> set[str]:
    found: set[str] = set()
    ahead = list(uses[room])
    while ahead:
        one = ahead.pop()
        if one not in found:
            found.add(one)
            ahead += uses[one]
    return found


def picture(uses: Imports) -> str:
    """One box per room, in rows; a box imports only from rows below it, or from its partner in the same row."""
    lines: list[str] = []
    for row in rows(uses):
        boxes = [_box(room, uses) for room in row]
        tall = max(len(box) for box in boxes)
        for number in range(tall):
            parts = [box[number] if number < len(box) else " " * len(box[0]) for box in boxes]
            lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def _box(room: str, uses: Imports) -> list[str]:
    mutual = [one for one in uses[room] if room in _reached(one, uses)]
    title = f"{room} ⇄ {', '.join(sorted(mutual))}" if mutual else room
    wide = len(title) + 2
    return [f"┌{'─' * wide}┐", f"│ {title} │", f"└{'─' * wide}┘"]


def table(uses: Imports) -> str:
    """What each room holds, and what it imports."""
    lines = ["| room | what it holds | imports |", "|---|---|---|"]
    for row in rows(uses):
        for room in row:
            used = [one for below in rows(uses) for one in below if one in uses[room]]
            names = ", ".join(used) or "nothing of the package"
            lines.append(f"| `{room}` | {_purpose(room)} | {names} |")
    return "\n".join(lines)


def _purpose(room: str) -> str:
    place = SOURCE.joinpath(*room.split()[0].split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    first = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    return textwrap.shorten(first.replace("|", "\\|"), 400).rstrip(".")


def drawn() -> str:
    """What stands between the markers of the page."""
    uses = imports()
    return f"{BEGIN}\n```text\n{picture(uses)}\n```\n\n{table(uses)}\n{END}"


def replaced(page: str) -> str:
    """The page with a new drawing between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{PAGE} must have the lines {BEGIN!r} and {END!r}.")
    return before + drawn() + after


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
