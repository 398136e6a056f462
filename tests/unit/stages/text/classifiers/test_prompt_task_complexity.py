"""The classifier of prompts end to end on a small model of the right shape, against plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, DebertaV2Model

from gristmill.stages.text.classifiers import PromptTaskComplexityClassifier
from gristmill.stages.text.classifiers.prompt_task_complexity import COMPLEXITY_WEIGHTS, DIMENSIONS
from tests.unit.stages.text.models.tiny import batch_of, deberta_config, make_tokenizer, run, texts

TASKS = ["Closed QA", "Open QA", "Code Generation", "Brainstorming"]
SIZES = {"task_type": 4, "creativity_scope": 3, "reasoning": 3, "contextual_knowledge": 2, "number_of_few_shots": 6,
         "domain_knowledge": 4, "no_label_reason": 1, "constraint_ct": 2}  # fmt: skip
WEIGHTS = {"creativity_scope": [2, 1, 0], "reasoning": [0, 1, 1], "contextual_knowledge": [0, 1],
           "number_of_few_shots": [0, 1, 2, 3, 4, 5], "domain_knowledge": [3, 1, 2, 0], "no_label_reason": [0],
           "constraint_ct": [1, 0]}  # fmt: skip
DIVISORS = {"creativity_scope": 2, "reasoning": 1, "contextual_knowledge": 1, "number_of_few_shots": 1,
            "domain_knowledge": 3, "no_label_reason": 1, "constraint_ct": 1}  # fmt: skip


def make_prompt_classifier(folder: Path) -> tuple[Path, Any, list[torch.nn.Linear]]:
    """The published form: config.json with the tables, safetensors with a backbone and a head per target."""
    torch.manual_seed(2)
    backbone = DebertaV2Model(deberta_config()).eval()
    backbone.save_pretrained(str(folder.parent / "base"))
    heads = [torch.nn.Linear(32, size) for size in SIZES.values()]
    for head in heads:
        torch.nn.init.normal_(head.weight, std=0.7)
    state = {f"backbone.{name}": tensor.contiguous() for name, tensor in backbone.state_dict().items()}
    for number, head in enumerate(heads):
        state |= {f"head_{number}.fc.{name}": tensor for name, tensor in head.state_dict().items()}
    folder.mkdir()
    save_file(state, str(folder / "model.safetensors"))
    config = {
        "base_model": str(folder.parent / "base"),
        "target_sizes": SIZES,
        "task_type_map": {str(number): name for number, name in enumerate(TASKS)},
        "weights_map": WEIGHTS,
        "divisor_map": DIVISORS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    make_tokenizer(folder)
    return folder, backbone, heads


def expected_row(text: str, tokenizer: Any, backbone: Any, heads: list[torch.nn.Linear]) -> dict[str, Any]:
    """The eleven values of one prompt by the formulas of the model's card."""
    with torch.no_grad():
        hidden = backbone(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).last_hidden_state
        found = [torch.softmax(head(hidden[0].mean(0)), dim=0).tolist() for head in heads]
    ranked = sorted(range(len(TASKS)), key=lambda number: -found[0][number])
    row: dict[str, Any] = {
        "task_type_1": TASKS[ranked[0]],
        "task_type_2": TASKS[ranked[1]] if found[0][ranked[1]] >= 0.1 else "NA",
        "task_type_prob": found[0][ranked[0]],
    }
    for name, values in zip(list(SIZES)[1:], found[1:], strict=True):
        row[name] = sum(value * weight for value, weight in zip(values, WEIGHTS[name], strict=True)) / DIVISORS[name]
    if row["number_of_few_shots"] < 0.05:
        row["number_of_few_shots"] = 0.0
    row["prompt_complexity_score"] = (
        0.35 * row["creativity_scope"] + 0.25 * row["reasoning"] + 0.15 * row["constraint_ct"]
        + 0.15 * row["domain_knowledge"] + 0.05 * row["contextual_knowledge"] + 0.05 * row["number_of_few_shots"]
    )  # fmt: skip
    return row


def test_all_columns_equal_the_published_formulas(tmp_path: Path) -> None:
    folder, backbone, heads = make_prompt_classifier(tmp_path / "prompts")
    values = texts(25, longest=45)
    classifier = PromptTaskComplexityClassifier(model_identifier=str(folder), autocast=False)
    out = run(classifier.decompose(), batch_of(values)).to_pyarrow()
    assert set(classifier.outputs()[1]) <= set(out.column_names)
    assert out["text"].to_pylist() == values
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    rows = [expected_row(value, tokenizer, backbone, heads) for value in values]
    assert set(rows[0]) == set(classifier.outputs()[1])
    for name in rows[0]:
        wanted = [row[name] for row in rows]
        found = out[name].to_pylist()
        if name.startswith("task_type_") and name != "task_type_prob":
            assert found == wanted
        else:
            assert found == pytest.approx(wanted, abs=1.1e-3), name
    assert len({row["task_type_1"] for row in rows}) > 1
    assert len({row["task_type_2"] for row in rows}) > 1


def test_the_heads_are_in_the_order_of_the_published_model() -> None:
    assert list(SIZES)[1:] == list(DIMENSIONS)
    assert sum(COMPLEXITY_WEIGHTS.values()) == pytest.approx(1.0)
