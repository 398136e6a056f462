"""Model folders that are damaged, incomplete, or want to run code: an error of ours, and never random results."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gristmill.errors import ModelLoadError, ModelNotFoundError
from gristmill.stages.text.classifiers import FineWebEduClassifier
from gristmill.stages.text.classifiers.base import DistributedDataClassifier
from gristmill.stages.text.embedders.base import EmbeddingCreatorStage
from tests.unit.stages.text.models.tiny import batch_of, make_classifier, make_sequence_classifier, run, texts


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
    "another config": (lambda folder: (folder / "config.json").write_text("[]"), "cannot be used"),
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
    with pytest.raises(ModelLoadError, match=r"code of its own \(auto_map\), which is never run"):
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
