"""The files of a paper: included files are looked up only among them."""

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
        main: The main file; other files are looked up relative to its folder.

    Attributes:
        aside: Verbatim parts, by their numbers in the text, and whether they are blocks.
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
        """The content of a file, prepared for conversion."""
        if name not in self._prepared:
            self._prepared[name] = prepared(self._texts[name], self.aside)
        return self._prepared[name]

    def restored(self, text: str) -> str:
        """`text` with the numbers of verbatim parts replaced by the parts, for those inside arguments."""
        if ASIDE not in text:
            return text
        text = _NUMBERED.sub(lambda found: "".join(one for one, _ in self.aside[int(found[1]) :][:1]), text)
        return text.replace(ASIDE, "")

    def included(self, wanted: str, *, style: bool) -> str | None:
        """The included file, if it exists and is not being read already; paths outside the source match none."""
        for base in ("", self._folder):
            for ending in (".sty",) if style else ("", ".tex", ".ltx"):
                name = self._names.get(posixpath.normpath(posixpath.join(base, wanted + ending)))
                if name is not None:
                    return name if name not in self.opened and len(self.opened) <= _MOST_NESTED else None
        return None
