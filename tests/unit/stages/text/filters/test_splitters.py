"""Words of languages that do not put spaces between them, by the libraries made for it."""

from __future__ import annotations

import sys

import pytest

from gristmill.errors import MissingExtraError
from gristmill.stages.text.filters import (
    LongWordFilter,
    MeanWordLengthFilter,
    RepeatingDuplicateNGramsFilter,
    WordCountFilter,
)
from gristmill.stages.text.filters.statistics import load_splitter

CHINESE = "我来到北京清华大学。我来到北京。"
JAPANESE = "漢字かな交じり文を書く。\n東京に行く。"


def test_chinese_words() -> None:
    words = load_splitter("jieba")(f"  {CHINESE}\n")
    assert words[:4] == ["我", "来到", "北京", "清华大学"]
    assert "".join(words) == CHINESE


def test_japanese_words() -> None:
    words = load_splitter("mecab")(JAPANESE)
    assert words[:2] == ["漢字", "かな"]
    assert "".join(words) == JAPANESE.replace("\n", "")
    assert load_splitter("mecab")(" ") == []


@pytest.mark.parametrize(("lang", "name", "text"), [("zh", "jieba", CHINESE), ("ja", "mecab", JAPANESE)])
def test_filters_count_these_words(lang: str, name: str, text: str) -> None:
    words = load_splitter(name)(text)
    assert WordCountFilter(lang=lang).score_document(text) == len(words)
    assert LongWordFilter(lang=lang).score_document(text) == max(map(len, words))
    assert MeanWordLengthFilter(lang=lang).score_document(text) == pytest.approx(sum(map(len, words)) / len(words))
    assert 0 < RepeatingDuplicateNGramsFilter(n=1, lang=lang).score_document(text) < 1
    # Split at spaces there is one word, or one a line.
    assert WordCountFilter().score_document(text) == len(text.split()) < len(words)


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gristmill\[cjk\]'"):
        load_splitter.__wrapped__("jieba")
