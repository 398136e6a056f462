"""Bytes of pages become text: by mark, declaration, meta element or looks."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.stages.text.extraction.charset import decode_page
from tests.unit.stages.text.extraction.pages import pages

RUSSIAN = "<html><body><p>Все люди рождаются свободными и равными в своём достоинстве и правах.</p>" * 3
JAPANESE = "<html><body><p>すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。</p>" * 3


@pytest.mark.parametrize(
    ("text", "encoding", "declared"),
    [
        (RUSSIAN, "utf-8", None),
        (RUSSIAN, "utf-8", "text/html; charset=windows-1251"),
        (RUSSIAN, "cp1251", "text/html; charset=windows-1251"),
        (RUSSIAN, "cp1251", "windows-1251"),
        (RUSSIAN, "cp1251", "text/html; charset=utf-8"),
        (RUSSIAN, "cp1251", None),
        (RUSSIAN, "koi8_r", None),
        (RUSSIAN, "cp1251", "text/html; charset=punycode"),
        (JAPANESE, "shift_jis", "text/html; charset=Shift_JIS"),
        (JAPANESE, "euc_jp", None),
        (JAPANESE, "iso2022_jp", "text/html; charset=iso-2022-jp"),
        (JAPANESE, "utf-8", "text/html; charset=iso-2022-jp"),
        ("<p>plain</p>", "ascii", "text/html; charset=utf-16"),
    ],
)
def test_the_right_text_whatever_is_declared(text: str, encoding: str, declared: str | None) -> None:
    assert decode_page(text.encode(encoding), declared) == text


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [(codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")],
)
def test_a_byte_order_mark_prevails(mark: bytes, encoding: str) -> None:
    assert decode_page(mark + RUSSIAN.encode(encoding), "text/html; charset=iso-8859-1") == RUSSIAN


def test_the_meta_element_counts_where_the_header_is_silent() -> None:
    text = (
        '<html><head><meta http-equiv="Content-Type" content="text/html; charset=iso-8859-2"></head>Zażółć gęślą jaźń'
    )
    assert decode_page(text.encode("iso8859-2")).endswith("Zażółć gęślą jaźń")


def test_few_broken_characters_do_not_change_the_encoding() -> None:
    content = RUSSIAN.encode() * 20 + b"\xff" + b"<p>" + "конец".encode()[:-1]
    assert decode_page(content, "utf-8").startswith(RUSSIAN)


@given(st.binary(max_size=300), st.one_of(st.none(), st.text(max_size=40)))
def test_any_bytes_become_text(content: bytes, declared: str | None) -> None:
    decode_page(content, declared).encode("utf-8")


def test_real_pages_decode_without_broken_characters(larger_data: Path) -> None:
    found = pages(larger_data, "trafilatura_eval", 80)
    broken = [page.url for page in found if decode_page(page.html).count("\ufffd") > 5]
    assert len(broken) <= 1, broken
