"""The stages that rewrite and grade, asked through a real server and through clients that a user writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill.errors import UsageError
from gristmill.ledger.record.quarantine import read_quarantine
from gristmill.models.client import AsyncLLMClient, AsyncOpenAIClient, GenerationConfig, LLMClient
from gristmill.pipeline import Pipeline
from gristmill.stages.synthetic import (
    DistillStage,
    DiverseQAPostProcessingStage,
    DiverseQAStage,
    EducationalGrade,
    ExtractKnowledgeStage,
    KnowledgeListPostProcessingStage,
    KnowledgeListStage,
    QAMultilingualSyntheticStage,
    WikipediaParaphrasingStage,
)
from gristmill.stages.synthetic.nemotron_cc import prompts
from gristmill.stages.synthetic.nemotron_cc.base import BaseSyntheticStage
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.tasks import DocumentBatch, EmptyTask
from tests.llm_server import model_server

STAGES = {
    WikipediaParaphrasingStage: ("rephrased", "WikipediaParaphrasing"),
    DiverseQAStage: ("diverse_qa", "DiverseQA"),
    DistillStage: ("distill", "Distill"),
    ExtractKnowledgeStage: ("extract_knowledge", "ExtractKnowledge"),
    KnowledgeListStage: ("knowledge_list", "KnowledgeList"),
}


class Blocking(LLMClient):
    """What a script may bring: a client that answers one question at a time."""

    def __init__(self, answer: str = "ok") -> None:
        self.answer, self.asked, self.is_set_up = answer, [], False

    def setup(self) -> None:
        self.is_set_up = True

    def query_model(self, *, messages: Iterable[Any], model: str, **options: Any) -> list[str]:
        self.asked.append(list(messages))
        return [self.answer]


class Texts(AsyncLLMClient):
    """What a script may bring: an asynchronous client that returns texts only."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []

    async def _query_model_impl(self, *, messages: Any, **options: Any) -> list[str]:
        self.asked.append(messages)
        return [f"answer {len(self.asked)}"]


def batch_of(*texts: str | None) -> DocumentBatch:
    return DocumentBatch(data=pa.table({"text": pa.array(texts, pa.large_string())}))


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_each_stage_asks_with_its_prompts_and_fills_its_column(stage: Any) -> None:
    column, name = STAGES[stage]
    client = Blocking("rewritten")
    made = stage(client=client, model_name="m")
    assert (made.name, made.outputs()[1], made.inputs()[1]) == (name, [column], ["text"])
    result = made.process(batch_of("a {document} with {braces}"))
    made.teardown()
    assert result.to_pyarrow()[column].to_pylist() == ["rewritten"]
    (messages,) = client.asked
    assert [message["role"] for message in messages] == ["system", "user"]
    assert "\na {document} with {braces}\n" in messages[1]["content"]
    assert client.is_set_up


def test_prompts_have_one_field_and_ask_for_what_post_processing_expects() -> None:
    templates = {name: value for name, value in vars(prompts).items() if name.endswith("_TEMPLATE")}
    assert len(templates) == 5
    for template in templates.values():
        assert re.findall(r"\{(\w*)\}", template) == ["document"]
    assert "Here is a paraphrased version:" in prompts.WIKIPEDIA_REPHRASING_PROMPT_TEMPLATE
    assert "Paraphrased Text:" in prompts.DISTILL_PROMPT_TEMPLATE
    assert DiverseQAPostProcessingStage().prefix in prompts.DIVERSE_QA_PROMPT_TEMPLATE


def test_a_stage_of_a_user() -> None:
    @dataclass
    class Shout(BaseSyntheticStage):
        prompt: str = "Shout: {document}"
        input_field: str = "text"
        output_field: str = "loud"
        name: str = "shout"

        def _process_llm_response(self, response: Any) -> str:
            return super()._process_llm_response(response).upper()

    client = Texts()
    stage = Shout(client=client, model_name="m", generation_config=GenerationConfig(max_tokens=5))
    result = stage.process(batch_of("a", "b", None, "a"))
    stage.teardown()
    assert result.to_pyarrow()["loud"].to_pylist() == ["ANSWER 1", "ANSWER 2", None, "ANSWER 1"]
    assert client.asked[0] == [{"role": "user", "content": "Shout: a"}]
    assert stage.generation_config.max_tokens == 5


def test_mistakes_are_named() -> None:
    with pytest.raises(UsageError, match=r"DistillStage\(model_name=None\): must be a non-empty string"):
        DistillStage()
    with pytest.raises(UsageError, match=r"has no \{document\}"):
        DistillStage(prompt="Shorten it", model_name="m")
    with pytest.raises(UsageError, match=r"has the field \{text\}; the only one is \{document\}"):
        DistillStage(prompt="Shorten {text}", model_name="m")
    with pytest.raises(UsageError, match=r"has the field \{document.__class__\}"):
        DistillStage(prompt="{document.__class__}", model_name="m")
    with pytest.raises(UsageError, match=r"client='vlm'.*Did you mean 'vllm'"):
        DistillStage(client="vlm", model_name="m")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least one language"):
        QAMultilingualSyntheticStage("{language}", [], None, "m", 3)


