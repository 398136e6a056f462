"""Answers become training text: question-answer pairs behind their text, lists as plain lines."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.stages.synthetic.nemotron_cc.post_processing import (
    DiverseQAPostProcessingStage,
    KnowledgeListPostProcessingStage,
    plain_list,
    question_answer_pairs,
)
from gristmill.stages.synthetic.nemotron_cc.prompts import DIVERSE_QA_PREFIX
from gristmill.tasks import DocumentBatch

ANSWER = f"{DIVERSE_QA_PREFIX}\n" + "\n".join(f"- Question: Q{n}?\n- Answer: A{n}." for n in range(1, 9))


def _batch(**columns: list[str | None]) -> DocumentBatch:
    return DocumentBatch(data=pa.table({name: pa.array(values, pa.large_string()) for name, values in columns.items()}))


def _pairs(stage: DiverseQAPostProcessingStage, texts: list[str], answer: str | None = ANSWER) -> list[str]:
    batch = _batch(text=list(texts), diverse_qa=[answer] * len(texts))
    return stage.process(batch).text("diverse_qa").to_pylist()


def test_pairs_follow_their_text() -> None:
    (made,) = _pairs(DiverseQAPostProcessingStage(), ["DOC"])
    text, *pairs = made.split("\n\n")
    assert text == "DOC"
    assert 1 <= len(pairs) <= 8
    assert {pair[:10] for pair in pairs} == {"Question: "}
    assert all(pair.split("\n")[1].startswith("Answer: A") for pair in pairs)


def test_chance_follows_from_the_text_alone() -> None:
    texts = [f"document {n}" for n in range(40)]
    made = _pairs(DiverseQAPostProcessingStage(), texts)
    assert made == _pairs(DiverseQAPostProcessingStage(), texts)
    assert [made[3]] == _pairs(DiverseQAPostProcessingStage(), [texts[3]])
    assert len({one.count("Question:") for one in made}) > 3
    assert len({one.split("\n\n")[1] for one in made}) > 3


def test_a_short_text_gets_fewer_pairs() -> None:
    class Words:
        def encode(self, text: str) -> list[str]:
            return text.split()

    stage = DiverseQAPostProcessingStage(tokenizer=Words(), max_num_pairs=10)
    short = _pairs(stage, [f"{n} " * 15 for n in range(20)])
    assert {one.count("Question:") for one in short} == {1}
    long = _pairs(stage, [f"{n} " * 150 for n in range(20)])
    assert max(one.count("Question:") for one in long) > 3


def test_answers_without_pairs_become_empty() -> None:
    stage = DiverseQAPostProcessingStage()
    assert _pairs(stage, ["DOC"], "I cannot help with that.") == [""]
    assert _pairs(stage, ["DOC"], None) == [None]
    assert _pairs(stage, ["DOC"], "- Question: Only asked?") == [""]


def test_pairs_are_read_from_what_models_write() -> None:
    assert question_answer_pairs("**Sure!**\n\nQuestion: Why?\n\nAnswer: It\n rains.\n- Question: ") == [
        "Question: Why?\nAnswer: It\nrains."
    ]
    assert question_answer_pairs("* Question: A or B?\n* Answer: B") == ["Question: A or B?\nAnswer: B"]


@given(st.text())
def test_any_answer_can_be_read(answer: str) -> None:
    for pair in question_answer_pairs(answer):
        assert pair.startswith("Question: ")
        assert "\nAnswer: " in pair
    plain_list(answer)


def test_lists_lose_their_bullets() -> None:
    batch = _batch(knowledge_list=["Header line\n- item one\n  continuation\n- item two", "no list\nat all", None])
    made = KnowledgeListPostProcessingStage().process(batch).text("knowledge_list").to_pylist()
    assert made == ["item one\ncontinuation\nitem two", "no list\nat all", None]


def test_names_and_checks() -> None:
    assert DiverseQAPostProcessingStage().name == "DiverseQAPostProcessing"
    assert KnowledgeListPostProcessingStage().name == "KnowledgeListPostProcessing"
    with pytest.raises(UsageError, match="max_num_pairs=0"):
        DiverseQAPostProcessingStage(max_num_pairs=0)
