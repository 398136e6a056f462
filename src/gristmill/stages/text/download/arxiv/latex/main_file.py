"""Finds the main file of a paper."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping

_CLASS = re.compile(r"^[^%\n]*\\document(?:class|style)\b[^{\n]*(?:\{([^}\n]*)\})?", re.MULTILINE)
_BEGIN = re.compile(r"^[^%\n]*\\begin\s*\{document\}", re.MULTILINE)
_INCLUDED = re.compile(r"\\(?:input|include|subfile)\s*\{?\s*([^\s{}%\\]{1,200})")
_PARTS = ("subfiles", "standalone", "letter", "minimal")
_USUAL = ("main", "ms", "paper", "article", "manuscript", "arxiv", "root", "template")
_README = "00README"


def main_file(files: Mapping[str, str]) -> str | None:
    """The path of the main file; None if nothing looks like LaTeX.

    The file named by the archive's 00README takes precedence; then a file with a document class that no other includes,
    that contains the document, and that has a usual name; then the longest.
    """
    sources = {name: text for name, text in files.items() if not name.lower().endswith((".sty", ".cls"))}
    named = _named(sources)
    if named is not None:
        return named
    sources = {name: text for name, text in sources.items() if not posixpath.basename(name).startswith(_README)}
    included = {posixpath.normpath(name) for text in sources.values() for name in _INCLUDED.findall(text)}

    def rank(name: str) -> tuple[bool, bool, bool, bool, bool, int, str]:
        text = sources[name]
        kind = _CLASS.search(text)
        stem = posixpath.splitext(posixpath.normpath(name))[0]
        return (
            kind is not None and (kind[1] or "").strip() not in _PARTS,
            _BEGIN.search(text) is not None,
            not included & {stem, posixpath.normpath(name)},
            posixpath.basename(stem).lower() in _USUAL,
            name.lower().endswith(".tex"),
            len(text),
            name,
        )

    best = max(sources, key=rank, default=None)
    return best if best is not None and "\\" in sources[best] else None


def _named(files: Mapping[str, str]) -> str | None:
    """The main file according to the archive's readme."""
    for name, text in files.items():
        if not posixpath.basename(name).startswith(_README):
            continue
        folder = posixpath.dirname(name)
        for wanted in _toplevel(text):
            path = posixpath.normpath(posixpath.join(folder, wanted))
            found = next((other for other in files if posixpath.normpath(other) == path), None)
            if found is not None:
                return found
    return None


def _toplevel(readme: str) -> list[str]:
    try:
        sources = json.loads(readme)["sources"]
        return [str(one["filename"]) for one in sources if one.get("usage") == "toplevel"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        lines = [line.split() for line in readme[:100_000].splitlines()]
        return [words[0] for words in lines if len(words) == 2 and words[1] == "toplevelfile"]
