"""Comments of Python as the standard library's tokenizer finds them, and visible text as its HTML parser does."""

from __future__ import annotations

import io
import sys
import tokenize
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gristmill
from gristmill.stages.text.filters.heuristic import python_source, visible_text

PIECES = [
    '"', "'", "\\", "\n", "\r\n", "\r", "#", "a", 'b"', "rb'", '"""', "'''", " ", "\t", "\f", "(", ")", "[", "]", "{",
    "}", "x=1\n", "  y\n", "\\\n", "\\\r\n", "1", "$", "é", "\x0b", ":", 'f"{', "\0", "if x:\n", "    z\n",
]  # fmt: skip
TAGS = [
    "<a ", "<", ">", "/", '"', "'", "=", "<!--", "-->", "<!", "<![", "<![CDATA[", "]]>", "]>", "<?", "&amp;", "&a",
    "&#1;", "a", "b", " ", "\n", "</a>", "</", "<script>", "</script>", "<p>", "<br>", '<div class="x">', "if",
    "endif", "-", "!",
    "<pre>", "</pre>", "<style>", "</style", "<template>",
]  # fmt: skip


def tokenized(source: str) -> list[str] | None:
    try:
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        return [token.string for token in tokens if token.type == tokenize.COMMENT]
    except (tokenize.TokenError, SyntaxError, ValueError):
        return None


def found(source: str) -> list[str] | None:
    try:
        return python_source.python_comments(source)
    except python_source.UnreadableSourceError:
        return None


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="later tokenizers refuse what is no program")
@settings(max_examples=2000, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_comments_are_those_of_the_tokenizer(source: str) -> None:
    assert found(source) == tokenized(source)


def test_comments_of_real_programs() -> None:
    files = sorted(Path(gristmill.__file__).parent.rglob("*.py"))
    assert len(files) > 200
    for file in files[::3]:
        source = file.read_text(encoding="utf-8")
        assert found(source) == tokenized(source), file


class _Unguarded(visible_text._TextMeter):
    """The meter on the standard library's parser as it is."""

    parse_starttag = HTMLParser.parse_starttag
    parse_endtag = HTMLParser.parse_endtag
    parse_pi = HTMLParser.parse_pi
    parse_comment = HTMLParser.parse_comment  # type: ignore[assignment]
    parse_html_declaration = HTMLParser.parse_html_declaration
    parse_marked_section = HTMLParser.parse_marked_section  # type: ignore[assignment]


@settings(max_examples=2000, deadline=None)
@given(st.lists(st.sampled_from(TAGS), max_size=40).map("".join))
def test_visible_text_is_that_of_the_parser(source: str) -> None:
    meter = _Unguarded()
    try:
        meter.feed(source)
        meter.close()
        expected = meter.length
    except AssertionError:
        expected = 0
    assert visible_text.visible_text_length(source) == expected
