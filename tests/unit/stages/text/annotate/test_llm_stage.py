"""The stage on a model in this process: prompts, columns, repair, quarantine, chunks, cache, budget."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill.errors import LLMBudgetError, LLMRequestError, LLMServerError, PlanningError, UsageError
from gristmill.models.client import Answer
from gristmill.pipeline.describe import describe_stage
from gristmill.stages.text.annotate import LLMStage
from gristmill.tasks.document import DocumentBatch
from tests.unit.stages.text.annotate.clients import FunctionModel

SCORE = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 5}, "why": {"type": "string"}},
    "required": ["score"],
}


def _batch(*texts: Any, **columns: Any) -> DocumentBatch:
    return DocumentBatch(data=pa.table({"text": list(texts), **columns}))


def _run(stage: LLMStage, batch: DocumentBatch) -> dict[str, list[Any]]:
    result = stage.process(batch)
    stage.teardown()
    return result.to_pyarrow().to_pydict()


def _causes(batch: DocumentBatch) -> list[tuple[int, str, str]]:
    return [(one.row, one.cause, one.detail) for one in batch._tracking.trail.quarantine]


def upper(messages: list[dict[str, str]]) -> str:
    return messages[-1]["content"].upper()


def test_answers_become_a_column() -> None:
    client = FunctionModel(upper)
    stage = LLMStage(
        "{{ title }}/{{ text }}", model="m", client=client, system_prompt="Be {{ mood }}.", output_field="loud"
    )
    assert stage.inputs() == (["data"], ["mood", "text", "title"])
    made = _run(stage, _batch("a", "b", title=["x", "y"], mood=["kind", "brief"]))
    assert made["loud"] == ["X/A", "Y/B"]
    assert client.asked[0][0] == {"role": "system", "content": "Be kind."}


def test_a_rewritten_text_takes_the_place_of_the_old_one() -> None:
    batch = _batch("a", "B", "c")
    made = _run(LLMStage("{{ text }}!", model="m", client=FunctionModel(upper), output_field="text"), batch)
    assert made == {"text": ["A!", "B!", "C!"]}
    [noted] = batch._tracking.trail.changes
    assert (noted.field, noted.characters.tolist()) == ("text", [1, 1, 1])


def test_documents_without_text_are_not_asked_about() -> None:
    client = FunctionModel(upper)
    made = _run(LLMStage("{{ text }}", model="m", client=client), _batch("a", None, ""))
    assert made["answer"] == ["A", None, None]
    assert client.last_words() == ["a"]


def test_equal_questions_are_asked_once() -> None:
    client = FunctionModel(upper)
    made = _run(LLMStage("{{ text }}", model="m", client=client), _batch("a", "b", "a", "a"))
    assert made["answer"] == ["A", "B", "A", "A"]
    assert sorted(client.last_words()) == ["a", "b"]


def test_fields_fill_columns_of_their_types() -> None:
    schema = {
        "properties": {
            "score": {"type": ["integer", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "more": {"type": "object"},
            "kind": {"enum": ["a", "b"]},
        }
    }
    answer = json.dumps({"score": None, "tags": ["x"], "more": {"deep": [1]}, "kind": "b", "unasked": 1})
    stage = LLMStage(
        "{{ text }}", model="m", client=FunctionModel(lambda _: f"```json\n{answer}\n```"), json_schema=schema
    )
    batch = stage.process(_batch("a"))
    table = batch.to_pyarrow()
    assert table.column_names == ["text", "score", "tags", "more", "kind"]
    assert table.schema.field("score").type == pa.int64()
    assert batch.columns.python_values("more") == [{"deep": [1]}]
    assert batch.columns.python_values("tags") == [["x"]]
    renamed = LLMStage(
        "{{ text }}", model="m", client=FunctionModel(lambda _: answer), json_schema=schema, fields={"kind": "label"}
    )
    assert _run(renamed, _batch("a")) == {"text": ["a"], "label": ["b"]}


def test_an_invalid_answer_is_repaired_once() -> None:
    def model(messages: list[dict[str, str]]) -> str:
        return '{"score": 3}' if len(messages) > 1 else '{"score": 9}'

    client = FunctionModel(model)
    stage = LLMStage("{{ text }}", model="m", client=client, json_schema=SCORE, fields=["score"])
    assert _run(stage, _batch("a"))["score"] == [3]
    assert [message["role"] for message in client.asked[1]] == ["user", "assistant", "user"]
    assert "9 is greater than the maximum of 5" in client.last_words()[1]


def test_what_cannot_be_repaired_is_quarantined_with_the_answer() -> None:
    def model(messages: list[dict[str, str]]) -> str:
        return "no JSON, sorry" if "bad" in messages[0]["content"] else '{"score": 1}'

    client = FunctionModel(model)
    batch = _batch("good", "bad", "fine")
    made = _run(LLMStage("{{ text }}", model="m", client=client, json_schema=SCORE, fields=["score"]), batch)
    assert made == {"text": ["good", "fine"], "score": [1, 1]}
    ((_, cause, detail),) = _causes(batch)
    assert cause == "llm_invalid_answer"
    assert "not valid JSON" in detail
    assert "no JSON, sorry" in detail
    assert len(client.asked) == 4


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (Answer((None,), finish_reasons=("content_filter",)), "llm_no_text"),
        (Answer(("half of",), finish_reasons=("length",)), "llm_answer_truncated"),
        (LLMRequestError("too long", can_be_retried=False), "llm_request_refused"),
        (LLMRequestError("500"), "llm_no_answer"),
    ],
)
def test_documents_without_a_usable_answer(answer: Any, cause: str) -> None:
    client = FunctionModel(lambda messages: answer if "bad" in messages[-1]["content"] else "ok", max_retries=1)
    batch = _batch("good", "bad")
    assert _run(LLMStage("{{ text }}", model="m", client=client), batch)["answer"] == ["ok"]
    assert [found for _, found, _ in _causes(batch)] == [cause]


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        (True, "3"),
        (True, "[]"),
        (True, "null"),
        (True, '"ab"'),
        ({"type": "integer"}, '{"made": 18446744073709551615}'),
        ({"type": "integer"}, '{"made": 1e30}'),
        ({"type": "array", "items": {"type": "integer"}}, '{"made": [18446744073709551615]}'),
        ({"type": "object"}, '{"made": %s}' % ('{"a":' * 300 + "1" + "}" * 300)),
    ],
)
def test_a_valid_answer_that_no_column_holds_spoils_only_its_own_row(schema: Any, answer: str) -> None:
    client = FunctionModel(lambda messages: answer if "bad" in messages[0]["content"] else "{}")
    batch = _batch("good", "bad", "fine")
    made = _run(LLMStage("{{ text }}", model="m", client=client, json_schema={"properties": {"made": schema}}), batch)
    assert made == {"text": ["good", "fine"], "made": [None, None]}
    assert [cause for _, cause, _ in _causes(batch)] == ["llm_invalid_answer"]
    assert len(client.asked) == 4  # the third and fourth ask about the bad one, and to repair it


def test_whole_numbers_without_an_exact_float_are_rounded() -> None:
    client = FunctionModel(lambda _: '{"made": 9007199254740993}')
    schema = {"properties": {"made": {"type": "number"}}}
    assert _run(LLMStage("{{ text }}", model="m", client=client, json_schema=schema), _batch("a"))["made"] == [2.0**53]


@pytest.mark.parametrize("reference", ["#/$defs/nosuch", "http://127.0.0.1:9/schema.json"])
def test_references_that_lead_nowhere_are_named(reference: str) -> None:
    stage = LLMStage(
        "{{ text }}",
        model="m",
        client=FunctionModel(lambda _: '{"made": 1}'),
        json_schema={"properties": {"made": {"$ref": reference}}},
    )
    with pytest.raises(UsageError, match="leads nowhere"):
        stage.process(_batch("a"))


def test_truncated_answers_can_be_kept() -> None:
    client = FunctionModel(lambda _: Answer(("half of",), finish_reasons=("length",)))
    assert _run(LLMStage("{{ text }}", model="m", client=client, truncated="keep"), _batch("a"))["answer"] == [
        "half of"
    ]


def test_a_server_that_answers_nothing_ends_the_run() -> None:
    """Instead of quarantining everything."""
    client = FunctionModel(lambda _: LLMRequestError("500: out of order"), max_retries=0)
    with pytest.raises(LLMServerError, match=r"none of 2 requests.*out of order"):
        LLMStage("{{ text }}", model="m", client=client).process(_batch("a", "b"))
    refused = FunctionModel(lambda _: LLMServerError("401", can_be_retried=False))
    with pytest.raises(LLMServerError, match="401"):
        LLMStage("{{ text }}", model="m", client=refused).process(_batch("a", "b"))


def test_a_resumed_batch_is_not_ended_by_the_one_document_that_has_no_answer(tmp_path: Path) -> None:
    """Its other answers are cached, so nothing else is left to ask about."""
    client = FunctionModel(
        lambda messages: LLMRequestError("500") if "bad" in messages[-1]["content"] else "ok", max_retries=0
    )
    _run(_cached(tmp_path, client), _batch("good"))
    batch = _batch("good", "bad")
    assert _run(_cached(tmp_path, client), batch)["answer"] == ["ok"]
    assert [cause for _, cause, _ in _causes(batch)] == ["llm_no_answer"]


def test_a_server_that_stops_answering_ends_the_run_within_a_batch() -> None:
    answers = iter(["first"] * 10)
    client = FunctionModel(lambda _: next(answers, None) or LLMRequestError("429: no quota"), max_retries=0)
    with pytest.raises(LLMServerError, match=r"none of 64 requests.*no quota"):
        LLMStage("{{ text }}", model="m", client=client).process(_batch(*(f"text {number}" for number in range(500))))
    assert len(client.asked) < 100


def test_long_documents_in_chunks() -> None:
    client = FunctionModel(lambda messages: messages[-1]["content"].upper())
    prompt = "{{ chunk_index }}/{{ chunk_count }} {{ text }}"
    stage = LLMStage(prompt, model="m", client=client, max_chunk_chars=10, join="concat")
    assert _run(stage, _batch("one two. three. four", "short"))["answer"] == [
        "0/3 ONE TWO. \n\n1/3 THREE. \n\n2/3 FOUR",
        "0/1 SHORT",
    ]
    scores = FunctionModel(lambda messages: json.dumps({"score": len(messages[0]["content"]) % 5, "why": "w"}))
    joined = LLMStage(
        "{{ text }}",
        model="m",
        client=scores,
        json_schema=SCORE,
        max_chunk_chars=4,
        join={"score": "mean", "why": "first"},
    )
    made = _run(joined, _batch("aaaabb"))
    assert made["score"] == [pytest.approx(3.0)]
    assert made["why"] == ["w"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_chunk_chars": 5}, "needs join"),
        ({"max_chunk_chars": 5, "join": "mean"}, "does not apply to column 'answer'"),
        ({"max_chunk_chars": 5, "join": "cat"}, "Did you mean 'concat'|choose one of"),
        ({"max_chunk_chars": 0, "join": "concat"}, "at least 1"),
        ({"max_chunk_chars": 2.5, "join": "concat"}, "at least 1"),
        ({"json_schema": '{"type": "object"}'}, "must describe an object"),
        ({"fields": ["x"]}, "needs json_schema"),
        ({"json_schema": SCORE, "fields": ["scor"]}, "Did you mean 'score'"),
        ({"json_schema": {"type": "string"}}, "must describe an object"),
        ({"generation_config": {"n": 2}}, "n=2"),
        ({"generation_config": {"extra_kwargs": {"n": 3}}}, "n=3"),
        ({"budget_tokens": 5, "generation_config": {"max_tokens": None}}, "max_tokens"),
        ({"budget_cost": 5.0}, "input_price"),
        ({"response_format": "jsonschema"}, "Did you mean 'json_schema'"),
        ({"base_url": "http://x"}, "either client"),
    ],
)
def test_mistakes_are_found_when_the_stage_is_made(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        LLMStage("{{ text }}", model="m", client=FunctionModel(upper), **options).outputs()


def _cached(folder: Path, client: FunctionModel, prompt: str = "{{ text }}", **options: Any) -> LLMStage:
    stage = LLMStage(prompt, model=options.pop("model", "m"), client=client, **options)
    stage.keep_record(str(folder))
    stage.begin_run()
    return stage


def test_no_answer_is_asked_for_twice(tmp_path: Path) -> None:
    client = FunctionModel(lambda _: "no JSON")
    stage = _cached(tmp_path, client, json_schema=SCORE)
    first, second = _batch("a", "b"), _batch("a", "b")
    _run(stage, first)
    assert len(client.asked) == 4  # each with its repair
    _run(_cached(tmp_path, client, json_schema=SCORE), second)
    assert len(client.asked) == 4
    assert _causes(first) == _causes(second)


def test_only_what_changed_is_asked_again(tmp_path: Path) -> None:
    client = FunctionModel(upper)
    _run(_cached(tmp_path, client), _batch("a", "b"))
    assert _run(_cached(tmp_path, client), _batch("b", "c", "a"))["answer"] == ["B", "C", "A"]
    assert client.last_words() == ["a", "b", "c"]
    changed = "{{ text }}{% if text == 'a' %}!{% endif %}"
    assert _run(_cached(tmp_path, client, changed), _batch("a", "b", "c"))["answer"] == ["A!", "B", "C"]
    assert client.last_words()[3:] == ["a!"]
    _run(_cached(tmp_path, client, model="other"), _batch("a"))
    _run(_cached(tmp_path, client, generation_config={"temperature": 1.0}), _batch("a"))
    assert client.last_words()[4:] == ["a", "a"]
    _run(_cached(tmp_path, client, generation_config={"stream": True}), _batch("a"))
    assert len(client.asked) == 6


def test_the_budget_stops_before_it_is_exceeded_and_a_larger_one_resumes(tmp_path: Path) -> None:
    client = FunctionModel(upper, max_concurrent_requests=3)
    texts = [f"document {number} " + "word " * 20 for number in range(20)]
    options = {"generation_config": {"max_tokens": 30}}
    stage = _cached(tmp_path, client, budget_tokens=600, **options)
    with pytest.raises(
        LLMBudgetError, match=r"spent .* of 600 tokens.*requests of this batch are still open"
    ) as caught:
        stage.process(_batch(*texts))
    stage.teardown()
    asked = len(client.asked)
    assert 0 < asked < 20
    assert caught.value.facts["spent_tokens"] == asked * 44 <= 600
    assert caught.value.facts["open_requests"] == 20 - asked
    again = _cached(tmp_path, client, budget_tokens=600, **options)
    with pytest.raises(LLMBudgetError):
        again.process(_batch(*texts))
    again.teardown()
    assert len(client.asked) == asked
    assert len(_run(_cached(tmp_path, client, budget_tokens=5000, **options), _batch(*texts))["answer"]) == 20
    assert len(client.asked) == 20


def test_a_budget_in_money(tmp_path: Path) -> None:
    client = FunctionModel(upper)
    stage = _cached(
        tmp_path, client, budget_cost=0.001, input_price=1.0, output_price=2.0, generation_config={"max_tokens": 100}
    )
    with pytest.raises(LLMBudgetError, match=r"of 0.001 in money"):
        stage.process(_batch(*[f"{number} " + "word " * 100 for number in range(50)]))
    stage.teardown()
    assert 0 < len(client.asked) < 50


def test_the_plan_holds_what_decides_answers_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")

    def described(**options: Any) -> str:
        stage = LLMStage("{{ text }}", model="m", api_key_env="MY_KEY", **options)
        return json.dumps(describe_stage(stage)["parameters"], sort_keys=True)

    plain = described(base_url="http://one/v1")
    assert "secret" not in plain
    assert "temperature" in plain
    same = described(base_url="http://two/v1", budget_tokens=5, max_concurrent_requests=3, timeout_s=5, input_price=3.0)
    assert same == plain
    assert described(base_url="http://one/v1", system_prompt="x") != plain
    assert described(base_url="http://one/v1", generation_config={"seed": 7}) != plain


def test_no_secret_travels_with_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    stage = LLMStage("{{ text }}", model="m", base_url="http://one/v1", api_key_env="MY_KEY", json_schema=SCORE)
    stage.check_environment()
    assert b"very-secret" not in pickle.dumps(stage)
    assert isinstance(pickle.loads(pickle.dumps(stage)), LLMStage)


def test_a_record_in_an_object_store_needs_a_local_cache() -> None:
    with pytest.raises(PlanningError, match="cache_dir"):
        LLMStage("{{ text }}", model="m", client=FunctionModel(upper)).keep_record("s3://bucket/out.gristmill")


def test_figures_of_a_call() -> None:
    stage = LLMStage("{{ text }}", model="m", client=FunctionModel(upper), input_price=1e6, output_price=2e6)
    stage.process(_batch("one two", "three"))
    figures = stage._consume_custom_metrics()
    assert (figures["llm_requests"], figures["llm_prompt_tokens"], figures["llm_completion_tokens"]) == (2, 3, 3)
    assert figures["llm_cost"] == pytest.approx(9.0)
    stage.teardown()
