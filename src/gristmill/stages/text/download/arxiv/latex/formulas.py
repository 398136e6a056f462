"""A formula being read, and its form in the text."""

from __future__ import annotations

import re

from gristmill.stages.text.download.arxiv.latex.commands import PLAIN_MATH
from gristmill.stages.text.download.arxiv.latex.sink import Sink

_LETTER = re.compile(r"[a-zA-Z]")
_ENDS_WITH_WORD = re.compile(r"\\[a-zA-Z]+\Z")
_IN_LINE = ("$", "\\)", "math", "group")


class Formula:
    """The content between the delimiters of a formula.

    Attributes:
        end: Its terminator: a delimiter, the name of an environment, or `group`; empty while text is read.
    """

    def __init__(self) -> None:
        self.end = ""
        self._pieces: list[str] = []

    def begin(self, end: str) -> None:
        """Read a formula up to `end`."""
        self.end = end
        self._pieces = []

    def add(self, text: str) -> None:
        """Append LaTeX."""
        if self._pieces and _LETTER.match(text) and _ENDS_WITH_WORD.search(self._pieces[-1][-40:]):
            self._pieces.append(" ")  # a macro ended with a command, whose name must not grow
        self._pieces.append(text)

    def close(self, sink: Sink) -> None:
        """Pass the formula to `sink`: inline, or as a block."""
        end, self.end = self.end, ""
        formula = re.sub(r"\n\s*\n", "\n", "".join(self._pieces)).strip()
        self._pieces = []
        if not formula:
            return
        if end in _IN_LINE:
            sink.add(f"${' '.join(formula.split())}$")
        elif end in ("$$", "\\]") or end.rstrip("*") in PLAIN_MATH:
            sink.block(f"$$\n{formula}\n$$")
        else:
            sink.block(f"\\begin{{{end}}}\n{formula}\n\\end{{{end}}}")
