"""The guard classifiers end to end on small models of the right shape, against plain transformers and torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from gristmill.errors import UsageError
from gristmill.stages.text.classifiers.aegis import AegisClassifier, InstructionDataGuardClassifier
from gristmill.stages.text.classifiers.guard_models import PoisoningNet
from gristmill.stages.text.classifiers.guard_stages import (
    CATEGORIES,
    FormatAegisPromptStage,
    GuardPrompt,
    PostProcessAegisResponsesStage,
    default_policy,
    read_answer,
)
from gristmill.tasks import DocumentBatch
from tests.unit.stages.text.models.tiny import WORDS, batch_of, run, texts

PLAIN = "{{ bos_token }}{% for message in messages %}ask : {{ message['content'] | trim }} end{% endfor %}"
WITH_POLICY = "{{ bos_token }}{{ policy }} / {{ categories | length }} / {{ messages[0]['content'] }}"
RANK, ALPHA = 4, 16


def make_guard_tokenizer(folder: Path, template: str | None) -> None:
    extra = ["safe", "unsafe", "ask", "end", ":", "rule"]
    vocabulary = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *WORDS, *extra])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", model_max_length=4096
    )
    if template is not None:
        made.chat_template = template
    made.save_pretrained(str(folder))


def make_guard(folder: Path, *, template: str | None = PLAIN) -> tuple[Path, Path]:
    """A Llama of the shape of the published base model, and an adapter for it."""
    torch.manual_seed(0)
    base, adapter = folder / "base", folder / "adapter"
    config = LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=4096, bos_token_id=1, eos_token_id=2, initializer_range=0.6,
    )  # fmt: skip
    LlamaForCausalLM(config).eval().save_pretrained(str(base), safe_serialization=True)
    make_guard_tokenizer(base, template)
    adapter.mkdir()
    tensors = {}
    for layer in range(2):
        for part in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, 32) * 0.2
            tensors[f"{name}.lora_B.weight"] = torch.randn(32, RANK) * 0.2
    save_file(tensors, str(adapter / "adapter_model.safetensors"))
    facts = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj", "v_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(facts))
    return base, adapter


def reference_model(base: Path, adapter: Path) -> Any:
    """The base model whose adapted layers compute `W x + alpha / r · B A x`, written out with a hook."""
    from safetensors.torch import load_file

    network = AutoModelForCausalLM.from_pretrained(str(base)).eval()
    tensors = load_file(str(adapter / "adapter_model.safetensors"))
    for name, module in network.named_modules():
        down = tensors.get(f"base_model.model.{name}.lora_A.weight")
        if down is None:
            continue
        up = tensors[f"base_model.model.{name}.lora_B.weight"]

        def add(_module: Any, inputs: Any, output: Any, down: Any = down, up: Any = up) -> Any:
            return output + ALPHA / RANK * (inputs[0] @ down.T @ up.T)

        module.register_forward_hook(add)
    return network


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_guard(tmp_path_factory.mktemp("guard"))


def test_aegis_answers_like_plain_generation(guard: tuple[Path, Path]) -> None:
    base, adapter = guard
    values = [*texts(4, longest=30), "  the safe of  "]
    classifier = AegisClassifier(
        aegis_variant=str(adapter), base_model=str(base), keep_raw_output=True, autocast=False,
        keep_aegis_prompt_field=True, model_inference_batch_size=4,
    )  # fmt: skip
    out = run(classifier.decompose(), batch_of(values))
    network, tokenizer = reference_model(base, adapter), AutoTokenizer.from_pretrained(str(base))
    for value, question, answer, label in zip(
        values,
        out.column("_curator_hidden_text").to_pylist(),
        out.column("_aegis_raw_pred").to_pylist(),
        out.column("aegis_pred").to_pylist(),
        strict=True,
    ):
        chat = [{"role": "user", "content": value}]
        assert "<s>" + question == tokenizer.apply_chat_template(chat, tokenize=False)
        # The published way: the template's own first token, and no second one.
        ids = tokenizer.apply_chat_template(chat, return_tensors="pt", return_dict=True)["input_ids"]
        assert ids[0, :2].tolist() != [1, 1]
        with torch.no_grad():
            made = network.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=100, do_sample=False, pad_token_id=0
            )
        assert answer == tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
        assert label == read_answer(answer)
    assert out.column("text").to_pylist() == values


def test_the_guard_of_instructions_gives_the_probability_of_its_network(
    guard: tuple[Path, Path], tmp_path: Path
) -> None:
    base, adapter = guard
    torch.manual_seed(1)
    judge = PoisoningNet(input_dim=32).eval()
    for layer in (judge.input_layer, judge.hidden_layer_0, judge.hidden_layer_1, judge.hidden_layer_2):
        torch.nn.init.normal_(layer.weight, std=2 / layer.in_features**0.5)
    judge.save_pretrained(str(tmp_path / "judge"))
    assert (tmp_path / "judge" / "model.safetensors").is_file()
    values = texts(15, longest=40)
    classifier = InstructionDataGuardClassifier(
        model_identifier=str(tmp_path / "judge"), aegis_variant=str(adapter), base_model=str(base), autocast=False
    )
    out = run(classifier.decompose(), batch_of(values))
    network, tokenizer = reference_model(base, adapter), AutoTokenizer.from_pretrained(str(base))
    expected = []
    weights = judge.state_dict()
    for value in values:
        with torch.no_grad():
            states = network(**tokenizer(value, return_tensors="pt"), output_hidden_states=True).hidden_states
            vector = states[-1][0, -1]
            vector = vector / vector.norm()
            for layer in ("input_layer", "hidden_layer_0", "hidden_layer_1"):
                vector = torch.relu(weights[f"{layer}.weight"] @ vector + weights[f"{layer}.bias"])
            last = weights["hidden_layer_2.weight"] @ vector + weights["hidden_layer_2.bias"]
            expected.append(float(1 / (1 + torch.exp(-last))))
    scores = out.column("instruction_data_guard_poisoning_score").to_pylist()
    assert scores == pytest.approx(expected, abs=1e-4)
    assert out.column("is_poisoned").to_pylist() == [value >= 0.5 for value in expected]
    assert np.ptp(expected) > 0.05
    kept = InstructionDataGuardClassifier(
        model_identifier=str(tmp_path / "judge"), aegis_variant=str(adapter), base_model=str(base), autocast=False,
        filter_by=[False],
    )  # fmt: skip
    left = run(kept.decompose(), batch_of(values))
    assert left.num_items == sum(value < 0.5 for value in expected)


def test_a_chat_template_gets_the_policy_if_it_takes_one(tmp_path: Path) -> None:
    base, adapter = make_guard(tmp_path, template=WITH_POLICY)
    tokenizer = AutoTokenizer.from_pretrained(str(base))
    assert GuardPrompt(tokenizer)("x") == f"{default_policy()} / 13 / x"
    assert GuardPrompt(tokenizer, policy="R1: rule\nR2: rule")("x") == "R1: rule\nR2: rule / 2 / x"
    stage = FormatAegisPromptStage("text", 3, models=(str(adapter), str(base)), policy="R1: rule")
    out = run([stage], batch_of(["abcdef", None]))
    assert out.column("_curator_hidden_text").to_pylist() == ["R1: rule / 1 / abc", "R1: rule / 1 / "]


def test_a_policy_goes_before_a_chat_template_that_takes_none(guard: tuple[Path, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(guard[0]))
    assert GuardPrompt(tokenizer)("x") == "ask : x end"
    made = GuardPrompt(tokenizer, policy="R1: no bread")("eat bread")
    assert "R1: no bread" in made
    assert "eat bread" in made
    assert "ask :" not in made


def test_without_a_chat_template_the_question_is_ours(tmp_path: Path) -> None:
    base, adapter = make_guard(tmp_path, template=None)
    stage = FormatAegisPromptStage("text", models=(str(adapter), str(base)))
    (made,) = run([stage], batch_of(["some {policy} {text}"])).column("_curator_hidden_text").to_pylist()
    assert all(f"{number}: {name}." in made for number, name in CATEGORIES.items())
    assert "some {policy} {text}" in made


def test_a_template_of_the_user_needs_no_model() -> None:
    stage = FormatAegisPromptStage("text", template="<{policy}> {text}!", policy="p", models=("no/such-model",))
    assert run([stage], batch_of(["a"])).column("_curator_hidden_text").to_pylist() == ["<p> a!"]
    for wrong in ("no place", "{text} {text}"):
        with pytest.raises(UsageError, match=r"\{text\}"):
            AegisClassifier(template=wrong)


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("safe", "safe"), (" safe \n", "safe"), ("unsafe\nO3", "O3"), ("unsafe\nO13,O1", "O13"),
        ("unsafe", "unknown"), ("unsafe\nO14", "unknown"), ("", "unknown"), ("Safe, I think", "unknown"),
    ],
)  # fmt: skip
def test_reading_answers(answer: str, label: str) -> None:
    assert read_answer(answer) == label
    batch: DocumentBatch = batch_of(["x"], _aegis_raw_pred=[answer], _curator_hidden_text=["q"])
    out = PostProcessAegisResponsesStage().process(batch)
    assert out.get_columns() == ["text", "id", "aegis_pred"]
    assert out.column("aegis_pred").to_pylist() == [label]
