"""A small real model in this process, asked by many at once, against transformers itself."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from gristmill.errors import LLMRequestError, ModelNotFoundError, UsageError
from gristmill.models.client import Answer, GenerationConfig
from gristmill.stages.text.models.generation import Question, TransformersClient, answer_in_parts
from tests.unit.stages.text.models.tiny import WORDS

TEMPLATE = "{% for m in messages %}<s> {{ m['content'] }} </s> {% endfor %}{% if add_generation_prompt %}<s>{% endif %}"


def make_writer(folder: Path, *, template: str | None = TEMPLATE, places: int = 128) -> Path:
    """A Llama with random weights and a tokenizer of words."""
    torch.manual_seed(1)
    vocabulary = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    if template is not None:
        made.chat_template = template
    made.save_pretrained(str(folder))
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=places, bos_token_id=1, eos_token_id=2, initializer_range=0.5,
    )  # fmt: skip
    LlamaForCausalLM(config).eval().save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_writer(tmp_path_factory.mktemp("writer"))


def ask(client: TransformersClient, texts: list[str], **config: Any) -> list[Answer]:
    async def all_of_them() -> list[Answer]:
        settings = GenerationConfig(**{"max_tokens": 8, **config})
        answers = await asyncio.gather(
            *(
                client.answer(
                    messages=[{"role": "user", "content": text}],
                    model=client.model_identifier,
                    generation_config=settings,
                )
                for text in texts
            )
        )
        await client.close()
        return answers

    return asyncio.run(all_of_them())


QUESTIONS = ["the one that was", "it is not", "a", "what they have from all of this was on it", "but to be"]


def test_answers_are_those_of_transformers(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    network = AutoModelForCausalLM.from_pretrained(str(folder)).eval()
    expected, counts = [], []
    for text in QUESTIONS:
        ids = tokenizer(f"<s> {text} </s> <s>", return_tensors="pt", add_special_tokens=False)["input_ids"]
        made = network.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=2)[0, ids.shape[1] :]
        expected.append(tokenizer.decode(made, skip_special_tokens=True))
        counts.append(ids.shape[1])
    for size in (1, 2, 16):
        answers = ask(TransformersClient(str(folder), batch_size=size), QUESTIONS)
        assert [answer.texts[0] for answer in answers] == expected
        assert [answer.prompt_tokens for answer in answers] == counts
    assert all(0 < (answer.completion_tokens or 0) <= 8 for answer in answers)
    assert {reason for answer in answers for reason in answer.finish_reasons} <= {"stop", "length"}


def test_sampling_depends_on_the_seed_and_not_on_the_batch(folder: Path) -> None:
    alone = ask(TransformersClient(str(folder), batch_size=1), QUESTIONS, temperature=1.0, seed=7)
    together = ask(TransformersClient(str(folder), batch_size=5), QUESTIONS[::-1], temperature=1.0, seed=7)
    assert [one.texts for one in alone] == [one.texts for one in together[::-1]]
    other = ask(TransformersClient(str(folder), batch_size=5), QUESTIONS, temperature=1.0, seed=8)
    assert [one.texts for one in alone] != [one.texts for one in other]


def test_sampling_follows_the_distribution(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    network = AutoModelForCausalLM.from_pretrained(str(folder)).eval()
    ids = tokenizer("<s> a </s> <s>", return_tensors="pt", add_special_tokens=False)["input_ids"]
    chances = torch.softmax(network(ids).logits[0, -1].double().detach(), dim=0)
    (answer,) = ask(TransformersClient(str(folder)), ["a"], temperature=1.0, top_p=1.0, n=2000, max_tokens=1, seed=1)
    best = int(chances.argmax())
    share = sum(text == tokenizer.decode([best]) for text in answer.texts) / 2000
    assert abs(share - float(chances[best])) < 0.05


def test_several_answers_and_stop_words(folder: Path) -> None:
    (answer,) = ask(TransformersClient(str(folder)), ["a"], n=3, temperature=1.5, seed=0)
    assert len(answer.texts) == 3
    assert len(set(answer.texts)) > 1
    whole = ask(TransformersClient(str(folder)), QUESTIONS)
    text, place = max(((one.texts[0] or "", place) for place, one in enumerate(whole)), key=lambda pair: len(pair[0]))
    word = text.split()[-1]
    (cut,) = ask(TransformersClient(str(folder)), [QUESTIONS[place]], stop=[word])
    assert cut.texts[0] == text.partition(word)[0]
    assert cut.finish_reasons == ("stop",)


def test_one_long_question_costs_the_others_nothing(folder: Path) -> None:
    client = TransformersClient(str(folder), batch_size=4)

    async def both() -> list[Any]:
        asked = [[{"role": "user", "content": text}] for text in ("the " * 200, "it is")]
        questions = (client.query_model(messages=one, model="", generation_config={"max_tokens": 4}) for one in asked)
        return await asyncio.gather(*questions, return_exceptions=True)

    refused, answered = asyncio.run(both())
    assert isinstance(refused, LLMRequestError)
    assert not refused.can_be_retried
    assert "more than the 128" in str(refused)
    assert isinstance(answered[0], str)


def test_a_model_without_a_chat_template(tmp_path: Path) -> None:
    client = TransformersClient(str(make_writer(tmp_path, template=None)))
    (answer,) = ask(client, ["it is"])
    assert answer.prompt_tokens == 2


def test_a_batch_that_fails_is_halved() -> None:
    asked: list[int] = []

    def answer(questions: Any) -> list[Any]:
        asked.append(len(questions))
        if len(questions) > 2 or any(one.messages == ["bad"] for one in questions):
            raise MemoryError("too much")
        return [Answer(texts=(str(one.messages[0]),)) for one in questions]

    questions = [Question([name], GenerationConfig(), {}) for name in ("a", "b", "bad", "c")]  # type: ignore[list-item]
    found = answer_in_parts(questions, answer, lambda error: isinstance(error, MemoryError))
    assert [getattr(one, "texts", "refused") for one in found] == [("a",), ("b",), "refused", ("c",)]
    with pytest.raises(MemoryError):
        answer_in_parts(questions, answer, lambda error: False)


def test_mistakes_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="request is for the model 'other'"):
        asyncio.run(TransformersClient(str(folder)).query_model(messages=[], model="other"))
    with pytest.raises(UsageError, match="'logit_bias', which a model in this process does not support"):
        ask(TransformersClient(str(folder)), ["a"], extra_kwargs={"logit_bias": {}})
    with pytest.raises(UsageError, match="dtype='float8'"):
        TransformersClient(str(folder), dtype="float8")  # type: ignore[arg-type]
    with pytest.raises(ModelNotFoundError):
        TransformersClient(str(tmp_path / "nothing")).check_environment()


def test_a_client_travels_without_its_model_and_its_secret_stays_hidden(folder: Path) -> None:
    client = TransformersClient(str(folder), hf_token="hf_secret")
    client.setup()
    copy = pickle.loads(pickle.dumps(client))
    assert copy._model is None
    assert "hf_secret" not in repr(vars(copy))
    assert copy.content_digest() == client.content_digest() is not None
