"""Converts LaTeX to text: headings, paragraphs, lists, tables and formulas; expands macros, removes everything else.

One pass over the input without recursion: the expansion of a macro, argument or file is pushed in front of the
remaining input.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from gristmill.stages.text.download.arxiv.latex.commands import (
    ACCENTS,
    CITATION,
    DROPPED,
    DROPPED_ENVIRONMENTS,
    ENVIRONMENT_ARGUMENTS,
    HEADINGS,
    LAST_ARGUMENT,
    LISTS,
    MATH_ENVIRONMENTS,
    REFERENCES,
    SYMBOLS,
    TABLES,
    TEXT_IN_MATH,
    THEOREMS,
    accented,
)
from gristmill.stages.text.download.arxiv.latex.files import Files
from gristmill.stages.text.download.arxiv.latex.formulas import Formula
from gristmill.stages.text.download.arxiv.latex.macros import Macros
from gristmill.stages.text.download.arxiv.latex.reading import Frame, Input
from gristmill.stages.text.download.arxiv.latex.sink import LINE_BREAK, Sink, ligatured

_TOKEN = re.compile(
    r"\\(?P<word>[a-zA-Z@]+(?![a-zA-Z@]))(?P<star>\*?)(?P<blank>[ \t]*(?:\n(?![ \t]*\n)[ \t]*)?)"
    r"|\\(?P<symbol>.)"
    r"|(?P<par>\n[ \t]*\n\s*)"
    r"|(?P<math>\$\$?)"
    r"|\x01(?P<aside>\d+)\x01"
    r"|(?P<sign>[{}&#~\n\\\x01])"
    r"|(?P<text>[^\\{}&#~\n$\x01]+)",
    re.DOTALL,
)
_DOCUMENT = re.compile(r"\\document(?:class|style)\b|\\begin\s*\{document\}")
_DIMENSION = r"[-+]?[\d.]*\s*(?:true)?(?:pt|em|ex|cm|mm|in|bp|sp|\\[a-zA-Z@]+)"
_GLUE = re.compile(rf"\s*=?\s*{_DIMENSION}(?:\s+(?:plus|minus)\s*[\d.]+\s*[a-z]+)*")
_RULE = re.compile(rf"(?:\s*(?:height|width|depth)\s*{_DIMENSION})*")
_ASSIGNED = re.compile(rf"\s?=\s?(?:{_DIMENSION}|[-+]?\d+)")
_CODE = re.compile(r"\s?`\\?.\s?=\s?\d+", re.DOTALL)
_INCLUDES = ("input", "include", "import", "subimport", "subfile")
_STYLES = ("usepackage", "RequirePackage")
_MOST_NESTED_SINKS = 20
_ROOM = 4 << 20
_ROOM_PER_CHARACTER = 4


@dataclass(frozen=True, slots=True)
class LatexText:
    """The text of a paper.

    Attributes:
        text: Title, abstract and sections, as Markdown with formulas in LaTeX.
        title: The title; empty if there is none.
    """

    text: str
    title: str


def latex_to_text(files: Mapping[str, str], main: str) -> LatexText:
    r"""The text of the paper whose main file is `main`.

    Args:
        files: The files that may be included, by path in the source; nothing else is ever opened.
        main: The path of the main file.

    Raises:
        LatexError: Its macros never end, or expand to more text than any paper.

    Example:
        >>> latex_to_text({"a.tex": r"\def\R{\mathbb R}\section{On $\R$} All % not this"}, "a.tex").text
        '## On $\\mathbb R$\n\nAll'
    """
    return _Converter(files, main).convert()


class _Converter:
    def __init__(self, files: Mapping[str, str], main: str) -> None:
        self._files = Files(files, main)
        self._main = main
        self._input = Input()
        self._macros = Macros(_ROOM + _ROOM_PER_CHARACTER * sum(map(len, files.values())))
        self._sinks = [Sink()]
        self._formula = Formula()
        self._title = ""
        self._lists: list[tuple[str, int]] = []
        self._tables = 0
        self._body = False
        self._style = False

    def convert(self) -> LatexText:
        main = self._files.text(self._main)
        self._body = _DOCUMENT.search(main) is None
        self._input.push(Frame(main))
        self._read()
        if not self._body:  # a part of something larger that only shows a document class
            self._body = True
            self._input.push(Frame(main))
            self._read()
        self._end_math()
        while len(self._sinks) > 1:
            self._close_sink(self._sinks[-2].add)
        text = self._sinks[0].text()
        if self._title:
            text = f"# {self._title}\n\n{text}" if text else f"# {self._title}"
        return LatexText(self._files.restored(text), self._files.restored(self._title))

    def _read(self) -> None:
        frames = self._input.frames
        while frames:
            frame = frames[-1]
            found = _TOKEN.match(frame.text, frame.at, frame.end)
            if found is None:
                self._input.pop()
                continue
            frame.at = found.end()
            kind = found.lastgroup
            if kind == "text":
                if self._body:
                    self._add(found["text"])
            elif kind in ("blank", "star", "word"):
                self._command(found)
            elif kind == "par":
                self._paragraph()
            elif kind == "math":
                self._dollar(found[0], frame)
            elif kind == "aside":
                self._verbatim(int(found["aside"]))
            elif kind == "symbol":
                self._symbol(found["symbol"])
            else:
                self._sign(found["sign"])

    # Characters ------------------------------------------------------------------------------------------------------

    def _add(self, text: str) -> None:
        if self._formula.end:
            self._formula.add(text)
        elif self._body:
            self._sinks[-1].add(ligatured(text))

    def _sign(self, sign: str) -> None:
        if self._formula.end:
            self._formula.add(sign if sign not in "\n\x01" else " ")
        elif sign == "&":
            self._add(" | " if self._tables else " ")
        elif sign in "~\n":
            self._add(" ")

    def _symbol(self, symbol: str) -> None:
        if symbol in self._macros.known:
            self._macros.expand(symbol, self._input)
        elif symbol in "([":
            if not self._formula.end:
                self._open_math("\\)" if symbol == "(" else "\\]")
            else:
                self._formula.add("\\" + symbol)
        elif symbol in ")]":
            if self._formula.end == "\\" + symbol:
                self._end_math()
            elif self._formula.end:
                self._formula.add("\\" + symbol)
        elif self._formula.end:
            self._formula.add("\\" + symbol)
        elif symbol == "\\":
            self._input.option(adjacent=True)
            self._add(LINE_BREAK if self._tables else " ")
        elif symbol in ACCENTS:
            self._add(accented(symbol, self._input.argument()))
        else:
            self._add(SYMBOLS.get(symbol, ""))

    def _verbatim(self, number: int) -> None:
        if number >= len(self._files.aside):
            return
        content, block = self._files.aside[number]
        if self._formula.end:
            self._formula.add(content)
        elif self._body and block:
            self._sinks[-1].block(f"```\n{content}\n```")
        elif self._body:
            self._sinks[-1].add(content)

    def _paragraph(self) -> None:
        if self._formula.end == "$":
            self._end_math()  # an inline formula never continues after a blank line: the mark was something else
        if self._formula.end:
            self._formula.add("\n")
        elif self._body:
            if self._tables:
                self._add(" ")
            else:
                self._sinks[-1].paragraph()

    # Formulas --------------------------------------------------------------------------------------------------------

    def _dollar(self, mark: str, frame: Frame) -> None:
        if not self._body:
            return
        if not self._formula.end:
            self._open_math(mark)
        elif self._formula.end == mark:
            self._end_math()
        elif self._formula.end == "$":  # the end of one formula, and the beginning of the next
            frame.at -= 1
            self._end_math()
        else:
            self._formula.add(mark)

    def _open_math(self, end: str) -> None:
        if self._body:
            self._formula.begin(end)

    def _end_math(self) -> None:
        if self._formula.end:
            self._formula.close(self._sinks[-1])

    def _math_command(self, name: str, written: str) -> None:
        if name == "label":
            self._input.argument()
        elif name in ("nonumber", "notag", "ensuremath"):
            pass
        elif name == "end":
            ended = self._input.environment_name()
            if ended == self._formula.end:
                self._end_math()
            elif ended is not None:
                self._formula.add(f"\\end{{{ended}}}")
        elif name in TEXT_IN_MATH:
            self._formula.add(f"\\{name}{{{self._input.argument()}}}")
        else:
            if name == "begin" and (environment := self._input.environment_name()) is not None:
                written = f"\\begin{{{environment}}}"
            self._formula.add(written)

    # Commands --------------------------------------------------------------------------------------------------------

    def _command(self, found: re.Match[str]) -> None:
        name = found["word"]
        macros = self._macros
        if name in macros.known and (self._body or self._formula.end):
            if found["star"] or (self._formula.end and not macros.known[name].count):  # blanks stay in formulas
                self._input.frames[-1].at = found.end("word")
            macros.expand(name, self._input)
        elif macros.define(name, self._input, simple=self._style) or self._conditional(name):
            pass
        elif self._formula.end:
            self._math_command(name, found[0])
        elif not self._body:
            self._preamble(name)
        else:
            self._text_command(name, bool(found["star"]))

    def _preamble(self, name: str) -> None:
        if name == "begin":
            if self._input.environment_name() == "document":
                self._body = True
        elif name == "title":
            self._read_title()
        elif name in _INCLUDES or name in _STYLES:
            self._include(name)
        elif name == "ExplSyntaxOn":
            self._input.frames[-1].skip_to("\\ExplSyntaxOff")

    def _text_command(self, name: str, star: bool) -> None:
        handler = _HANDLERS.get(name)
        if handler is not None:
            handler(self)
        elif name in HEADINGS:
            self._heading(HEADINGS[name])
        elif name in SYMBOLS:
            self._add(SYMBOLS[name])
        elif name in ACCENTS:
            self._add(accented(name, self._input.argument()))
        elif name in _INCLUDES:
            self._include(name)
        elif name in DROPPED:
            self._input.skip_arguments(DROPPED[name])
        elif name in REFERENCES or CITATION.fullmatch(name):
            self._input.skip_options()
            keys = ", ".join(key.strip() for key in self._input.argument().split(","))
            self._add(f"[{keys}]" if keys else "")
        elif name in LAST_ARGUMENT:
            self._input.skip_arguments(LAST_ARGUMENT[name] - 1)
        elif self._input.option(adjacent=True) is None:
            self._input.frames[-1].skip(_ASSIGNED)

    def _conditional(self, name: str) -> bool:
        """Whether the command is a condition or part of one; the branch that is not taken is skipped."""
        switches = self._macros.switches
        if name in ("fi", "else") or (name.startswith("if") and name not in ("iff", "ifthenelse", "ifdef")):
            if name == "else":
                self._input.frames[-1].skip_branch(to_else=False)
            elif name != "fi" and not (name == "iftrue" or switches.get(name[2:], False)):
                self._input.frames[-1].skip_branch(to_else=True)
            return True
        for ending, value in (("true", True), ("false", False)):
            if name.endswith(ending) and name[: -len(ending)] in switches:
                switches[name[: -len(ending)]] = value
                return True
        return False

    def _include(self, command: str) -> None:
        style = command in _STYLES
        if style:
            self._input.skip_options()
        wanted = self._input.argument().strip().strip('"')
        if command in ("import", "subimport"):
            wanted = posixpath.join(wanted, self._input.argument().strip())
        for one in wanted.split(",")[:50] if style else [wanted]:
            name = self._files.included(one.strip(), style=style)
            if name is None:
                continue
            text = self._files.text(name)
            self._macros.spend(len(text))
            self._files.opened.append(name)
            before, self._style = self._style, self._style or style

            def closed(before: bool = before) -> None:
                self._files.opened.pop()
                self._style = before

            self._input.push(Frame(text, closed=closed))

    # Parts of a paper ------------------------------------------------------------------------------------------------

    def _collect(self, use: Callable[[str], None]) -> None:
        """Read the next argument separately, and pass its text to `use`."""
        if len(self._sinks) > _MOST_NESTED_SINKS:
            return
        body, self._body = self._body, True
        self._sinks.append(Sink())
        tables, self._tables = self._tables, 0
        depth = len(self._sinks)

        def closed() -> None:
            while len(self._sinks) >= depth:
                self._close_sink(use if len(self._sinks) == depth else self._sinks[-2].add)
            self._body, self._tables = body, tables

        if not self._input.group(closed):
            self._sinks.pop()
            self._body, self._tables = body, tables

    def _close_sink(self, use: Callable[[str], None]) -> None:
        self._end_math()
        sink = self._sinks.pop()
        sink.paragraph()
        use("\n".join(sink.blocks))

    def _heading(self, level: int) -> None:
        self._input.skip_options()
        sink = self._sinks[-1]
        sink.paragraph()
        self._collect(lambda text: sink.block(f"{'#' * level} {' '.join(text.split())}") if text.strip() else None)

    def _read_title(self) -> None:
        self._input.skip_options()

        def use(text: str) -> None:
            self._title = self._title or " ".join(text.split())

        self._collect(use)

    def _footnote(self) -> None:
        self._input.option()
        sink = self._sinks[0]
        self._collect(lambda text: sink.note(" ".join(text.split())) if text.strip() else None)

    def _caption(self) -> None:
        self._input.skip_options()
        sink = self._sinks[-1]
        self._collect(lambda text: sink.block(text) if text.strip() else None)

    def _abstract(self) -> None:
        sink = self._sinks[-1]
        sink.block("## Abstract")
        self._input.group(sink.paragraph)

    def _item(self) -> None:
        label = self._input.option()
        mark, number = self._lists[-1] if self._lists else ("-", 0)
        if self._lists:
            self._lists[-1] = mark, number + 1
        indent = "  " * min(len(self._lists) - 1, 8)
        lead = f"{number + 1}. " if mark == "1" else f"{mark} ".lstrip()
        self._sinks[-1].lead(indent + lead)
        if label:
            self._macros.spend(len(label))
            self._input.push(Frame(label + " "))

    def _ensure_math(self) -> None:
        self._open_math("group")
        if not self._input.group(self._end_math):
            self._end_math()

    def _url(self) -> None:
        self._add(self._input.argument().replace("\\", ""))

    def _end_file(self) -> None:
        self._input.frames[-1].at = self._input.frames[-1].end

    def _end_paper(self) -> None:
        for frame in self._input.frames:
            frame.at = frame.end

    def _begin(self) -> None:
        name = self._input.environment_name()
        if name is None:
            return
        plain = name.rstrip("*")
        sink = self._sinks[-1]
        if plain in MATH_ENVIRONMENTS:
            if plain in ("alignat", "xalignat", "xxalignat"):
                self._input.argument()
            self._open_math(name)
        elif plain in DROPPED_ENVIRONMENTS:
            self._input.frames[-1].skip_to(f"\\end{{{name}}}")
        elif name in LISTS:
            self._input.option()
            self._input.skip_arguments(ENVIRONMENT_ARGUMENTS.get(name, 0))
            self._lists.append((LISTS[name], 0))
            sink.paragraph()
        elif name in TABLES:
            self._input.skip_arguments(TABLES[name])
            sink.paragraph()
            self._tables += 1
        elif name in self._macros.environments:
            sink.paragraph()
            self._macros.begin(name, self._input)
        elif plain in self._macros.theorems or plain in THEOREMS:
            self._theorem(self._macros.theorems.get(plain) or THEOREMS.get(plain, ""))
        elif plain == "abstract":
            sink.block("## Abstract")
        else:
            sink.paragraph()
            self._input.skip_arguments(ENVIRONMENT_ARGUMENTS.get(name, 0))

    def _theorem(self, title: str) -> None:
        note = self._input.option()
        self._sinks[-1].paragraph()
        self._macros.spend(len(title) + len(note or ""))
        self._input.push(Frame(f"{title} ({note}). " if note else f"{title}. "))

    def _end(self) -> None:
        name = self._input.environment_name()
        if name is None:
            return
        if name == "document":
            self._end_paper()
        elif name in LISTS and self._lists:
            self._lists.pop()
        elif name in TABLES and self._tables:
            self._tables -= 1
        elif name in self._macros.environments:
            self._macros.end(name, self._input)
            return
        if not self._tables:
            self._sinks[-1].paragraph()


def _skipped(pattern: re.Pattern[str], converter: _Converter) -> None:
    converter._input.frames[-1].skip(pattern)


_HANDLERS: Mapping[str, Callable[[_Converter], None]] = {
    "begin": _Converter._begin,
    "end": _Converter._end,
    "item": _Converter._item,
    "title": _Converter._read_title,
    "footnote": _Converter._footnote,
    "footnotetext": _Converter._footnote,
    "caption": _Converter._caption,
    "abstract": _Converter._abstract,
    "ensuremath": _Converter._ensure_math,
    "url": _Converter._url,
    "path": _Converter._url,
    "par": _Converter._paragraph,
    "endinput": _Converter._end_file,
    "bye": _Converter._end_paper,
    **dict.fromkeys(("hskip", "vskip", "kern", "parindent", "parskip", "baselineskip"), partial(_skipped, _GLUE)),
    **dict.fromkeys(("hrule", "vrule"), partial(_skipped, _RULE)),
    **dict.fromkeys(("catcode", "mathcode", "lccode", "uccode"), partial(_skipped, _CODE)),
    **dict.fromkeys(("newline", "tabularnewline"), lambda converter: converter._symbol("\\")),
}
