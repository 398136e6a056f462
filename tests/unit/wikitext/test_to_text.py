"""Wikitext becomes the text that a reader of the page sees."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.wikitext import page_kind, to_text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("'''Aa''' is the ''name'' of [[river]]s in [[Europe|the west]].", "Aa is the name of rivers in the west."),
        ("''Foo'''s value", "Foo's value"),
        ("'''Apple'''s fall", "Apples fall"),
        ("{{Infobox\n| a = {{x|y}}\n| b = [[c|d]]\n}}Text", "Text"),
        ("{{convert|10|km|mi|abbr=on}} or {{cvt|10|-|20|ft|m}}", "10 km or 10–20 ft"),
        ("{{lang|fr|[[Mot|mot]] {{nowrap|a b}}}} x", "mot a b x"),
        ("{{nowrap|1=''Q'' = ''It''}}", "Q = It"),
        ("roughly {{val|6.241|e=18}} times", "roughly 6.241×10^18 times"),
        ("{{quote|To be|Hamlet|Shakespeare}}", "To be — Hamlet, Shakespeare"),
        ("a<ref>{{cite|x}}</ref><ref name=\"q\"/>b<!-- c -->d", "abd"),
        ("[http://a.org label], [http://a.org], http://b.org", "label,, http://b.org"),
        ("[[File:a.jpg|thumb|of a [[b]]]]x [[Category:C]][[de:D]]", "x"),
        ("[[:Category:C]] and [[wikt:foo|foo]]", "Category:C and foo"),
        ("[[Datei:a.jpg|mini|b]]x[[Категория:К]]", "x"),
        ("<nowiki>[[a]] ''b''</nowiki> &lt;b&gt;&nbsp;c", "[[a]] ''b'' <b> c"),
        ("<math>x^2 {{a}}</math> is", "$x^2 {{a}}$ is"),
        ("<syntaxhighlight lang='c'>\nif (a  < b) [[x]];\n</syntaxhighlight>", "if (a  < b) [[x]];"),
        ("10<sup>6</sup> of H<sub>2</sub>O, a < b > c", "10^6 of H2O, a < b > c"),
        ("== A ==\n\n== B ==\ntext\n=== C ===\n== References ==\n{{reflist}}", "B\n\ntext"),
        ("* a\n** b\n: c\n# d\n# e\n\n# f", "- a\n- b\nc\n1. d\n2. e\n\n1. f"),
        ("x ({{unknown}}) y ({{unknown}}; z) .", "x y (z)."),
        ("a<br />b", "a\nb"),
        ("__NOTOC__{{PAGENAME}} {{DEFAULTSORT:x}}", "T"),
        ("-{zh-hans:计算机; zh-hant:電腦}-", "计算机"),
        ("not closed {{foo [[bar", "not closed foo bar"),
        ("<!-- never closed", ""),
        ("a\x01b\x00", "ab"),
    ],
)  # fmt: skip
def test_markup(wikitext: str, text: str) -> None:
    assert to_text(wikitext, title="T") == text


TABLE = """before
{| class="wikitable"
|+ Capitals
! Country !! Capital
|-
| style="x" | [[Angola]] || {{flagicon|AO}} Luanda
|-
| Chad
| N'Djamena,
in the south
{|
| inner || row
|}
|}
after"""


def test_tables_are_rows_or_left_out() -> None:
    rows = ["Capitals", "Country | Capital", "Angola | Luanda", "inner | row", "Chad | N'Djamena, in the south"]
    assert to_text(TABLE).split("\n") == ["before", *rows, "after"]
    assert to_text(TABLE, tables="drop").split("\n") == ["before", "after"]


@pytest.mark.parametrize(
    ("title", "wikitext", "kind"),
    [
        ("Mercury", "'''Mercury''' may refer to:\n{{disambiguation}}", "disambiguation"),
        ("Aa", "text {{geodis}}", "disambiguation"),
        ("Aa (disambiguation)", "text", "disambiguation"),
        ("A", "{{disambiguation needed}} #redirect", "article"),
        ("Old", "#REDIRECT [[New]]", "redirect"),
        ("Alt", "#WEITERLEITUNG [[Neu]]", "redirect"),
        ("List of rivers", "* [[Aa]]", "list"),
        ("Listening", "text", "article"),
    ],
)
def test_kinds_of_pages(title: str, wikitext: str, kind: str) -> None:
    assert page_kind(title, wikitext) == kind


HOSTILE = [
    "{{", "[[", "}}", "{{a|", "[[a|", "{{lang|", "<math>", "<ref name=a", "<ref>", "<!--", "[http://a ", "'''a",
    "{|\n|a\n", "=", "(,", "( ", "-{", "&", "\n", " ", "== ", "_", "[[{{", " ,", "* ", "''", "|-\n", "!!", "{{{",
    "<", "&#", "<nowiki>{{", "\t ", " \n",
]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_nesting_takes_linear_time(piece: str) -> None:
    closing = {"{": "}}", "[": "]]", "<": "</math></ref>-->"}.get(piece[0], "")
    for page in (piece * 30_000, piece * 15_000 + "x" + closing * 15_000):
        started = time.process_time()
        to_text(page)
        # A quadratic pass over such a page takes many seconds.
        assert time.process_time() - started < 2


@given(st.lists(st.sampled_from([*HOSTILE, "}}", "]]", "|", "x", "\n", "|}", "</ref>", "-->", "}-", ")"])))
def test_any_mixture_becomes_text(pieces: list[str]) -> None:
    text = to_text("Before.\n" + "".join(pieces) + "\n\nx")
    assert text.startswith("Before.")
    assert not set(text) & set("\x01\x02\x03\x04")
