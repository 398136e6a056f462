"""Templates and chunks."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.stages.text.annotate.prompts import PromptTemplate, chunks_of


def test_variables_are_columns() -> None:
    template = PromptTemplate("{{ title }}: {% for word in text.split() %}{{ word }}{{ chunk_index }}{% endfor %}")
    assert template.columns == ["text", "title"]
    again = pickle.loads(pickle.dumps(template))
    assert again.render({"title": "T", "text": "a b", "chunk_index": 0}) == "T: a0b0"


@pytest.mark.parametrize(
    "hostile", ["{{ 7 * 7 }}", "{% for x in range(9) %}x{% endfor %}", "{{ ''.__class__ }}", "{# gone #}"]
)
def test_documents_are_never_evaluated(hostile: str) -> None:
    assert PromptTemplate("<{{ text }}>").render({"text": hostile}) == f"<{hostile}>"


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__.__mro__ }}", "{{ missing }}", "{{ text.append('x') }}", "{{ 1 / 0 }}"]
)
def test_what_the_sandbox_refuses_is_an_error(source: str) -> None:
    with pytest.raises(UsageError, match="prompt cannot be rendered"):
        PromptTemplate(source).render({"text": ["a"]})


def test_a_broken_template_is_named() -> None:
    with pytest.raises(UsageError, match="system_prompt is not a valid Jinja template"):
        assert PromptTemplate("{% if %}", "system_prompt").columns


@given(st.text(alphabet="ab .\n。é", max_size=200), st.integers(1, 40))
def test_chunks_are_the_text(text: str, most: int) -> None:
    pieces = chunks_of(text, most)
    assert "".join(pieces) == text
    assert all(len(piece) <= most for piece in pieces)
    assert len(pieces) == 1 or all(pieces)


def test_cuts_follow_paragraphs_then_sentences_then_words() -> None:
    assert chunks_of("First line.\n\nSecond one is here.", 24) == ["First line.\n\n", "Second one is here."]
    assert chunks_of("Some words. And more words", 16) == ["Some words. ", "And more words"]
    assert chunks_of("abcdefgh", 3) == ["abc", "def", "gh"]
    assert chunks_of("anything", None) == ["anything"]
