"""Model folders that are damaged, incomplete, or want to run code: one of our errors, and never random results."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertConfig, RobertaConfig

from gristmill.errors import ModelLoadError, ModelNotFoundError, UsageError
from gristmill.stages.text.classifiers import FineWebEduClassifier
from gristmill.stages.text.classifiers.base import DistributedDataClassifier
from gristmill.stages.text.embedders.base import EmbeddingCreatorStage
from gristmill.stages.text.models.loading import load_settings
from gristmill.stages.text.models.sources import listing
from tests.unit.stages.text.models.tiny import (
    batch_of,
    make_classifier,
    make_sequence_classifier,
    make_tokenizer,
    run,
    texts,
)


def rewrite(folder: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    settings = json.loads((folder / name).read_text())
    change(settings)
    (folder / name).write_text(json.dumps(settings))


def halve(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove_tokenizer(folder: Path) -> None:
    for path in folder.glob("*token*"):
        path.unlink()


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut weights": (halve, r"model\.safetensors.*cannot be used"),
    "empty weights": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "cannot be used"),
    "half a config": (lambda folder: (folder / "config.json").write_text('{"base_model": '), "JSON"),
    "another config": (lambda folder: (folder / "config.json").write_text("[]"), "a list instead of settings"),
    "no labels": (lambda folder: rewrite(folder, "config.json", lambda c: c.pop("id2label")), "no 'id2label'"),
    "no dropout": (lambda folder: rewrite(folder, "config.json", lambda c: c.pop("fc_dropout")), "no 'fc_dropout'"),
    "two labels": (lambda folder: rewrite(folder, "config.json", lambda c: c["id2label"].pop("2")), "size mismatch"),
    "another network": (
        lambda folder: rewrite(folder, "config.json", lambda c: c["base_config"].update(model_type="nonsense")),
        "nonsense",
    ),
    "no tokenizer": (remove_tokenizer, "has no tokenizer .*It holds: config.json, model.safetensors"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_folders_are_named_with_the_reason(kind: str, tmp_path: Path) -> None:
    folder = make_classifier(tmp_path / "model", self_contained=True)
    damage, message = DAMAGE[kind]
    damage(folder)
    with pytest.raises(ModelLoadError, match=message) as caught:
        run(DistributedDataClassifier(model_identifier=str(folder)).decompose(), batch_of(texts(2)))
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("where", ["network", "base network", "tokenizer"])
def test_code_of_a_model_never_runs_and_nobody_is_asked(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(builtins, "input", lambda prompt="": asked.append(prompt) or "y")
    folder = make_classifier(tmp_path / "model", self_contained=where != "network")
    mark = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass E: pass\n")
    every = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForSequenceClassification"), "evil.E")
    if where == "network":
        folder = make_sequence_classifier(folder)
        rewrite(folder, "config.json", lambda c: c.update(auto_map=every, model_type="evil"))
    elif where == "base network":
        rewrite(folder, "config.json", lambda c: c.update(auto_map=every))
        rewrite(folder, "config.json", lambda c: c["base_config"].update(auto_map=every, model_type="evil"))
    else:
        own = {"AutoTokenizer": ["evil.E", "evil.E"]}
        rewrite(folder, "tokenizer_config.json", lambda c: c.update(auto_map=own, tokenizer_class="Evil"))
    with pytest.raises(ModelLoadError, match=r"its own code \(auto_map\), which is never run"):
        run(DistributedDataClassifier(model_identifier=str(folder)).decompose(), batch_of(texts(2)))
    assert not mark.exists()
    assert not asked


@pytest.mark.parametrize("make", [DistributedDataClassifier, FineWebEduClassifier])
def test_an_encoder_without_a_head_is_no_classifier(make: Any, tmp_path: Path) -> None:
    folder = make_sequence_classifier(tmp_path / "model")
    path = folder / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(path).items() if "classifier" not in name}, path)
    with pytest.raises(ModelLoadError, match=r"lack 2 .*classifier.*random"):
        run(make(model_identifier=str(folder)).decompose(), batch_of(texts(2)))


def test_an_encoder_with_missing_layers_gives_no_embeddings(tmp_path: Path) -> None:
    folder = make_sequence_classifier(tmp_path / "model")
    path = folder / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(path).items() if "layer.1." not in name}, path)
    with pytest.raises(ModelLoadError, match="random"):
        run(EmbeddingCreatorStage(model_identifier=str(folder)).decompose(), batch_of(texts(2)))


def test_pickled_weights_are_not_loaded(tmp_path: Path) -> None:
    folder = make_sequence_classifier(tmp_path / "model")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    for stage in (
        DistributedDataClassifier(model_identifier=str(folder)),
        FineWebEduClassifier(model_identifier=str(folder)),
        EmbeddingCreatorStage(model_identifier=str(folder)),
    ):
        with pytest.raises(ModelNotFoundError, match="Weights in other formats are not loaded"):
            run(stage.decompose(), batch_of(texts(2)))


def encoder(folder: Path, config: Any) -> Path:
    AutoModel.from_config(config).save_pretrained(str(folder))
    make_tokenizer(folder, max_length=10**30)
    return folder


SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
}  # fmt: skip


def test_more_tokens_than_the_network_has_places_for_are_refused_before_the_work(tmp_path: Path) -> None:
    bert = encoder(tmp_path / "bert", BertConfig(**SMALL, max_position_embeddings=12, pad_token_id=0))
    stages = EmbeddingCreatorStage(model_identifier=str(bert), max_seq_length=13).decompose()
    with pytest.raises(UsageError, match=r"max_seq_length=13: .* supports at most 12 tokens"):
        stages[1].setup()
    long = batch_of(["the of and to in it is was that for on are with as"])
    for limit in (12, None):
        out = run(EmbeddingCreatorStage(model_identifier=str(bert), max_seq_length=limit).decompose(), long)
        assert len(out.column("embeddings")) == 1


def test_places_behind_the_padding_are_counted_from_there(tmp_path: Path) -> None:
    folder = encoder(tmp_path / "roberta", RobertaConfig(**SMALL, max_position_embeddings=14, pad_token_id=1))
    long = batch_of(["the of and to in it is was that for on are with as"])
    assert len(run(EmbeddingCreatorStage(model_identifier=str(folder)).decompose(), long).column("embeddings")) == 1
    with pytest.raises(UsageError, match="supports at most 12 tokens"):
        EmbeddingCreatorStage(model_identifier=str(folder), max_seq_length=13).decompose()[1].setup()


def test_relative_places_have_no_limit(tmp_path: Path) -> None:
    folder = make_classifier(tmp_path / "model")
    stages = DistributedDataClassifier(model_identifier=str(folder), max_seq_length=4096).decompose()
    out = run(stages, batch_of(["the of and " * 100]))
    assert len(out.column("preds")) == 1


def test_a_folder_that_is_not_there_is_listed_as_such(tmp_path: Path) -> None:
    assert listing(tmp_path / "none") == "nothing, as there is no such folder"
    with pytest.raises(ModelLoadError, match="no such folder"):
        load_settings(tmp_path / "none")


def test_a_judge_of_hidden_states_with_a_missing_layer_is_refused(tmp_path: Path) -> None:
    from gristmill.stages.text.classifiers.guard_models import PoisoningNet, load_judge

    state = PoisoningNet(8).state_dict()
    (tmp_path / "config.json").write_text('{"input_dim": 8, "dropout": 0.5}')
    save_file(state, tmp_path / "model.safetensors")
    assert not load_judge(tmp_path).training
    save_file({name: tensor for name, tensor in state.items() if "layer_2" not in name}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match="hidden_layer_2"):
        load_judge(tmp_path)
