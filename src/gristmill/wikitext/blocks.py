"""Lines: headings, lists and tables become lines of text."""

from __future__ import annotations

import re

BREAK = "\x04"
"""A line break by a tag, which neither ends a list item nor a table cell; XML does not allow it in a dump."""
_SPECIAL = frozenset("=*#:;|!{ \t-" + BREAK)
_HEADING = re.compile(r"(={1,6})[ \t]*(.+?)[ \t]*\1[ \t]*$")
_MARKERS = re.compile(r"[*#:;]+[ \t]*")
_BLANK = " \t" + BREAK
_CELLS = re.compile(r"\|\||!!")


def block_text(text: str, *, keep_tables: bool) -> str:
    """The text without its line markup; headings of sections without text are omitted."""
    lines: list[str] = []
    headings: list[tuple[int, int]] = []  # those that no text has followed yet: their level and place in `lines`
    tables: list[_Table] = []
    rows: list[str] = []  # of the outermost table and those in its cells

    def add(line: str) -> None:
        if headings and line.strip():
            headings.clear()
        lines.append(line)

    number = 0  # of the last item of a numbered list
    in_list = False
    for line in text.split("\n"):
        if not in_list:
            number = 0
        in_list = False
        if not line or line[0] not in _SPECIAL:
            if tables:
                tables[-1].add(line)
            elif line:
                if headings:
                    headings.clear()
                lines.append(line)
            else:
                lines.append(line)
            continue
        bare = line.strip(_BLANK)
        if bare.startswith("{|") or (line[0] == ":" and bare.lstrip(":").lstrip().startswith("{|")):
            tables.append(_Table(rows))
        elif tables:
            if bare.startswith("|}"):
                tables.pop().end_row()
                if tables:
                    continue
                for row in rows if keep_tables else ():
                    add(row)
                rows.clear()
                if bare[2:].strip():
                    add(bare[2:].strip())
            else:
                tables[-1].take(bare)
        elif line[0] == "=" and (heading := _HEADING.match(line)):
            level = len(heading[1])
            while headings and headings[-1][0] >= level:
                lines[headings.pop()[1]] = ""
            lines.append("")
            headings.append((level, len(lines)))
            lines.append(heading[2])
            lines.append("")
        elif bare.startswith(("|-", "|}", "|+", "{{", "----")):
            continue  # the rest of a table whose beginning came from a template; a rule
        elif bare and bare[0] in "*#:;":
            markers = _MARKERS.match(bare)
            assert markers is not None
            item = bare[markers.end() :]
            if item:
                signs = markers[0].rstrip()
                if signs == "#":
                    number += 1
                    add(f"{number}. {item}")
                else:
                    add(f"- {item}" if signs[-1] in "*#" else item)
                in_list = True
        else:
            add(bare.lstrip("|").lstrip() if bare.startswith("|") else bare)
    for table in reversed(tables):  # never closed
        table.end_row()
    if keep_tables:
        for row in rows:
            add(row)
    for _, at in headings:
        lines[at] = ""
    return "\n".join(lines)


class _Table:
    """A table while its lines come in; finished rows go to `rows`, which a table in a cell shares."""

    def __init__(self, rows: list[str]) -> None:
        self._rows = rows
        self._cells: list[list[str]] = []

    def take(self, line: str) -> None:
        """A line that may begin a row or a cell."""
        if line.startswith("|-"):
            self.end_row()
        elif line.startswith("|+"):
            self.end_row()
            self._cells.append([_content(line[2:])])
            self.end_row()
        elif line.startswith(("|", "!")):
            cells = _CELLS.split(line[1:]) if line[0] == "!" else line[1:].split("||")
            self._cells += [[_content(cell)] for cell in cells]
        else:
            self.add(_MARKERS.sub("", line, count=1) if line[:1] in ("*", "#", ":", ";") else line)

    def add(self, line: str) -> None:
        """Add a line to the cell; before the first cell it is not shown."""
        if self._cells and line:
            self._cells[-1].append(line)

    def end_row(self) -> None:
        """Add the cells since the last row as a row."""
        cells = [" ".join(cell).replace(BREAK, " ").strip() for cell in self._cells]
        row = " | ".join(filter(None, cells))
        if row:
            self._rows.append(row)
        self._cells = []


def _content(cell: str) -> str:
    """A cell without its attributes, which a single bar separates from the content."""
    attributes, bar, content = cell.partition("|")
    return (content if bar else attributes).strip()
