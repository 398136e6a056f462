"""The extraction algorithms and the extractor of Common Crawl, with the parameters that scripts give them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import justext
import pytest

from gristmill.errors import GristmillError
from gristmill.stages.text.download.common_crawl.extract import CommonCrawlHTMLExtractor
from gristmill.stages.text.download.common_crawl.warc_iterator import CommonCrawlWarcIterator
from gristmill.stages.text.download.html_extractors import (
    HTMLExtractorAlgorithm,
    JusTextExtractor,
    ResiliparseExtractor,
    TrafilaturaExtractor,
)
from gristmill.stages.text.download.utils import (
    check_s5cmd_installed,
    decode_html,
    detect_language,
    lang_detect,
    remove_control_characters,
    try_decode_with_detected_encoding,
)
from tests.unit.stages.text.extraction.pages import pages, word_f1

ENGLISH = justext.get_stoplist("English")
DEFAULTS: dict[Any, dict[str, Any]] = {
    JusTextExtractor: {
        "length_low": 70,
        "length_high": 200,
        "stopwords_low": 0.3,
        "stopwords_high": 0.32,
        "max_link_density": 0.2,
        "max_heading_distance": 200,
        "no_headings": False,
        "is_boilerplate": None,
    },
    ResiliparseExtractor: {"required_stopword_density": 0.32, "main_content": True, "alt_texts": False},
    TrafilaturaExtractor: {
        "required_stopword_density": 0.32,
        "min_extracted_size": 250,
        "min_extracted_comm_size": 1,
        "min_output_size": 1,
        "min_output_comm_size": 1,
        "max_tree_size": None,
        "min_duplcheck_size": 100,
        "max_repetitions": 2,
    },
    CommonCrawlHTMLExtractor: {"algorithm": None, "algorithm_kwargs": None, "stop_lists": None},
}


@pytest.mark.parametrize("cls", DEFAULTS)
def test_parameters_and_defaults(cls: Any) -> None:
    parameters = inspect.signature(cls).parameters.values()
    given = {one.name: one.default for one in parameters if one.kind is not inspect.Parameter.VAR_KEYWORD}
    assert given == DEFAULTS[cls]


@pytest.mark.parametrize("algorithm", [JusTextExtractor(), ResiliparseExtractor(), TrafilaturaExtractor()])
def test_the_text_of_real_articles(algorithm: HTMLExtractorAlgorithm, larger_data: Path) -> None:
    found = pages(larger_data, "article_extraction_benchmark", 8)
    scores = []
    for page in found:
        paragraphs = algorithm.extract_text(decode_html(page.html) or "", ENGLISH, "ENGLISH")
        assert paragraphs is not None
        assert all(isinstance(one, str) and one.strip() for one in paragraphs)
        scores.append(word_f1("\n".join(paragraphs), page.text))
    assert sum(scores) / len(scores) > 0.75


def test_paragraphs_without_stop_words_are_left_out_where_words_are_spaced() -> None:
    page = "<main><p>zucchini tomatoes aubergines</p><p>this is what we have of it</p></main>"
    extractor = ResiliparseExtractor()
    assert extractor.extract_text(page, ENGLISH, "ENGLISH") == ["this is what we have of it"]
    assert len(extractor.extract_text(page, frozenset(), "CHINESE") or []) == 2


def test_boilerplate_of_justext_is_kept_where_words_are_not_spaced() -> None:
    page = "<p>短い。</p>"
    assert JusTextExtractor().extract_text(page, frozenset(), "JAPANESE") == ["短い。"]
    assert JusTextExtractor(is_boilerplate=True).extract_text(page, frozenset(), "JAPANESE") == []


@pytest.mark.parametrize("html", ["", "   ", "\x00", "<", "<!-- -->"])
@pytest.mark.parametrize("algorithm", [JusTextExtractor(), ResiliparseExtractor(), TrafilaturaExtractor()])
def test_pages_with_nothing_in_them(algorithm: HTMLExtractorAlgorithm, html: str) -> None:
    assert not algorithm.extract_text(html, ENGLISH, "ENGLISH")


def test_records_of_common_crawl(larger_data: Path) -> None:
    page = pages(larger_data, "article_extraction_benchmark", 8)[0]
    record = {"url": page.url, "warc_id": "w", "source_id": "s", "content": page.html}
    for algorithm in (None, "resiliparse", TrafilaturaExtractor()):
        extractor = CommonCrawlHTMLExtractor(algorithm)
        document = extractor.extract(record)
        assert document is not None
        assert list(document) == extractor.output_columns()
        assert document["language"] == "ENGLISH"
        assert word_f1(document["text"], page.text) > 0.75


def test_only_languages_of_the_stop_lists(larger_data: Path) -> None:
    german = next(one for one in pages(larger_data, "trafilatura_eval", 80) if one.gold["html_lang"] == "de-de")
    record = {"url": german.url, "warc_id": "w", "source_id": "s", "content": german.html}
    assert CommonCrawlHTMLExtractor(stop_lists={"ENGLISH": ENGLISH}).extract(record) is None
    kept = CommonCrawlHTMLExtractor(stop_lists={"GERMAN": justext.get_stoplist("German")}).extract(record)
    assert kept is not None
    assert kept["language"] == "GERMAN"


def test_unknown_algorithms_are_refused_by_name() -> None:
    with pytest.raises(GristmillError, match="'trafilatura'"):
        CommonCrawlHTMLExtractor("trafilatur")
    with pytest.raises(GristmillError, match="algorithm_kwargs"):
        CommonCrawlHTMLExtractor(JusTextExtractor(), {"length_low": 3})


def test_helpers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert remove_control_characters("a\x00b\u200bc") == "abc"
    assert lang_detect("<p>Alle Menschen sind frei und gleich an Würde und Rechten geboren.</p>" * 3) == "GERMAN"
    assert lang_detect("") == "UNKNOWN"
    name, code, percent, score = detect_language("All human beings are born free and equal in dignity and rights.")[0]
    assert (name, code) == ("English", "en")
    assert 0 < percent <= 100
    assert score > 0
    assert decode_html(b"") is None
    assert decode_html("größer".encode()) == "größer"
    cyrillic = "Все люди рождаются свободными и равными" * 3
    assert try_decode_with_detected_encoding(cyrillic.encode("cp1251")) == cyrillic
    program = tmp_path / "s5cmd"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    assert not check_s5cmd_installed()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_s5cmd_installed()


@pytest.mark.parametrize(("characters", "kept"), [(200, False), (201, True)])
def test_jus_text_needs_a_paragraph_of_more_than_200_characters(characters: int, kept: bool) -> None:
    line = "This is the text of a page, and it says what the mill at the end of the village was for. " * 3
    page = f"<html><body><p>{line[:characters].rstrip().ljust(characters, 'x')}</p></body></html>"
    record = {"url": "u", "warc_id": "i", "source_id": "s", "content": page.encode()}
    assert (CommonCrawlHTMLExtractor().extract(record) is not None) == kept


@pytest.mark.parametrize(
    ("path", "language"),
    [("whirlwind/whirlwind.warc.gz", "GALICIAN"), ("warcio/example.warc.gz", "ENGLISH")],
)
def test_real_pages_that_only_jus_text_drops(shared_data: Path, path: str, language: str) -> None:
    record = next(iter(CommonCrawlWarcIterator().iterate(str(shared_data / "warc_real" / path))))
    assert isinstance(record, dict)
    assert CommonCrawlHTMLExtractor().extract(record) is None
    for name in ("resiliparse", "trafilatura"):
        document = CommonCrawlHTMLExtractor(name).extract(record)
        assert document is not None
        assert document["language"] == language
