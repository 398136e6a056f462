"""Rules over source code (StarCoder, Li et al. 2023, arXiv:2305.06161), its comments and the visible text of pages."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from html.entities import html5
from html.parser import HTMLParser

import numpy as np

from gristmill.errors import UsageError, did_you_mean
from gristmill.kernels.text_column import text_column
from gristmill.kernels.text_search import contains
from gristmill.stages.text.filters import statistics as s
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.filters.statistics import Scores, TextStatistics


class _CommentShareFilter(ColumnFilter):
    """Drops programs with too few or too many comments."""

    lower_reason = "too_few_comments"
    upper_reason = "too_many_comments"


class PythonCommentToCodeFilter(_CommentShareFilter):
    r"""Drops Python programs of which too little or too much is comments and docstrings.

    What does not parse scores 0, as an empty program does.

    Example:
        >>> PythonCommentToCodeFilter().score_document("#a\nx=1")
        0.3333333333333333
    """

    score_kind = "share"
    lower_parameter = "min_comment_to_code_ratio"
    upper_parameter = "max_comment_to_code_ratio"

    def __init__(self, min_comment_to_code_ratio: float = 0.01, max_comment_to_code_ratio: float = 0.85) -> None:
        super().__init__(lower=min_comment_to_code_ratio, upper=max_comment_to_code_ratio)

    def score_column(self, statistics: TextStatistics) -> Scores:
        return statistics.score_texts(_python_comment_share)


def _python_comment_share(source: str) -> float:
    try:
        docstrings = python_docstrings(source)
        comments = python_comments(source)
    except UnreadableSourceError:
        return 0.0
    if not source:
        return 0.0
    # Docstrings are taken as joined by newlines, comments as joined by nothing.
    return (sum(map(len, docstrings)) + max(len(docstrings) - 1, 0) + sum(map(len, comments))) / len(source)


class GeneralCommentToCodeFilter(_CommentShareFilter):
    r"""Drops programs of which too little or too much is comments, without the signs that begin and end those.

    A comment without an end scores 9999, an empty program 0.

    Args:
        language: The MIME type of the language, such as `text/x-java`.
        min_comment_to_code_ratio: The least share of comments.
        max_comment_to_code_ratio: The greatest share of comments.

    Example:
        >>> GeneralCommentToCodeFilter("text/x-c").score_document("//ab\n")
        0.4
    """

    unreadable = 9999.0
    lower_parameter = "min_comment_to_code_ratio"
    upper_parameter = "max_comment_to_code_ratio"

    def __init__(
        self,
        language: str,
        min_comment_to_code_ratio: float = 0.01,
        max_comment_to_code_ratio: float = 0.85,
    ) -> None:
        super().__init__(lower=min_comment_to_code_ratio, upper=max_comment_to_code_ratio)
        if language not in COMMENTS:
            raise UsageError(
                f"Comments of {language!r} are not known; there are {', '.join(sorted(COMMENTS))}."
                f"{did_you_mean(language, COMMENTS)}",
                language=language,
            )
        self._language = language

    def score_column(self, statistics: TextStatistics) -> Scores:
        return statistics.score_texts(self._share)

    def _share(self, source: str) -> float:
        try:
            comments = COMMENTS[self._language](source)
        except UnreadableSourceError:
            return self.unreadable
        # Taken as joined by spaces.
        return (sum(map(len, comments)) + max(len(comments) - 1, 0)) / len(source) if source else 0.0


class NumberOfLinesOfCodeFilter(ColumnFilter):
    r"""Drops programs with too few or too many lines.

    Example:
        >>> NumberOfLinesOfCodeFilter().score_document("a\nb")
        2
    """

    statistic = s.NEWLINES
    score_kind = "count"
    lower_reason = "too_few_lines"
    upper_reason = "too_many_lines"
    lower_parameter = "min_lines"
    upper_parameter = "max_lines"

    def __init__(self, min_lines: int = 10, max_lines: int = 20000) -> None:
        super().__init__(lower=min_lines, upper=max_lines)

    def score_column(self, statistics: TextStatistics) -> Scores:
        return statistics.scores(s.NEWLINES) + 1.0


class XMLHeaderFilter(ColumnFilter):
    """Drops XML files under another extension: those with an XML declaration among their first characters.

    Example:
        >>> XMLHeaderFilter().score_document('<?xml version="1.0"?>')
        1
    """

    score_kind = "count"
    upper_reason = "xml_header"

    def __init__(self, char_prefix_search_length: int = 100) -> None:
        super().__init__(upper=0)
        self._first_chars = char_prefix_search_length

    def warm_up(self) -> None:
        contains(text_column([""]), np.ones(1, np.bool_), "<", first_chars=1)

    def score_column(self, statistics: TextStatistics) -> Scores:
        found = contains(statistics.column, statistics.alive, "<?xml version=", first_chars=self._first_chars)
        return found.astype("float64")


class AlphaFilter(ColumnFilter):
    """Drops files with too few alphabetic characters, as tables of numbers have; an empty one scores 0.

    Example:
        >>> AlphaFilter().score_document("ab12")
        0.5
    """

    statistic, denominator = s.ALPHABETIC_CHARS, s.N_CHARS
    score_kind = "share"
    empty_score = 0.0
    lower_reason = "too_few_letters"
    lower_parameter = "min_alpha_ratio"

    def __init__(self, min_alpha_ratio: float = 0.25) -> None:
        super().__init__(lower=min_alpha_ratio)


class HTMLBoilerplateFilter(ColumnFilter):
    """Drops HTML pages with too little visible text; a page with less than the given number of characters scores 0.

    Args:
        min_lang_content_ratio: The least share of visible text.
        min_lang_content_num_chars: The least visible text, in characters, for the share to count at all.

    Example:
        >>> HTMLBoilerplateFilter(min_lang_content_num_chars=1).score_document("<b>four</b>")
        0.36363636363636365
    """

    score_kind = "share"
    lower_reason = "too_little_content"
    lower_parameter = "min_lang_content_ratio"

    def __init__(self, min_lang_content_ratio: float = 0.2, min_lang_content_num_chars: int = 100) -> None:
        super().__init__(lower=min_lang_content_ratio)
        self._least_chars = min_lang_content_num_chars

    def score_column(self, statistics: TextStatistics) -> Scores:
        return statistics.score_texts(self._share)

    def _share(self, source: str) -> float:
        length = visible_text_length(source)
        return length / len(source) if source and length >= self._least_chars else 0.0


class UnreadableSourceError(ValueError):
    """The source is not a program of its language: a comment without an end, or a syntax error."""


_C_FAMILY = re.compile(r'"[^"\n]*"|//(?P<text>.*)|/\*(?P<block>[\s\S]*?)\*/|(?P<open>/\*)')
_MARKUP = re.compile(r'"[^"\n]*"|<!--(?P<text>[\s\S]*?)-->|(?P<open><!--)')
_RUBY = re.compile(r"""(?P<quote>["'])(?:\\(?P=quote)|(?!(?P=quote)).)*(?P=quote)|\#(?P<text>.*)""")
_SHELL = re.compile(r"""(?P<quote>["'])(?:(?!(?P=quote))[^\\]|\\[\s\S])*(?:(?P=quote)|\\?\Z)|\\[\s\S]|\#(?P<text>.*)""")
# A slash takes the character after it along, whatever it is, unless both begin a comment.
_SLASHES = r"""|//(?P<text>.*)|/\*(?P<block>[\s\S]*?)\*/|(?P<open>/\*)|/[\s\S]"""
_SCRIPT = re.compile(r"""(?P<quote>["'])(?:(?!(?P=quote))[^\\]|\\[\s\S])*(?:(?P=quote)|\\?\Z)""" + _SLASHES)
_GO = re.compile(r"""(?P<quote>["'`])(?:(?!(?P=quote))[^\\]|\\[\s\S])*(?:(?P=quote)|\\?\Z)""" + _SLASHES)


def _matched(pattern: re.Pattern[str]) -> Callable[[str], list[str]]:
    """Comments as what a pattern's groups match, with strings and escapes skipped."""

    def comments(source: str) -> list[str]:
        found: list[str] = []
        for match in pattern.finditer(source):
            groups = match.groupdict()
            if groups.get("open") is not None:
                raise UnreadableSourceError("a comment does not end")
            for name in ("text", "block"):
                text = groups.get(name)
                if text is not None:
                    found.append(text)
        return found

    return comments


_PLAIN_CODE = re.compile(r"""[^#"'\\()\[\]{}\n]+""")
_STRINGS = {
    quote: re.compile(rf"""{quote}[^\n{quote}\\]*(?:\\.[^\n{quote}\\]*)*({quote}|\\\r?\n)""") for quote in "\"'"
}
_STRING_ENDS = {quote: re.compile(rf"""[^{quote}\\]*(?:\\.[^{quote}\\]*)*{quote}""") for quote in "\"'"}
_LONG_STRING_ENDS = {
    quote: re.compile(rf"""[^{quote}\\]*(?:(?:\\[\s\S]|{quote}(?!{quote}{quote}))[^{quote}\\]*)*{quote}{{3}}""")
    for quote in "\"'"
}


def python_comments(source: str) -> list[str]:
    """The comments of a Python program, with their sign: those that `tokenize` of Python 3.11 finds.

    That program takes a quote without its end for a sign of its own and goes on behind it, which costs it the square
    of a line's length. This one looks at every character a fixed number of times.

    Raises:
        UnreadableSourceError: A string or a bracket does not end, or a line is indented like none before it.
    """
    return _PythonComments(source).find()


class _PythonComments:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._found: list[str] = []
        self._indents = [0]
        self._depth = 0
        self._continued = False
        self._must_continue = False
        self._closings: dict[str, tuple[int, int, list[bool]]] = {}

    def find(self) -> list[str]:
        while self._at < len(self._source):
            end = self._line_end()
            if self._depth == 0 and not self._continued and not self._begins_statement(end):
                self._at = end
                continue
            self._continued = False
            while self._at < end:
                # A string of several lines moves the end of the line that is read.
                end = self._step(end)
        if self._depth or self._continued:
            raise UnreadableSourceError("the program ends within a statement")
        return self._found

    def _begins_statement(self, end: int) -> bool:
        """Whether the line holds code; its indentation is compared with that of the lines before."""
        column = 0
        while self._at < end and self._source[self._at] in " \t\f":
            character = self._source[self._at]
            column = column + 1 if character == " " else (column // 8 + 1) * 8 if character == "\t" else 0
            self._at += 1
        if self._at == end or self._source[self._at] in "\r\n":
            return False
        if self._source[self._at] == "#":
            self._found.append(self._source[self._at : end].rstrip("\r\n"))
            return False
        if column > self._indents[-1]:
            self._indents.append(column)
        while column < self._indents[-1]:
            self._indents.pop()
            if column > self._indents[-1]:
                raise UnreadableSourceError("a line is indented like none before it")
        return True

    def _line_end(self) -> int:
        return self._source.find("\n", self._at) + 1 or len(self._source)

    def _step(self, end: int) -> int:
        """Read one piece of a line; where the line ends that is read now."""
        plain = _PLAIN_CODE.match(self._source, self._at, end)
        if plain is not None:
            self._at = plain.end()
            return end
        sign = self._source[self._at]
        if sign in "\"'":
            return self._string(sign, end)
        if sign == "#":
            comment = self._source[self._at : end].split("\n", 1)[0].split("\r", 1)[0]
            self._found.append(comment)
            self._at += len(comment)
        elif sign == "\\" and self._source.startswith(("\n", "\r\n"), self._at + 1):
            self._continued = True
            self._at = end
        else:
            self._depth += (sign in "([{") - (sign in ")]}")
            self._at += 1
        return end

    def _string(self, quote: str, end: int) -> int:
        source = self._source
        if source.startswith(quote * 3, self._at):
            self._at += 3
            closing = _LONG_STRING_ENDS[quote].match(source, self._at, end)
            if closing is None:
                self._at = end
                return self._later_lines(_LONG_STRING_ENDS[quote])
            self._at = closing.end()
            return end
        line_end, begin, closings = self._closings.get(quote, (-1, 0, []))
        found = None
        if line_end != end or closings[self._at + 1 - begin]:
            found = _STRINGS[quote].match(source, self._at, end)
        if found is None:
            if line_end != end:
                # No later quote of this line needs to be tried to the line's end.
                self._closings[quote] = (end, self._at, _closings(source[self._at : end], quote))
            self._at += 1
            return end
        self._at = found.end()
        if source[self._at - 1] != "\n":
            return end
        self._must_continue = True
        return self._later_lines(_STRING_ENDS[quote])

    def _later_lines(self, closing: re.Pattern[str]) -> int:
        """Read on to the end of a string of several lines, or to the line that breaks it off."""
        source = self._source
        while self._at < len(source):
            end = self._line_end()
            found = closing.match(source, self._at, end)
            if found is not None:
                self._at = found.end()
                self._must_continue = False
                return end
            self._at = end
            # Once a string is broken off, the next long one is held to the same rule: a slip that others copy.
            if self._must_continue and not source[end - 3 : end].endswith(("\\\n", "\\\r\n")):
                return end
        raise UnreadableSourceError("a string does not end")


def _closings(line: str, quote: str) -> list[bool]:
    """For every place of a line, whether a string that goes on there ends in this line or with a sign to go on."""
    ends = [False] * (len(line) + 2)
    for at in range(len(line) - 1, -1, -1):
        if line[at] == quote:
            ends[at] = True
        elif line[at] == "\\":
            ends[at] = ends[at + 2] or line.startswith(("\n", "\r\n"), at + 1)
        elif line[at] != "\n":
            ends[at] = ends[at + 1]
    return ends


def _python_comment_texts(source: str) -> list[str]:
    return [comment[1:] for comment in python_comments(source)]


def python_docstrings(source: str) -> list[str]:
    """The documentation strings of a program, its classes and its functions (not of coroutines), without indentation.

    Raises:
        UnreadableSourceError: The source does not parse.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        return [
            text for node in _statements(tree) if isinstance(node, documented) and (text := ast.get_docstring(node))
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableSourceError(str(error)) from error


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """The program and all its statements, without the expressions in them, which hold no documentation."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, None)
            if isinstance(inner, list):
                pending.extend(inner)


COMMENTS: dict[str, Callable[[str], list[str]]] = {
    "application/javascript": _matched(_SCRIPT),
    "text/html": _matched(_MARKUP),
    "text/x-c": _matched(_C_FAMILY),
    "text/x-c++": _matched(_C_FAMILY),
    "text/x-go": _matched(_GO),
    "text/x-java": _matched(_C_FAMILY),
    "text/x-java-source": _matched(_C_FAMILY),
    "text/x-javascript": _matched(_SCRIPT),
    "text/x-python": _python_comment_texts,
    "text/x-ruby": _matched(_RUBY),
    "text/x-script.python": _python_comment_texts,
    "text/x-shellscript": _matched(_SHELL),
    "text/xml": _matched(_MARKUP),
}


_VOID = frozenset(
    (
        "area", "base", "basefont", "bgsound", "br", "col", "command", "embed", "frame", "hr", "image", "img", "input",
        "isindex", "keygen", "link", "menuitem", "meta", "nextid", "param", "source", "spacer", "track", "wbr",
    )
)  # fmt: skip
_AS_IS = frozenset(("pre", "textarea"))
_HIDDEN = frozenset(("script", "style", "template", "rt", "rp"))
_SPACES = " \n\t\x0c\r"
_SECTION_KIND = re.compile("[a-zA-Z]*")


_MOST_UNFINISHED = 16


class _TextMeter(HTMLParser):
    """Counts the characters of visible text; white space alone between two tags counts as one character.

    The parser looks for the end of every tag and comment that it meets. Where there is none, it is not looked for
    again: a page of tags that never end would cost the square of its length.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.length = 0
        self._pieces: list[str] = []
        self._open: list[str] = []
        self._open_counts: Counter[str] = Counter()
        self._unfinished: Counter[str] = Counter()
        self._hidden = 0
        self._as_is = 0
        self._closed_void: dict[str, int] = {}

    def _flush(self) -> None:
        if not self._pieces:
            return
        text = "".join(self._pieces)
        self._pieces.clear()
        if self._hidden:
            return
        self.length += len(text) if self._as_is or text.strip(_SPACES) else min(len(text), 1)

    def _push(self, tag: str) -> None:
        self._open.append(tag)
        self._open_counts[tag] += 1
        self._hidden += tag in _HIDDEN
        self._as_is += tag in _AS_IS

    def _pop_to(self, tag: str) -> None:
        if not self._open_counts[tag]:
            return
        while True:
            last = self._open.pop()
            self._open_counts[last] -= 1
            self._hidden -= last in _HIDDEN
            self._as_is -= last in _AS_IS
            if last == tag:
                return

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._flush()
        if tag in _VOID:
            self._closed_void[tag] = self._closed_void.get(tag, 0) + 1
        else:
            self._push(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._flush()

    def handle_endtag(self, tag: str) -> None:
        if self._closed_void.get(tag):
            self._closed_void[tag] -= 1
            return
        self._flush()
        self._pop_to(tag)

    def handle_data(self, data: str) -> None:
        self._pieces.append(data)

    def handle_charref(self, name: str) -> None:
        digits = name[1:] if name[:1] in "xX" else name
        alphabet = "0123456789abcdefABCDEF" if name[:1] in "xX" else "0123456789"
        rest = digits.lstrip(alphabet)
        if len(rest) < len(digits):
            # Which character it is makes no difference to the length.
            self._pieces.append("x")
        self._pieces.append(rest)

    def handle_entityref(self, name: str) -> None:
        self._pieces.append(html5.get(f"{name};", f"&{name}"))

    def handle_comment(self, data: str) -> None:
        self._flush()

    def handle_decl(self, decl: str) -> None:
        self._flush()

    def handle_pi(self, data: str) -> None:
        self._flush()

    def unknown_decl(self, data: str) -> None:
        self._flush()
        if data.upper().startswith("CDATA["):
            self._pieces.append(data[len("CDATA[") :])
            self._flush()

    def close(self) -> None:
        # What had no end in what was fed so far is now looked at for the last time.
        self._unfinished.clear()
        super().close()
        self._flush()

    def parse_starttag(self, i: int) -> int:
        if self._unfinished["tag"] >= _MOST_UNFINISHED and self._unfinished[">"]:
            # So many tags in a row that the rest of the page does not end: all of it is text.
            self.handle_data(self.rawdata[i:])
            return len(self.rawdata)
        end = super().parse_starttag(i)
        if end < 0:
            self._unfinished["tag"] += 1
            self._unfinished[">"] += self.rawdata.find(">", i) < 0
        return end

    def parse_endtag(self, i: int) -> int:
        return self._ended(">", super().parse_endtag, i)

    def parse_pi(self, i: int) -> int:
        return self._ended(">", super().parse_pi, i)

    def parse_comment(self, i: int, report: bool = True) -> int:
        return self._ended("-->", super().parse_comment, i)

    def parse_html_declaration(self, i: int) -> int:
        if self.rawdata.startswith(("<!--", "<!["), i):
            return super().parse_html_declaration(i)
        return self._ended(">", super().parse_html_declaration, i)

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        kind = _SECTION_KIND.match(self.rawdata, i + 3)
        return self._ended(f"section {kind and kind[0].lower()}", super().parse_marked_section, i)

    def _ended(self, mark: str, parse: Callable[[int], int], i: int) -> int:
        """Where something ends; it does not when the mark was looked for in vain before, further to the front."""
        if self._unfinished[mark]:
            return -1
        end = parse(i)
        self._unfinished[mark] += end < 0
        return end


def visible_text_length(source: str) -> int:
    """Characters of the page outside tags, comments, scripts, styles and templates; 0 where it cannot be read."""
    meter = _TextMeter()
    try:
        meter.feed(source)
        meter.close()
    except AssertionError:
        # What the standard library raises for declarations it cannot make sense of.
        return 0
    return meter.length
