"""Bold and italics: runs of apostrophes, some of which are real apostrophes."""

from __future__ import annotations

import re

_RUNS = re.compile(r"''+")
# A run between two letters, or of another length than 2, 3 and 5, may hold an apostrophe.
_DOUBTFUL = re.compile(r"'''(?:(?<=[^\W\d_]''')(?=[^\W\d_])|')")


def without_quotes(text: str) -> str:
    """The text without marks of bold and italics."""
    if _DOUBTFUL.search(text) is None:
        return _RUNS.sub("", text)
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if "''" in line:
            lines[at] = _RUNS.sub("", line) if _DOUBTFUL.search(line) is None else _balanced(line)
    return "\n".join(lines)


def _balanced(line: str) -> str:
    """A line; paired marks are distinguished from apostrophes."""
    pieces = _RUNS.split(line)
    runs = [len(run) for run in _RUNS.findall(line)]
    spare = [max(0, run - 5) if run > 5 else int(run == 4) for run in runs]
    runs = [run - more for run, more in zip(runs, spare, strict=True)]
    bold = sum(run in (3, 5) for run in runs)
    italics = sum(run in (2, 5) for run in runs)
    if bold % 2 and italics % 2:
        # One of the bold marks is an apostrophe before italics, most likely one inside a word.
        inner = [at for at, run in enumerate(runs) if run == 3 and pieces[at][-1:].isalpha()]
        any_bold = [at for at, run in enumerate(runs) if run == 3]
        for at in (inner or any_bold)[:1]:
            spare[at] += 1
    marks = ["'" * more for more in spare]
    return pieces[0] + "".join(mark + piece for mark, piece in zip(marks, pieces[1:], strict=True))
