from __future__ import annotations

import gc
import json
import logging
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from gristmill.backends.base import WorkerMetadata
from gristmill.errors import ModelNotFoundError, UsageError
from gristmill.stages.resources import Resources
from gristmill.stages.text.models import ModelStage, TokenizerStage
from gristmill.stages.text.models.devices import allocated_gpus, is_out_of_memory
from gristmill.stages.text.models.sources import weight_files
from gristmill.stages.text.models.tokens import clip_tokens
from gristmill.tasks import DocumentBatch
from tests.unit.stages.text.models.tiny import batch_of, make_sequence_classifier, run, texts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sequence_classifier(tmp_path_factory.mktemp("models") / "tiny")


class Labels(ModelStage):
    """The classifier of the seed, on any device; it notes what it is asked to do."""

    limit: int | None = None
    calls: list[str]

    def __init__(self, model_identifier: str, **options: Any) -> None:
        super().__init__(model_identifier, unpack_inference_batch=True, **options)
        self.calls = []
        self.sizes: list[tuple[int, int]] = []

    def outputs(self) -> tuple[list[str], list[str]]:
        return ["data"], ["label"]

    def setup(self, _: Any = None) -> None:
        self.model = AutoModelForSequenceClassification.from_pretrained(
            self.model_identifier, cache_dir=self.cache_dir, local_files_only=True
        ).eval()

    def yield_next_batch(self, df: Any) -> Any:
        self.calls.append("yield_next_batch")
        yield from super().yield_next_batch(df)

    def _model_forward(self, model_input_batch: Any) -> Any:
        rows, width = model_input_batch["input_ids"].shape
        if self.limit is not None and rows > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        self.calls.append("_model_forward")
        self.sizes.append((rows, width))
        return super()._model_forward(model_input_batch)

    def process_model_output(self, outputs: Any, model_input_batch: Any = None) -> dict[str, Any]:
        self.calls.append("process_model_output")
        return {"predictions": np.argmax(outputs.logits.cpu().numpy(), axis=1)}

    def collect_outputs(self, processed_outputs: Any) -> Any:
        self.calls.append("collect_outputs")
        return super().collect_outputs(processed_outputs)

    def create_output_dataframe(self, df_cpu: Any, collected_output: Any) -> Any:
        self.calls.append("create_output_dataframe")
        return df_cpu.assign(label=collected_output["predictions"])


def expected(model: Path, values: list[str]) -> list[int]:
    network = AutoModelForSequenceClassification.from_pretrained(str(model)).eval()
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    with torch.no_grad():
        return [
            int(network(**tokenizer(v, truncation=True, max_length=64, return_tensors="pt")).logits.argmax())
            for v in values
        ]


def test_labels_equal_the_reference_in_the_original_order(model: Path) -> None:
    values = texts(30)
    stage = Labels(str(model), model_inference_batch_size=8)
    out = run([TokenizerStage(str(model)), stage], batch_of(values))
    assert out.to_pandas()["label"].tolist() == expected(model, values)
    assert out.to_pandas()["id"].tolist() == list(range(30))
    assert "_curator_seq_order" not in out.get_columns()
    assert [rows for rows, _ in stage.sizes] == [8, 8, 8, 6]
    assert len(set(expected(model, values))) > 1


def test_the_hooks_are_called_in_the_published_order(model: Path) -> None:
    stage = Labels(str(model), model_inference_batch_size=4)
    run([TokenizerStage(str(model)), stage], batch_of(texts(8)))
    twice = ["_model_forward", "process_model_output"] * 2
    assert stage.calls == ["yield_next_batch", *twice, "collect_outputs", "create_output_dataframe"]


def test_batches_are_only_as_wide_as_their_longest_row(model: Path) -> None:
    stage = Labels(str(model), model_inference_batch_size=2)
    run([TokenizerStage(str(model)), stage], batch_of(["a", "a of", "the " * 20, "the " * 30]))
    assert stage.sizes == [(2, 4), (2, 32)]


