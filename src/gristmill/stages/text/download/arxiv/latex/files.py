"""The files of a paper: included files are looked up among them, and nowhere else."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from gristmill.stages.text.download.arxiv.latex.source import ASIDE, prepared

_NUMBERED = re.compile(f"{ASIDE}([0-9]{{1,9}}){ASIDE}")
_MOST_NESTED = 20


class Files:
    """The files by their paths.

    Args:
        texts: Their content.
        main: The main file, from whose folder others are looked for.

    Attributes:
        aside: Verbatim parts, by the numbers that stand for them, and whether they are blocks.
        opened: The files that are being read, the main one first.
    """

    def __init__(self, texts: Mapping[str, str], main: str) -> None:
        self._texts = texts
        self._names = {posixpath.normpath(name): name for name in texts}
        self._prepared: dict[str, str] = {}
        self._folder = posixpath.dirname(main)
        self.aside: list[tuple[str, bool]] = []
        self.opened = [main]

    def text(self, name: str) -> str:
        """The content of a file, ready to be read."""
        if name not in self._prepared:
            self._prepared[name] = prepared(self._texts[name], self.aside)
        return self._prepared[name]

    def restored(self, text: str) -> str:
        """`text` with the verbatim parts in it that came through as their numbers, as those in arguments do."""
        if ASIDE not in text:
            return text
        text = _NUMBERED.sub(lambda found: "".join(one for one, _ in self.aside[int(found[1]) :][:1]), text)
        return text.replace(ASIDE, "")

    def included(self, wanted: str, *, style: bool) -> str | None:
        """The file that is meant, if it exists and is not being read already; paths that lead outside match none."""
        for base in ("", self._folder):
            for ending in (".sty",) if style else ("", ".tex", ".ltx"):
                name = self._names.get(posixpath.normpath(posixpath.join(base, wanted + ending)))
                if name is not None:
                    return name if name not in self.opened and len(self.opened) <= _MOST_NESTED else None
        return None
