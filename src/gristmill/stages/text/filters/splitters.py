"""How a text becomes words: at white space by default, or by a library for languages and rules that need one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from gristmill.errors import MissingExtraError, UnknownNameError, did_you_mean
from gristmill.kernels.text_column import Mask, TextColumn, WordSpans, text_column, word_spans
from gristmill.kernels.text_tokens import token_spans

SPACE = "space"
UNICODE = "unicode"
JIEBA = "jieba"
MECAB = "mecab"
SPACY = "spacy"

Splitter = Callable[[str], list[str]]


def splitter_of_language(language: str) -> str:
    """The name of the splitter for a language: Chinese and Japanese do not separate words by spaces, others do."""
    return {"zh": JIEBA, "ja": MECAB}.get(language.lower(), SPACE)


@lru_cache(maxsize=8)
def load_splitter(name: str) -> Splitter:
    """The function behind a splitter's name; its library is imported here and nowhere else.

    Raises:
        UnknownNameError: No splitter has this name.
        MissingExtraError: The library is not installed.
    """
    makers = {SPACE: lambda: str.split, JIEBA: _jieba, MECAB: _mecab, SPACY: _spacy}
    if name not in makers:
        raise UnknownNameError(
            f"There is no word splitter {name!r}; there are {', '.join(makers)}.{did_you_mean(name, makers)}", name=name
        )
    return makers[name]()


def _library(module: str, package: str, purpose: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{purpose} needs the package {package}, which is not installed: pip install {package}", package=package
        ) from error


def _jieba() -> Splitter:
    library = _library("jieba", "jieba", "Splitting Chinese text into words")
    # It tells how long its dictionary took to load, in every worker.
    library.setLogLevel("WARNING")
    return lambda text: list(library.cut(text.strip()))


def _mecab() -> Splitter:
    tagger = _library("MeCab", "mecab-python3", "Splitting Japanese text into words").Tagger()

    def split(text: str) -> list[str]:
        words = []
        node = tagger.parseToNode(text.strip())
        while node:
            # The first and the last node stand for the ends of the text.
            if node.surface:
                words.append(node.surface)
            node = node.next
        return words

    return split


def _spacy() -> Splitter:
    language = _library("spacy", "spacy", "Splitting words as spaCy does").blank("en")
    tokenizer = language.tokenizer

    def split(text: str) -> list[str]:
        return [word for word in (token.text.strip() for token in tokenizer(text)) if word]

    return split


def split_column(column: TextColumn, name: str, rows: Mask) -> WordSpans:
    """The words of the marked documents; a document that is not marked has none."""
    if name == UNICODE:
        return token_spans(column, rows)
    split = load_splitter(name)
    words: list[str | None] = []
    bounds = np.zeros(len(column) + 1, dtype=np.int64)
    for row in range(len(column)):
        if rows[row]:
            words += split(column.text(row))
        bounds[row + 1] = len(words)
    found = text_column(words)
    return word_spans(found.data, found.offsets[:-1], found.offsets[1:], bounds)