@pytest.mark.parametrize(("side", "kept"), [("right", slice(None, 5)), ("left", slice(-5, None))])
def test_documents_are_cut_to_the_given_number_of_tokens(model: Path, side: Any, kept: slice) -> None:
    values = ["a", "the " * 20]
    stage = Labels(str(model), max_seq_length=5, padding_side=side)
    out = run([TokenizerStage(str(model)), stage], batch_of(values))
    assert stage.sizes == [(2, 5)]
    ids = [AutoTokenizer.from_pretrained(str(model))(value)["input_ids"][kept] for value in values]
    if side == "right":  # on the left, padding shifts the positions that this model learns
        network = AutoModelForSequenceClassification.from_pretrained(str(model)).eval()
        with torch.no_grad():
            cut = [int(network(input_ids=torch.tensor([row])).logits.argmax()) for row in ids]
        assert out.to_pandas()["label"].tolist() == cut
    frame = TokenizerStage(str(model))
    frame.setup()
    (given,) = stage.yield_next_batch(frame.process(batch_of(values)).to_pandas())
    assert sorted(row[row != 0].tolist() for row in given["input_ids"]) == sorted(ids)
    with pytest.raises(ValueError, match="max_seq_length=0"):
        Labels(str(model), max_seq_length=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_goes_to_the_side_that_was_asked_for(model: Path, side: Any) -> None:
    stage = Labels(str(model), padding_side=side)
    stage.setup()
    frame = TokenizerStage(str(model))
    frame.setup()
    batch = frame.process(batch_of(["a", "the a of"]))
    given = next(iter(stage.yield_next_batch(batch.to_pandas())))
    assert set(given) == {"input_ids", "attention_mask"}
    assert all(isinstance(tensor, torch.Tensor) for tensor in given.values())
    row = given["input_ids"][0].tolist()
    assert (row[-2:] if side == "right" else row[:2]) == [0, 0]
    mask = given["attention_mask"][0].tolist()
    assert mask == ([1, 1, 1, 0, 0] if side == "right" else [0, 0, 1, 1, 1])


def test_without_seq_order_nothing_is_sorted(model: Path) -> None:
    values = texts(6)
    stage = Labels(str(model), has_seq_order=False)
    assert stage.inputs() == (["data"], ["input_ids", "attention_mask"])
    out = run([TokenizerStage(str(model), sort_by_length=False), stage], batch_of(values))
    assert out.to_pandas()["label"].tolist() == expected(model, values)


def test_out_of_memory_halves_the_batch_and_remembers(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = texts(40)
    stage = Labels(str(model), model_inference_batch_size=32)
    stage.limit = 5
    with caplog.at_level(logging.WARNING):
        out = run([TokenizerStage(str(model)), stage], batch_of(values))
    assert out.to_pandas()["label"].tolist() == expected(model, values)
    assert max(rows for rows, _ in stage.sizes) <= 5
    assert stage.sizes[-1][0] == 4
    assert "model_inference_batch_size=4" in caplog.text


def test_a_document_that_never_fits_is_quarantined(model: Path) -> None:
    class Narrow(Labels):
        def _model_forward(self, model_input_batch: Any) -> Any:
            if model_input_batch["input_ids"].shape[1] > 30:
                raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
            return super()._model_forward(model_input_batch)

    values = ["a of", "the " * 50, "the a of to"]
    tokenizer = TokenizerStage(str(model))
    tokenizer.setup()
    batch = tokenizer.process(batch_of(values))
    stage = Narrow(str(model))
    stage.setup()
    out = stage.process(batch)
    assert out is not None
    assert out.to_pandas()["id"].tolist() == [0, 2]
    (record,) = batch._tracking.trail.quarantine
    assert record.cause == "out_of_memory"
    assert b'"id":1' in record.raw.replace(b" ", b"")
    assert b"input_ids" not in record.raw


def test_other_errors_are_not_taken_for_missing_memory(model: Path) -> None:
    class Broken(Labels):
        def _model_forward(self, model_input_batch: Any) -> Any:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        run([TokenizerStage(str(model)), Broken(str(model))], batch_of(["a"]))


def test_a_stage_with_setup_hook_is_given_local_files_only(model: Path) -> None:
    seen: list[bool] = []

    class Hooked(Labels):
        def setup(self, _: Any = None) -> None:
            ModelStage.setup(self, _)

        def _setup(self, local_files_only: bool = True) -> None:
            seen.append(local_files_only)

    stage = Hooked(str(model))
    stage.setup_on_node()
    stage.setup()
    assert seen == [False, True]


def test_the_base_class_says_what_is_missing() -> None:
    stage = ModelStage("some/model")
    for call in (
        stage.outputs,
        stage.setup,
        lambda: stage.process_model_output(None),
        lambda: stage.create_output_dataframe(None, None),  # type: ignore[arg-type]
    ):
        with pytest.raises(NotImplementedError, match="must implement"):
            call()


def test_defaults_are_the_published_ones() -> None:
    stage = ModelStage("nvidia/some-Model")
    assert stage.name == "some_model_model"
    assert stage.resources == Resources(cpus=1.0, gpus=1.0)
    assert (stage.cache_dir, stage.hf_token, stage.model_inference_batch_size) == (None, None, 256)
    assert (stage.has_seq_order, stage.padding_side, stage.unpack_inference_batch, stage.autocast) == (
        True, "right", False, True,
    )  # fmt: skip
    with pytest.raises(UsageError):
        ModelStage("x/y", model_inference_batch_size=0)


@pytest.mark.parametrize("autocast", [True, False])
def test_autocast_is_entered_only_if_asked_for(model: Path, autocast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []
    real = torch.autocast

    def watched(*arguments: Any, **options: Any) -> Any:
        entered.append(options["device_type"])
        return real(*arguments, **options)

    monkeypatch.setattr(torch, "autocast", watched)
    run([TokenizerStage(str(model)), Labels(str(model), autocast=autocast)], batch_of(["a"]))
    assert entered == (["cpu"] if autocast else [])


def test_gradients_are_off_while_the_model_runs(model: Path) -> None:
    class Watching(Labels):
        def _model_forward(self, model_input_batch: Any) -> Any:
            assert not torch.is_grad_enabled()
            return super()._model_forward(model_input_batch)

    run([TokenizerStage(str(model)), Watching(str(model))], batch_of(["a"]))


def test_only_one_batch_is_held_at_a_time(model: Path) -> None:
    seen: list[weakref.ref[torch.Tensor]] = []

    class Watching(Labels):
        def _model_forward(self, model_input_batch: Any) -> Any:
            assert [old for old in seen if old() is not None] == []
            seen.extend(weakref.ref(tensor) for tensor in model_input_batch.values())
            return super()._model_forward(model_input_batch)

    run([TokenizerStage(str(model)), Watching(str(model), model_inference_batch_size=3)], batch_of(texts(9)))
    assert len(seen) == 6


def test_a_batch_is_unpacked_only_if_asked_for() -> None:
    class Network:
        def __call__(self, *arguments: Any, **named: Any) -> Any:
            return arguments, named

    batch = {"input_ids": torch.ones(1, 2), "attention_mask": torch.ones(1, 2)}
    for unpack, expected in ((True, ((), batch)), (False, ((batch,), {}))):
        stage = ModelStage("a/b", unpack_inference_batch=unpack)
        stage.model = Network()
        assert stage._model_forward(batch) == expected


def test_teardown_lets_go_of_the_model(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    stage = Labels(str(model))
    stage.setup()
    network = weakref.ref(stage.model)
    collect = gc.collect
    monkeypatch.setattr(gc, "collect", lambda: called.append("collect") or collect())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: called.append("empty_cache"))
    stage.teardown()
    assert stage.model is None
    assert network() is None
    assert called == ["collect", "empty_cache"]


def test_offline_errors_say_what_where_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import errors

    def offline(*_: Any, **__: Any) -> str:
        raise errors.LocalEntryNotFoundError("no connection")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    stage = ModelStage("some-org/some-model", cache_dir=str(tmp_path), hf_token="hf_secret")
    with pytest.raises(ModelNotFoundError) as caught:
        stage.setup_on_node()
    text = str(caught.value)
    assert "*.safetensors" in text
    assert str(tmp_path / "models--some-org--some-model") in text
    assert "hf download some-org/some-model" in text
    assert "hf_secret" not in text
    assert isinstance(caught.value, FileNotFoundError)


def test_half_a_download_says_how_to_fetch_the_rest(tmp_path: Path) -> None:
    folder = tmp_path / "models--some-org--some-model" / "snapshots" / "0123"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError, match="hf download some-org/some-model") as caught:
        weight_files(folder)
    assert "config.json" in str(caught.value)
    assert caught.value.identifier == "some-org/some-model"
    (tmp_path / "own").mkdir()
    with pytest.raises(ModelNotFoundError, match="convert them"):
        weight_files(tmp_path / "own")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("any"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_errors_that_mean_out_of_memory(error: BaseException, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_a_hub_model_is_downloaded_without_code_and_pickles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def download(**options: Any) -> str:
        asked.update(options)
        (tmp_path / "model.safetensors").touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    ModelStage("some-org/some-model", cache_dir="here", hf_token="hf_secret").setup_on_node()
    assert (asked["repo_id"], asked["cache_dir"], asked["token"]) == ("some-org/some-model", "here", "hf_secret")
    assert not any(pattern.endswith((".py", ".bin", ".pt", "*")) for pattern in asked["allow_patterns"])


@pytest.mark.parametrize("side", ["left", "right"])
def test_clip_tokens_removes_padding_columns_only(side: Any) -> None:
    ids = torch.tensor([[5, 6, 0, 0], [7, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])
    if side == "left":
        ids, mask = ids.flip(1), mask.flip(1)
    clipped = clip_tokens({"input_ids": ids, "attention_mask": mask}, padding_side=side)
    assert clipped["attention_mask"].shape == (2, 2)
    assert clipped["input_ids"].sum() == 18


def test_an_empty_batch_passes(model: Path) -> None:
    out = run([TokenizerStage(str(model)), Labels(str(model))], batch_of([]))
    assert isinstance(out, DocumentBatch)
    assert out.num_items == 0


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_document_without_tokens_does_not_depend_on_its_neighbours(side: Any, tmp_path: Path) -> None:
    from gristmill.stages.text.classifiers.base import ClassifierModelStage

    folder = make_sequence_classifier(tmp_path / "model")
    bare = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**bare, "post_processor": None}))
    tokenizer = TokenizerStage(str(folder), padding_side=side)
    plain = Labels(str(folder), padding_side=side)
    ours = ClassifierModelStage(str(folder), score_field="p", padding_side=side, autocast=False)
    for stage, column in ((plain, "label"), (ours, "p")):
        alone = run([tokenizer, stage], batch_of([""])).to_pandas()[column].tolist()
        for neighbour in ("the", "the of and to"):
            both = run([tokenizer, stage], batch_of(["", neighbour])).to_pandas()[column].tolist()
            assert np.allclose(both[0], alone[0], atol=1e-5)
            assert np.isfinite(both[1]).all()


@pytest.mark.parametrize(
    ("allocation", "number"),
    [(None, None), ({"gpus": []}, 0), ([], 0), ((), 0), ({"gpus": [0, 1]}, 2), ([3], 1), (SimpleNamespace(gpus=[]), 0)],
)
def test_an_empty_allocation_means_no_gpu(allocation: Any, number: int | None) -> None:
    assert allocated_gpus(WorkerMetadata("w", allocation)) == number


def test_a_stage_without_a_gpu_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    stage = ModelStage("some/model")
    assert stage.device == torch.device("cuda")
    stage._worker_metadata = WorkerMetadata("w", {"gpus": []})
    assert stage.device == torch.device("cpu")
    stage.device = "cuda:1"
    assert stage.device == "cuda:1"
