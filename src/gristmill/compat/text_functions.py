"""Functions on texts, under the names in `nemo_curator.stages.text.utils.text_utils`."""

from __future__ import annotations

import ast
import importlib
import io
import re
import string
import tokenize
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gristmill.errors import optional_module

_KINDS = {ast.ClassDef: "Class", ast.FunctionDef: "Function/Method", ast.Module: "Module"}


def get_word_splitter(language: str) -> Callable[[str], list[str]]:
    """A function that splits a text into words: by a dictionary for `zh` and `ja`, otherwise at white space.

    Example:
        >>> get_word_splitter("en")("two words")
        ['two', 'words']
    """
    language = language.lower()
    if language == "zh":
        jieba = optional_module("jieba", "Splitting Chinese text")
        return lambda text: list(jieba.cut(text))
    if language == "ja":
        tagger = optional_module("MeCab", "Splitting Japanese text").Tagger("-Owakati")
        return lambda text: str(tagger.parse(text)).split()
    return str.split


def get_paragraphs(document: str) -> list[str]:
    """The parts between empty lines."""
    return document.split("\n\n")


def get_sentences(document: str) -> list[str]:
    """The lines that are not blank."""
    return [line for line in document.split("\n") if line.strip()]


def get_ngrams(input_list: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """All n-grams.

    Example:
        >>> get_ngrams(["a", "b", "c"], 2)
        [('a', 'b'), ('b', 'c')]
    """
    return [tuple(input_list[place : place + n]) for place in range(len(input_list) - n + 1)]


def is_paragraph_indices_in_top_or_bottom_only(
    boilerplate_paragraph_indices: Sequence[int], num_paragraphs: int
) -> bool:
    """Whether sorted paragraph numbers form a contiguous run at the beginning or the end, but not all of them."""
    found = list(boilerplate_paragraph_indices)
    if len(found) == num_paragraphs:
        return False
    in_a_row = found == list(range(found[0], found[0] + len(found)))
    return in_a_row and (found[0] == 0 or found[-1] == num_paragraphs - 1)


def get_comments_and_docstring(
    source: str, comments: bool = True, clean_comments: bool = False
) -> tuple[str | None, str | None]:
    """The docstrings and the comments of Python source, each None if it cannot be parsed."""
    docstrings = _readable(lambda: "\n".join(get_docstrings(source)))
    return docstrings, _readable(lambda: get_comments(source, clean=clean_comments)) if comments else ""


def _readable(read: Callable[[], str]) -> str | None:
    try:
        return read()
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        warnings.warn(f"The source cannot be read: {error}", stacklevel=3)
        return None


def get_comments(s: str, clean: bool = False) -> str:
    """All comments of Python source, one after the other; `clean` removes their `#`."""
    tokens = tokenize.generate_tokens(io.StringIO(s).readline)
    comments = [(token.type, token.string) for token in tokens if token.type == tokenize.COMMENT]
    found: str = tokenize.untokenize(comments)
    return found.replace("#", "") if clean else found


def get_docstrings(source: Any, module: str = "<string>") -> list[str]:
    """The docstrings of Python source (text or an open file): classes first, then functions, then the module."""
    text = source.read() if hasattr(source, "read") else source
    found = sorted(parse_docstrings(text), key=lambda entry: (_KINDS[type(entry[0])], entry[1] or ""))
    return [docstring for _, _, docstring in found if docstring]


def parse_docstrings(source: str) -> Iterator[tuple[Any, str | None, str | None]]:
    """Each module, class and function of Python source with its name and docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module):
            yield node, getattr(node, "name", None), ast.get_docstring(node)


def remove_punctuation(str_in: str) -> str:
    """The text without ASCII punctuation."""
    return str_in.translate(str.maketrans("", "", string.punctuation))


def get_words(text: str) -> tuple[list[str], list[int]]:
    """The words of a text in lower case without punctuation, and the offset of each in that text.

    Example:
        >>> get_words("One, two")
        (['one', 'two'], [0, 4])
    """
    plain = remove_punctuation(text.lower())
    spans = [(found.group().strip(), found.start()) for found in re.finditer(r"[^ ]+", plain)]
    return [word for word, _ in spans], [start for _, start in spans]


def get_language_name(lang_code: str) -> str:
    """The name of a language by its ISO 639 code, if the package `iso639` is installed; otherwise the code itself."""
    try:
        iso639 = importlib.import_module("iso639")
    except ImportError:
        return lang_code
    try:
        return str(iso639.Lang(lang_code).name) if lang_code else ""
    except (AttributeError, KeyError, ValueError):
        return lang_code