# --- whole pipelines against a server ---


def rewrite(body: dict[str, Any]) -> str:
    """Answers as a model would that does what it is asked."""
    asked = body["messages"][-1]["content"]
    said = asked.partition("<text>\n")[2].partition("\n</text>")[0]
    if "paraphrased version" in asked:
        return f"Here is a paraphrased version:\n{said.upper()}"
    if "questions" in asked:
        return f"{prompts.DIVERSE_QA_PREFIX}\n- Question: What does it say?\n- Answer: {said}"
    return f"Facts:\n- {said}" if "List what" in asked else f"passage on {said}"


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    rows = [{"id": str(number), "text": f"document number {number}"} for number in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def run(source: Path, target: Path, *stages: Any) -> list[dict[str, Any]]:
    pipeline = Pipeline(name="rewriting", stages=[JsonlReader(str(source)), *stages, JsonlWriter(str(target))])
    pipeline.run()
    return rows_of(target)


def test_a_pipeline_of_all_five_and_its_answers_are_paid_for_once(documents: Path, tmp_path: Path) -> None:
    with model_server(reply=rewrite) as server:
        client = AsyncOpenAIClient(8, base_url=server.url, api_key="secret-key")
        stages = [
            *(stage(client=client, model_name="m") for stage in STAGES),
            DiverseQAPostProcessingStage(),
            KnowledgeListPostProcessingStage(),
        ]
        rows = run(documents, tmp_path / "out", *stages)
        assert len(server.requests) == 40
        run(documents, tmp_path / "out", *stages)
        assert len(server.requests) == 40
    assert rows[3]["rephrased"] == "Here is a paraphrased version:\nDOCUMENT NUMBER 3"
    assert rows[3]["diverse_qa"] == "document number 3\n\nQuestion: What does it say?\nAnswer: document number 3"
    assert rows[3]["knowledge_list"] == "document number 3"
    record = tmp_path / "out.gristmill"
    assert not [path for path in record.rglob("*") if path.is_file() and b"secret-key" in path.read_bytes()]


def test_an_unusable_answer_is_quarantined_and_only_that(documents: Path, tmp_path: Path) -> None:
    def sometimes(body: dict[str, Any]) -> str:
        return "" if "number 3" in body["messages"][-1]["content"] else rewrite(body)

    with model_server(reply=sometimes) as server:
        stage = WikipediaParaphrasingStage(model_name="m", base_url=server.url)
        rows = run(documents, tmp_path / "out", stage)
    assert [row["id"] for row in rows] == ["0", "1", "2", "4", "5", "6", "7"]
    (found,) = read_quarantine(str(tmp_path / "out"))
    assert (found.record.stage, found.record.cause) == ("WikipediaParaphrasing", "llm_no_text")


def grade_by_length(body: dict[str, Any]) -> str:
    said = body["messages"][-1]["content"].partition("<extract>\n")[2].partition("\n</extract>")[0]
    return json.dumps({"reasons": "its length", "grade": min(5, len(said) // 10)})


def test_grades_are_whole_numbers_in_a_column(documents: Path, tmp_path: Path) -> None:
    with model_server(reply=grade_by_length) as server:
        stage = EducationalGrade("m", base_url=server.url, reasons_field="why", max_chars=12)
        rows = run(documents, tmp_path / "out", stage)
        assert "document num\n" in server.requests[0]["messages"][-1]["content"]
        assert server.requests[0]["response_format"]["json_schema"]["schema"]["properties"]["grade"]["maximum"] == 5
    assert {(row["educational_grade"], row["why"]) for row in rows} == {(1, "its length")}


def test_made_up_documents_in_several_languages(tmp_path: Path) -> None:
    count = 0

    def numbered(body: dict[str, Any]) -> str:
        nonlocal count
        count += 1
        return f"**[{body['messages'][0]['content']}]** {count}"

    with model_server(reply=numbered) as server:
        stage = QAMultilingualSyntheticStage(
            prompt="Ask in {language}.",
            languages=["English", "French"],
            client=AsyncOpenAIClient(4, base_url=server.url),
            model_name="m",
            num_samples=20,
            generation_config=GenerationConfig(temperature=0.9, seed=None),
        )
        pipeline = Pipeline(name="made-up", stages=[stage, JsonlWriter(str(tmp_path / "out"))])
        pipeline.run()
        rows = rows_of(tmp_path / "out")
        assert len(server.requests) == 20
        pipeline.run()
        assert len(server.requests) == 20
        assert stage.process(EmptyTask()).num_items == 20
    assert [list(row) for row in rows] == [["text"]] * 20
    assert len({row["text"] for row in rows}) == 20
    assert {row["text"].partition("] ")[0] for row in rows} == {"[Ask in English.", "[Ask in French."}
