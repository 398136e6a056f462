"""Every heuristic filter: its score, its decision, its reason, and an answer for every kind of text."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from gristmill.errors import UsageError
from gristmill.kernels.text_column import text_column
from gristmill.stages.text.filters import FilterCascade, heuristic
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.filters.statistics import TextStatistics
from tests.unit.kernels import text_reference as plain


def every_filter() -> list[ColumnFilter]:
    """One of each class."""
    arguments: dict[str, dict[str, str]] = {
        "SubstringFilter": {"substring": "the", "position": "any"},
        "GeneralCommentToCodeFilter": {"language": "text/x-c"},
    }
    return [getattr(heuristic, name)(**arguments.get(name, {})) for name in sorted(heuristic.__all__)]


def english_cascade() -> list[ColumnFilter]:
    """The English cascade, with its published thresholds."""
    top = ((2, 0.2), (3, 0.18), (4, 0.16))
    duplicate = ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.1))
    names = (
        "NonAlphaNumeric SymbolsToWords Numbers Urls WhiteSpace Parentheses BoilerPlateString RepeatedLines "
        "RepeatedParagraphs RepeatedLinesByChar RepeatedParagraphsByChar WordCount Punctuation WordsWithoutAlphabets "
        "CommonEnglishWords MeanWordLength LongWord Ellipsis"
    )
    return [
        *(getattr(heuristic, f"{name}Filter")() for name in names.split()),
        *(heuristic.RepeatingTopNGramsFilter(n, ratio) for n, ratio in top),
        *(heuristic.RepeatingDuplicateNGramsFilter(n, ratio) for n, ratio in duplicate),
        heuristic.BulletsFilter(),
    ]


EDGES = [
    None,
    "",
    " ",
    "\n",
    "\n\n",
    "a",
    "🙂",
    "\u0301",
    "中",
    "a" * 5000,
    "a\n" * 5000,
    " " * 5000,
    "#" * 50,
    "'\"" * 9,
]


@pytest.mark.parametrize("one", every_filter(), ids=lambda one: type(one).__name__)
def test_every_filter_decides_on_every_text_and_says_why(one: ColumnFilter) -> None:
    for text in EDGES:
        score = one.score_document(text)
        assert math.isfinite(score)
        if not one.keep_document(score):
            assert one.reason(score) in one.reasons()
            assert one.threshold(score) in (one.lower, one.upper)


@pytest.mark.parametrize("one", every_filter(), ids=lambda one: type(one).__name__)
def test_a_missing_text_is_an_empty_one(one: ColumnFilter) -> None:
    assert one.score_document(None) == one.score_document("")


@pytest.mark.parametrize("one", every_filter(), ids=lambda one: type(one).__name__)
def test_a_column_gives_the_scores_of_its_texts(one: ColumnFilter) -> None:
    texts = [*EDGES, "The quick brown fox (of 7) and http://porn.example // c\n• read more...\n\nprivacy policy"]
    statistics = TextStatistics(text_column(texts), one.needs())
    statistics.require(one.needs(), statistics.alive)
    assert one.score_column(statistics).tolist() == [one.score_document(text) for text in texts]


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("NonAlphaNumericFilter", 1.0),
        ("SymbolsToWordsFilter", 1.0),
        ("NumbersFilter", 1.0),
        ("UrlsFilter", 1.0),
        ("WhiteSpaceFilter", 1.0),
        ("ParenthesesFilter", 1.0),
        ("BoilerPlateStringFilter", 0.0),
        ("RepeatedLinesFilter", 0.0),
        ("RepeatedParagraphsFilter", 1.0),
        ("RepeatedLinesByCharFilter", 0.0),
        ("RepeatedParagraphsByCharFilter", 0.0),
        ("WordCountFilter", 0.0),
        ("PunctuationFilter", 1.0),
        ("WordsWithoutAlphabetsFilter", 0.0),
        ("CommonEnglishWordsFilter", 0.0),
        ("MeanWordLengthFilter", 0.0),
        ("LongWordFilter", 0.0),
        ("EllipsisFilter", 1.0),
        ("RepeatingTopNGramsFilter", 1.0),
        ("RepeatingDuplicateNGramsFilter", 1.0),
        ("BulletsFilter", 1.0),
        ("AlphaFilter", 0.0),
        ("PythonCommentToCodeFilter", 0.0),
        ("HTMLBoilerplateFilter", 0.0),
    ],
)
def test_the_score_of_an_empty_text(name: str, score: float) -> None:
    assert getattr(heuristic, name)().score_document("") == score


@pytest.mark.parametrize(
    ("one", "text", "reason"),
    [
        (heuristic.WordCountFilter(min_words=2), "one", "too_few_words"),
        (heuristic.WordCountFilter(max_words=1, min_words=0), "one two", "too_many_words"),
        (heuristic.MeanWordLengthFilter(), "a b c", "words_too_short"),
        (heuristic.MeanWordLengthFilter(), "abcdefghijklmnop", "words_too_long"),
        (heuristic.RepeatingTopNGramsFilter(3), "a b c a b c", "top_3gram_repeats"),
        (heuristic.RepeatingDuplicateNGramsFilter(2), "a b a b a b", "duplicate_2grams"),
        (heuristic.PornographicUrlsFilter(), "http://porn.example", "adult_url"),
        (heuristic.XMLHeaderFilter(), '<?xml version="1.0"?>', "xml_header"),
        (heuristic.NumberOfLinesOfCodeFilter(), "one line", "too_few_lines"),
        (heuristic.UrlsFilter(url_regex=r"ftp://\S+"), "ftp://example", "too_many_urls"),
    ],
)
def test_reasons(one: ColumnFilter, text: str, reason: str) -> None:
    score = one.score_document(text)
    assert not one.keep_document(score)
    assert one.reason(score) == reason


def test_substring_positions() -> None:
    make = heuristic.SubstringFilter
    assert make("ab", "prefix").score_document("abc") == 1
    assert make("ab", "suffix").score_document("abc") == 0
    assert make("bc", "suffix").score_document("abc") == 1
    with pytest.raises(UsageError, match="Did you mean 'prefix'"):
        make("a", "prefixx")  # type: ignore[arg-type]


def test_an_unknown_language_of_comments_is_refused() -> None:
    with pytest.raises(UsageError, match="text/x-java"):
        heuristic.GeneralCommentToCodeFilter("text/x-jav")


@pytest.mark.parametrize(
    ("language", "source", "comments"),
    [
        ("text/x-c", 'x; // one\n"//no" /* two */', [" one", " two "]),
        ("text/x-javascript", "a = '/*no*/' // one", [" one"]),
        ("text/x-go", "`//no` /* a * b **/", [" a * b *"]),
        ("text/x-ruby", "'#no' # one", [" one"]),
        ("text/x-shellscript", "echo \\# \"#\" # one", [" one"]),
        ("text/html", "<!-- a\nb --> \"<!-- no -->\"", [" a\nb "]),
        ("text/x-python", "x = '#no'  # one", [" one"]),
    ],
)  # fmt: skip
def test_comments_of_languages(language: str, source: str, comments: list[str]) -> None:
    expected = len(" ".join(comments)) / len(source)
    assert heuristic.GeneralCommentToCodeFilter(language).score_document(source) == pytest.approx(expected)


@pytest.mark.parametrize("language", ["text/x-c", "text/x-javascript", "text/x-go"])
def test_a_comment_without_an_end_scores_9999(language: str) -> None:
    assert heuristic.GeneralCommentToCodeFilter(language).score_document("/* open") == 9999


def test_docstrings_and_comments_of_python() -> None:
    source = '"""Doc."""\n# note\ndef f():\n    """In."""\n'
    score = heuristic.PythonCommentToCodeFilter().score_document(source)
    assert score == pytest.approx((len("Doc.\nIn.") + len("# note")) / len(source))
    assert heuristic.PythonCommentToCodeFilter().score_document("def (") == 0


def test_visible_text_of_pages() -> None:
    page = "<p>Seen &amp; heard</p>\n  <script>no()</script><style>no</style><!-- no --><br>end"
    measure = heuristic.HTMLBoilerplateFilter(min_lang_content_num_chars=0)
    assert measure.score_document(page) == pytest.approx(len("Seen & heard" + "\n" + "end") / len(page))
    assert heuristic.HTMLBoilerplateFilter().score_document(page) == 0


@given(plain.columns)
@settings(max_examples=40)
def test_the_cascade_equals_its_filters_one_after_another(texts: list[str | None]) -> None:
    filters = english_cascade()
    result = FilterCascade(filters).evaluate(pa.array(texts, pa.large_string()))
    for row, text in enumerate(texts):
        failed = -1
        for position, one in enumerate(filters):
            score = one.score_document(text)
            if not one.keep_document(score):
                failed = position
                assert result.score[row] == score
                break
        assert result.failed_at[row] == failed
        assert result.kept[row] == (failed == -1)


def test_the_cascade_on_real_documents(shared_data: Path) -> None:
    texts: list[str] = []
    for name in ("c4", "cc_head", "movie_reviews", "dj_demo", "inaugural", "dict_devil"):
        with gzip.open(shared_data / "texts" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"][:30_000] for line in lines][:60]
    filters = english_cascade()
    cascade = FilterCascade(filters)
    column = pa.array(texts, pa.large_string())
    lazy = cascade.evaluate(column)
    eager = cascade.evaluate(column, every_score=True)
    assert np.array_equal(lazy.failed_at, eager.failed_at)
    assert np.array_equal(lazy.score, eager.score, equal_nan=True)
    assert sum(lazy.dropped) + int(lazy.kept.sum()) == len(texts)
    assert 0 < lazy.kept.sum() < len(texts)
    for position, one in enumerate(filters):
        alone = FilterCascade([one]).evaluate(column, every_score=True)
        assert np.array_equal(eager.scores[position], alone.scores[0])


def test_scores_are_kept_where_asked_and_only_of_living_documents() -> None:
    filters = [heuristic.WordCountFilter(min_words=2), heuristic.NumbersFilter(0.9)]
    result = FilterCascade(filters).evaluate(pa.array(["one", "1 2", None]), keep_scores=[1])
    assert list(result.scores) == [1]
    assert np.isnan(result.scores[1]).tolist() == [True, False, True]
    assert result.scores[1][1] == pytest.approx(2 / 3)


def test_inverted_filters_keep_what_they_would_drop() -> None:
    cascade = FilterCascade([heuristic.WordCountFilter(min_words=2)], invert=[True])
    result = cascade.evaluate(pa.array(["one", "one two"]))
    assert result.kept.tolist() == [True, False]
    assert cascade.reason(result, 1) == "inverted_WordCountFilter"


def test_documents_outside_the_mask_are_left_alone() -> None:
    cascade = FilterCascade([heuristic.WordCountFilter(min_words=2)])
    result = cascade.evaluate(pa.array(["one", "one"]), alive=np.array([True, False]))
    assert result.kept.tolist() == [False, False]
    assert result.failed_at.tolist() == [0, -1]
