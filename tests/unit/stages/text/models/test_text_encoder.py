"""Long texts are encoded in pieces, with the tokens of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from gristmill.stages.text.models import text_encoder
from gristmill.stages.text.models.text_encoder import can_cut, cut_between_words, load_encoder
from tests.token_files import make_tokenizer

WORDS = st.sampled_from(["a", "The", "mill", "it's", "12", "x9", "é", "漢字", "  ", "\n", "-", "ﬁ", "\u0301", "Z"])


def with_steps(normalizer: Any = None, pre_tokenizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def test_what_can_be_cut() -> None:
    level = pre_tokenizers.ByteLevel
    qwen = Regex(min(text_encoder._PATTERNS))
    assert can_cut(with_steps(normalizers.NFC(), level(add_prefix_space=False)))
    assert can_cut(with_steps(normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()))
    split = pre_tokenizers.Split(qwen, "isolated")
    assert can_cut(with_steps(None, pre_tokenizers.Sequence([split, level(add_prefix_space=False, use_regex=False)])))
    assert not can_cut(with_steps())
    assert not can_cut(with_steps(None, level(add_prefix_space=True)))
    assert not can_cut(with_steps(None, level(add_prefix_space=False, use_regex=False)))
    assert not can_cut(with_steps(normalizers.Strip(), level(add_prefix_space=False)))
    assert not can_cut(with_steps(None, pre_tokenizers.Metaspace()))
    assert not can_cut(with_steps(None, pre_tokenizers.Split(Regex(".+ .+"), "isolated")))
    spaced = with_steps(None, level(add_prefix_space=False))
    spaced.add_tokens(["two words"])
    assert not can_cut(spaced)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@given(st.lists(WORDS, max_size=80), st.integers(1, 20))
def test_pieces_have_the_tokens_of_the_whole(tokenizer: Path, words: list[str], size: int) -> None:
    text = " ".join(words)
    pieces = list(cut_between_words(text, size))
    assert "".join(pieces) == text
    whole = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    assert [token for piece in pieces for token in whole.encode(piece).ids] == whole.encode(text).ids


def test_a_long_document_is_not_encoded_at_once(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_encoder, "_GROUP_CHARS", 100)
    cut: list[str] = []

    def noted(text: str, size: int) -> list[str]:
        cut.extend(cut_between_words(text, size))
        return cut

    monkeypatch.setattr(text_encoder, "cut_between_words", noted)
    text = "the mill grinds the grain " * 50
    ids, lengths = load_encoder(str(tokenizer)).encode(pa.array(["a", text, None], pa.large_string()), end=1)
    whole = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    assert ids.tolist() == [*whole.encode("a").ids, 1, *whole.encode(text).ids, 1, 1]
    assert lengths.sum() == len(ids)
    assert max(map(len, cut)) <= 100
