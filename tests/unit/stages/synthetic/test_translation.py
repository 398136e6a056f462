"""Translations: pieces come back in their order, with the spacing of the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import LLMRequestError, UsageError
from gristmill.models.client import Answer, AsyncLLMClient
from gristmill.stages.synthetic import TranslationStage
from gristmill.tasks.document import DocumentBatch


class Shouting(AsyncLLMClient):
    """Translates into capitals, and adds white space of its own, as models do."""

    def __init__(self) -> None:
        super().__init__(8, 0)
        self.prompts: list[str] = []

    async def _answer_impl(self, *, messages: Any, **_: Any) -> Answer:
        said = messages[-1]["content"]
        self.prompts.append(said)
        text = said.partition("<text>\n")[2].rpartition("\n</text>")[0]
        if "refused" in text:
            raise LLMRequestError("no", can_be_retried=False)
        return Answer((f"\n {text.upper()}\n",), "m", 1, 1, ("stop",))


def _translated(texts: list[str | None], **options: Any) -> tuple[DocumentBatch, Shouting]:
    client = Shouting()
    stage = TranslationStage("German", "English", "m", client=client, **{"max_chunk_chars": 40, **options})
    stage.setup()
    try:
        return stage.process(DocumentBatch(data=pa.table({"text": pa.array(texts, pa.string())}))), client
    finally:
        stage.teardown()


def test_the_layout_is_that_of_the_original() -> None:
    text = "  # Titel\n\nErster Satz. Zweiter Satz, der etwas länger ist.\n\n\n- eins\n- zwei\n" + "wort " * 30 + "\n"
    batch, client = _translated([text, "kurz", "", None, " \n "])
    assert batch.column("translated_text").to_pylist() == [text.upper(), "KURZ", None, None, None]
    assert len(client.prompts) > 4
    assert "from German to English" in client.prompts[0]


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="abc .\n\t\u3000", min_size=1, max_size=300), st.integers(1, 50))
def test_any_text_comes_back_whole(text: str, most: int) -> None:
    batch, _ = _translated([text], max_chunk_chars=most)
    assert batch.column("translated_text").to_pylist() == [None if text.isspace() else text.upper()]


def test_a_piece_that_fails_takes_its_document_along() -> None:
    batch, _ = _translated(["gut. " * 20 + "refused. " + "gut. " * 20, "gut"])
    assert batch.column("text").to_pylist() == ["gut"]


def test_replacing_the_text_and_another_prompt(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("Ins Englische:\n<text>\n{{ text }}\n</text>", encoding="utf-8")
    batch, client = _translated(["eins"], output_field="text", translation_prompt_path=str(tmp_path / "prompt.txt"))
    assert batch.column("text").to_pylist() == ["EINS"]
    assert client.prompts == ["Ins Englische:\n<text>\neins\n</text>"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"translation_prompt_path": "/nowhere/prompt"}, "No such file"),
        ({"text_field": "a b"}, "valid identifier"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        TranslationStage("de", "en", "m", **options)


def test_languages_are_words() -> None:
    with pytest.raises(UsageError, match="must be a language"):
        TranslationStage("de", "{{ 7 }}", "m")
