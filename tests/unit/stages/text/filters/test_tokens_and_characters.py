"""Filters by tokens, by characters of a language and by file extension, against plain references."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import InputError, InputNotFoundError, UsageError
from gristmill.kernels.text_column import text_column
from gristmill.stages.text.filters.cascade import FilterCascade
from gristmill.stages.text.filters.extension import PerExtensionFilter
from gristmill.stages.text.filters.histogram import HistogramFilter
from gristmill.stages.text.filters.tokens import TokenCountFilter, TokenizerFertilityFilter

AWKWARD = ["", " ", "\n", "a", "🙂", "e\u0301", "\ufffd", "\x00", "a\n" * 50, "漢字かな", "\u3000x\u3000"]
texts = st.lists(st.text(alphabet="ab1 \n!,é漢🙂\u3000_", max_size=30), max_size=5)


def scores(one, values):
    return FilterCascade([one]).evaluate(text_column(values), keep_scores=True).scores[0].tolist()


# --- tokens ---


@pytest.fixture(scope="module")
def words_file(tmp_path_factory):
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    made = tokenizers.Tokenizer(WordLevel({"[UNK]": 0, "[CLS]": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 1)])
    made.enable_truncation(3)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def words(text):
    return len(re.findall(r"\w+|[^\w\s]+", text))


def test_tokens_are_counted_with_special_ones_and_without_truncation(words_file):
    values = ["one two three four", "", "a-b", "x"]
    wanted = [words(text) + 1.0 for text in values]
    assert scores(TokenCountFilter(str(words_file)), values) == wanted
    assert scores(TokenCountFilter(hf_model_name=str(words_file.parent)), values) == wanted
    from tokenizers import Tokenizer

    assert scores(TokenCountFilter(Tokenizer.from_file(str(words_file))), values) == wanted


def test_bounds_and_reasons_of_token_counts(words_file):
    cascade = FilterCascade([TokenCountFilter(str(words_file), min_tokens=2, max_tokens=3)])
    result = cascade.evaluate(text_column(["", "a", "a b", "a b c", None]))
    assert result.kept.tolist() == [False, True, True, False, False]
    assert [cascade.reason(result, row) for row in (0, 3)] == ["too_few_tokens", "too_many_tokens"]


def test_awkward_texts_are_tokenized(words_file):
    assert len(scores(TokenCountFilter(str(words_file)), AWKWARD)) == len(AWKWARD)


def test_documents_in_several_groups_keep_their_order(words_file, monkeypatch):
    monkeypatch.setattr("gristmill.stages.text.filters.tokens._GROUP_CHARS", 10)
    values = ["a " * number for number in range(12)]
    assert scores(TokenCountFilter(str(words_file)), values) == [number + 1.0 for number in range(12)]


class ByCharacter:
    def encode(self, text):
        return list(text)


def test_anything_with_encode_counts():
    assert scores(TokenCountFilter(ByCharacter()), ["abc", ""]) == [3, 0]
    with pytest.raises(UsageError, match="encode"):
        scores(TokenCountFilter(object()), ["a"])


@pytest.mark.parametrize("options", [{}, {"tokenizer": "a", "hf_model_name": "b"}])
def test_exactly_one_tokenizer_is_needed(options):
    with pytest.raises(UsageError, match="either tokenizer or hf_model_name"):
        TokenCountFilter(**options)


def test_unknown_settings_of_the_hub_are_refused():
    with pytest.raises(UsageError, match="local_files_only"):
        TokenCountFilter(hf_model_name="a", transformers_init_kwargs={"local_files_only": True})


def test_missing_tokenizers_are_named(tmp_path):
    with pytest.raises(InputNotFoundError, match=r"none\.json"):
        TokenCountFilter(str(tmp_path / "none.json")).load_tokenizer()
    with pytest.raises(UsageError, match="path_to_tokenizer"):
        TokenizerFertilityFilter()


def test_fertility_is_characters_per_token(words_file):
    one = TokenizerFertilityFilter(str(words_file))
    assert scores(one, ["abcd efgh", "", "a b"]) == [4.5, -1, 1.5]
    assert [one.keep_document(score) for score in (2.5, 2.4, -1)] == [True, False, False]
    assert pickle.loads(pickle.dumps(one)).score_document("abcd efgh") == 4.5


def test_fertility_by_sentencepiece(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "corpus.txt").write_text("the cat sat on the mat and the dog ran\n" * 40)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "corpus.txt"),
        model_prefix=str(tmp_path / "sp"),
        vocab_size=18,
        hard_vocab_limit=False,  # how many pieces a corpus allows depends on the version
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sp.model"))
    values = ["the cat ran", "zzz", "🙂"]
    wanted = [len(text) / len(processor.encode_as_pieces(text)) for text in values]
    assert scores(TokenizerFertilityFilter(str(tmp_path / "sp.model")), [*values, ""]) == [*wanted, -1]


# --- histograms ---


@pytest.fixture(scope="module")
def histograms(tmp_path_factory):
    folder = tmp_path_factory.mktemp("histograms")
    inside = folder / "histograms/checkpoint/edunov/cc60_multilingual/clean_hists"
    inside.mkdir(parents=True)
    (inside / "xx").write_text("a 10\nb 5\né 2\n漢 1\n] 0\n! 1\n", encoding="utf-8")
    return str(folder)


@settings(max_examples=150, deadline=None)
@given(values=texts, threshold=st.sampled_from([0.0, 0.5, 0.8]))
def test_the_share_of_usual_characters_decides(histograms, values, threshold):
    def reference(text):
        hits = sum(character in "abé漢" for character in text.strip())
        return float(bool(text) and hits / len(text) > threshold)

    one = HistogramFilter("xx", threshold, histograms)
    assert scores(one, values) == [reference(text) for text in values]


def test_histograms_take_awkward_texts_and_travel(histograms):
    one = pickle.loads(pickle.dumps(HistogramFilter("xx", cache_dir=histograms)))
    assert scores(one, [*AWKWARD, None])[3] == 1
    assert one.keep_document(1)
    assert not one.keep_document(0)


def test_a_missing_histogram_says_where_to_get_it(tmp_path):
    with pytest.raises(InputNotFoundError, match="Download https"):
        HistogramFilter("xx", cache_dir=str(tmp_path)).score_document("a")


# --- extensions ---

HEADER = "extension,language,Include,Alphanum_threshold,Long_line_threshold,Alpha filter\n"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "meta.csv"
    path.write_text(HEADER + "py,python,1,0.5,10,0.25\ncs,c-sharp,1,,,\nbin,python,0,,,\nmd,python,1,,,0.5\n")
    return str(path)


def shape(text, longest, plain, alphabetic):
    lengths = [len(line) for line in text.split("\n")]
    if longest and (max(lengths) > longest or (len(text) + 1) / len(lengths) - 1 > 100):
        return 0.0
    if plain and (not text or len(re.findall(r"[a-zA-Z0-9\n?!,.]", text)) / len(text) < plain):
        return 0.0
    return float(not (alphabetic and sum(map(str.isalpha, text)) < alphabetic * len(text)))


@settings(max_examples=200, deadline=None)
@given(values=texts)
def test_limits_of_an_extension_decide(table, values):
    assert scores(PerExtensionFilter("python", "py", table), values) == [shape(t, 10, 0.5, 0.25) for t in values]
    assert scores(PerExtensionFilter("Python", "md", table), values) == [shape(t, 0, 0, 0.5) for t in values]


def test_extensions_without_limits_or_not_included(table):
    assert scores(PerExtensionFilter("C#", "cs", table), ["", "x" * 9999]) == [1, 1]
    assert scores(PerExtensionFilter("python", "bin", table), ["x = 1"]) == [0]
    assert scores(PerExtensionFilter("python", None, table), ["x = 1"]) == [0]
    assert scores(PerExtensionFilter("python", "py", table), AWKWARD)[3] == 1


def test_long_means_of_lines_are_dropped(tmp_path):
    path = tmp_path / "meta.csv"
    path.write_text(HEADER + "py,python,1,,1000,\n")
    values = ["x" * 100, "x" * 101, "x" * 202 + "\n"]
    assert scores(PerExtensionFilter("python", "py", str(path)), values) == [shape(t, 1000, 0, 0) for t in values]


def test_tables_that_do_not_help_are_refused(tmp_path, table):
    with pytest.raises(InputNotFoundError, match="code_meta"):
        PerExtensionFilter("python", "py", str(tmp_path / "code_meta.csv")).score_document("a")
    with pytest.raises(InputError, match="'cobol'"):
        PerExtensionFilter("cobol", "cob", table).score_document("a")
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no column 'language'"):
        PerExtensionFilter("python", "py", str(tmp_path / "bad.csv")).score_document("a")


def test_only_living_documents_are_scored(table):
    one = PerExtensionFilter("python", "py", table)
    result = FilterCascade([one]).evaluate(text_column(["a", "a"]), alive=np.array([True, False]), keep_scores=True)
    assert result.kept.tolist() == [True, False]
