"""Find stilted phrases in what users read: `python tools/wording.py`, part of `make check`.

Searches the string literals and docstrings of `src/`, `tools/` and `benchmarks/`, the scripts of HTML pages, the
shipped recipes, `README.md` and its neighbours, and the pages of `docs/` (except decisions, which are records of their
time) for the phrases of `PHRASES`, also if a phrase continues on the next line. Prints one line per hit with a
suggestion; the exit code is 1 if there is any. A line (or the first line of a string) that has to keep a
phrase says why in a comment: `# wording: REASON`, or `<!-- wording: REASON -->` in Markdown.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PROSE = ("*.md", "docs/**/*.md", "src/**/*.yaml", "src/**/*.js", "src/**/*.html")
SOURCE = ("src/**/*.py", "tools/*.py", "benchmarks/*.py")
SKIPPED = ("docs/decisions/", "tools/wording.py")
ALLOWED = re.compile(r"(?:#|<!--) wording: \S")

PHRASES = {
    r"tak(?:es?|ing) (?:\w+ ){0,2}up where": "resumes where it left off",
    r"goes on where": "resumes where it left off",
    r"so many\b": "a number: 'this many', 'Number of …', 'at most N'",
    r"(?:at most|at least|up to|after|with) so (?:much|far|long)\b": "name the quantity: 'Maximum …', 'up to this …'",
    r"of (?:yours|ours|theirs)\b": "your own …",
    r"(?<!there )(?:is|are|was|were) no "
    r"(?!(?:long|slow|fast|larg|bett|few)er\b|more\b|less\b|different\b|such\b)[a-z]+": "is not a …",
    r"gives\b(?! up)": "returns, yields, produces",
    r"for ever\b": "forever, indefinitely; 'waits for ever' is 'hangs'",
    r"nobody\b": "name the part that does not act, or use the passive",
    r"somebody\b": "name the user, process or program",
    r"what is there\b": "the existing …",
    r"such a one\b|such ones\b": "name it",
    r"for want of\b": "due to lack of, because … is missing",
    r"as many as\b": "the number of …, up to",
    r"com(?:es?|ing) to an end\b|came to an end\b": "finishes, ends",
    r"again and again\b": "repeatedly",
    r"became of\b|becomes of\b|came of\b": "what happened to, result",
    r"sign of life\b": "the last update",
    r"\bfared?\b": "what happened to",
    r"without a word\b": "silently",
    r"pass(?:ed|es)? over(?= (?:by|when|in|on|as|and|or)\b|[.,;:])": "skipped",
    r"at fault\b": "causes the failure",
    r"for all (?:its|their) \w+": "despite …",
    r"is rarely meant\b|if (?:that|it) is meant\b": "if that is intended",
    r"(?:cannot|can) be told\b": "is unknown, cannot be determined",
    r"of itself\b": "about itself, by itself",
    r"without effect here\b": "has no effect here",
    r"like it\b(?= [a-z]+s?\b)": "similar",
    r"in one go\b": "at once",
    r"many a\b(?! [A-Z])": "many",
    r"that which\b": "what",
    r"(?:has|have|had) none of (?:it|them)\b": "lacks",
}
"""Patterns that are almost always wrong here, each with what to write instead."""

ANY = re.compile("|".join(rf"(?P<p{number}>\b(?:{phrase}))" for number, phrase in enumerate(PHRASES)), re.IGNORECASE)
SUGGESTIONS = tuple(PHRASES.values())


class Hit(NamedTuple):
    """A phrase that was found, and where."""

    path: Path
    line: int
    phrase: str
    suggestion: str

    def __str__(self) -> str:
        """The hit as a line that editors can open."""
        name = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{name}:{self.line}: '{self.phrase}': {self.suggestion}"


def phrases(text: str) -> Iterator[tuple[int, str, str]]:
    """The phrases in a text: number of the line within it (from 0), the phrase and the suggestion."""
    spaced = re.sub(r"\s", " ", text)  # one for one, so that offsets stay; runs of blanks are matched below
    squeezed, offsets = [], []
    for offset, letter in enumerate(spaced):
        if letter == " " and squeezed and squeezed[-1] == " ":
            continue
        squeezed.append(letter)
        offsets.append(offset)
    for match in ANY.finditer("".join(squeezed)):
        number = int(str(match.lastgroup)[1:])
        yield text.count("\n", 0, offsets[match.start()]), match.group(), SUGGESTIONS[number]


def literals(source: str) -> Iterator[tuple[int, str]]:
    """The string literals and docstrings of a module with their first lines; placeholders of f-strings become `{}`."""
    inner: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            inner.update(id(part) for part in node.values)
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.lineno, node.value


def hits_in_module(path: Path) -> Iterator[Hit]:
    """The hits in the strings of one Python file."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    for first, text in literals(source):
        for line, phrase, suggestion in phrases(text):
            # implicit concatenation and escapes make lines of a value differ from those of the file
            number = min(first + line, len(lines))
            allowed = ALLOWED.search(lines[number - 1]) or ALLOWED.search(lines[first - 1])
            if not allowed and not lines[number - 1].lstrip().startswith(">>> "):  # examples hold any text
                yield Hit(path, number, phrase, suggestion)


def hits_in_prose(path: Path) -> Iterator[Hit]:
    """The hits in one Markdown or YAML file."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for line, phrase, suggestion in phrases(text):
        if not ALLOWED.search(lines[line]):
            yield Hit(path, line + 1, phrase, suggestion)


def files(root: Path, *patterns: str) -> list[Path]:
    """The files to search."""
    found = {path for pattern in patterns for path in root.glob(pattern)}
    return sorted(path for path in found if not path.relative_to(root).as_posix().startswith(SKIPPED))


def find(root: Path = ROOT) -> list[Hit]:
    """All hits below a checkout's root, by file and line."""
    modules, pages = files(root, *SOURCE), files(root, *PROSE)
    hits = [hit for path in modules for hit in hits_in_module(path)]
    hits += [hit for path in pages for hit in hits_in_prose(path)]
    return sorted(hits)


def main() -> int:
    """Print the hits; 1 if there are any."""
    hits = find()
    for hit in hits:
        print(hit)
    if hits:
        print(f"{len(hits)} stilted phrases: rewrite them, or add the comment 'wording: REASON' to the line.")
    return bool(hits)


if __name__ == "__main__":
    sys.exit(main())
